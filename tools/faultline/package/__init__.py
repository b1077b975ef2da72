# SPDX-License-Identifier: GPL-2.0-only
"""Packages, made from a stage: binary, source, signed, in repositories.

debtree     the debian/ folder of a release
deb         DEB packages            deb_source  the DEB source package
rpmtool     the spec and rpmbuild
rpm         RPM packages            rpm_source  the RPM source package
make_repo   apt and dnf repositories: keys, the OpenPGP keys; keyring, the packages with them;
            documents, the SPDX beside them
sign_stage  a stage signed for Secure Boot
"""

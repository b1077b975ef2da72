# SPDX-License-Identifier: GPL-2.0-only
"""The programs of Faultline, which tools/fl runs.

Shared code, from the pin to a git branch and back:

common      errors, progress, paths, locks
pin         kernel/upstream
apt         Debian's archive through a private apt
source      the upstream source: pinned package, other package, or a user's tarball
importer    a source as a git commit
repo        git, and the repository with our branch on top of the tag `upstream`
patchqueue  kernel/overlay and kernel/patches on disk
branch      the queue as commits, and commits as the queue
worktree    the work tree in build/tree: its state, and when it may be replaced
release     names of releases, and their entries in CHANGELOG
stage_env   what packages and tests read of a stage
flavour     the flavours of the kernel: their definitions and configuration
sysroot     libraries for cross-compiled programs
sbom        the bill of materials of a stage
verbs       the command line of fl

Programs: fetch, tree, export, rebase, audit, configure, build, stage, clean, make_release.

package     DEB and RPM packages, repositories, signing
vm          a kernel in a VM
"""

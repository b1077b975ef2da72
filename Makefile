# SPDX-License-Identifier: GPL-2.0-only
#
# The targets of Faultline; `make help` lists them.  Each calls one program in
# this repository, which does the work and can also be run without make.

# The folder for everything generated.
BUILD ?= build
# The kernel to build; see tools/faultline/flavour.py.  Empty: microvm, but an
# error for packages, which have to be of a flavour that hosts can use.
FLAVOUR ?=
# The build number within one release: packages of REBUILD=2 are newer.
REBUILD ?=
export REBUILD
# The key that signs `make repo`, from the keyring in GNUPGHOME (empty: a key
# generated for testing), and the base URL of the repositories.
REPO_KEY ?=
REPO_URL ?=
# Options of `fl package make-repo` for it; empty: as in the run before.  The days
# that apt accepts it, the key that will sign next, and the percentage of hosts
# with apt that get the newest kernel.
REPO_VALID_DAYS ?=
REPO_NEXT_KEY ?=
REPO_PHASE ?=
# Key (PEM, or pkcs11:...) and certificate (PEM) for Secure Boot; empty: unsigned.
# The certificate also goes into the kernel, which then trusts the modules.
SECUREBOOT_KEY ?=
SECUREBOOT_CERT ?=
# The hosts that `make test-images` boots, deb or rpm (empty: both), and whether
# it and `make test-upstream` run in full (FULL=1).
FORMAT ?=
FULL ?=
# The benchmark for `make bench`: munmap, hugetlb, hugetlb_zero, pmd_clear, spf, micro or workloads.
BENCH ?= munmap
# The tests for `make test`: suites, or SUITE/NAME; empty: all.
SUITE ?=

override BUILD := $(abspath $(BUILD))
export BUILD

# Each step keeps all CPUs busy by itself; -j would only interleave them.
.NOTPARALLEL:
.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@echo 'make run      build the kernel, boot it in a VM and try a switch'
	@echo 'make test     build everything and run the tests'
	@echo
	@sed -n 's/^\([a-z][a-z0-9-]*\)\(-%\)*:.*## \(.*\)/\1\2\t\3/p' $(firstword $(MAKEFILE_LIST)) | \
		sed 's/%/SUITE/' | expand -t 14
	@echo
	@echo 'BUILD=DIR puts everything generated there instead of build/.'

# --- Host packages

# The other targets install only the groups that they need.
DEPS := packaging/build-deps/install

# The group of packages that a flavour for another architecture needs, and BusyBox for its VMs.
SMALL := $(or $(FLAVOUR),microvm)
DEPS_CROSS := $(if $(findstring arm64,$(SMALL)),arm64,$(if $(filter ppc64le% powerpc64le,$(SMALL)),ppc64le))
CROSS := $(if $(DEPS_CROSS),$(DEPS) $(DEPS_CROSS),true)
ifneq ($(filter ppc64le% microvm-arm64%,$(SMALL)),)
CROSS += && tools/fl vm busybox $(if $(findstring arm64,$(SMALL)),aarch64,ppc64le)
endif

.PHONY: deps
deps: ## install missing host packages for all but POWER, arm64, test-upstream and BENCH=workloads
	@$(DEPS)

# --- The kernel branch

.PHONY: fetch
fetch: ## download the pinned source (UPSTREAM=latest, UPSTREAM_TARBALL=FILE)
	@$(DEPS) build
	@tools/fl fetch

.PHONY: tree
tree: ## make the kernel branch in build/tree: source, overlay, patches
	@$(DEPS) build
	@tools/fl tree

.PHONY: export
export: ## write the commits of build/tree back to overlay and patches
	@$(DEPS) build
	@tools/fl export

.PHONY: rebase
rebase: ## move the pin to another point release: VERSION=6.12.x (CONTINUE=1, CONFIG=nearest)
	@$(DEPS) build
	@tools/fl rebase $(VERSION)

.PHONY: release
release: ## newest point release: rebase, test, test-release, repo; goes on where it stopped
	@tools/fl release

.PHONY: kernel
kernel: tree ## compile FLAVOUR=microvm, microvm-debug, ppc64le, ...
	@$(CROSS)
	@tools/fl build $(SMALL)

# --- Packages

# Not a target to call.
has-flavour:
ifeq ($(FLAVOUR),)
	@echo 'make: error: packages are made of one flavour: add FLAVOUR=generic (bare metal, any VM), FLAVOUR=cloud (VMs of the large clouds) or FLAVOUR=microvm (tests only)' >&2; exit 1
endif

# A rebuild has its own folders.
variant = $(FLAVOUR)$(if $(REBUILD),.$(REBUILD))
# The stage that is packaged: with a key, its signed copy.
staged = $(BUILD)/stage$(if $(SECUREBOOT_KEY)$(SECUREBOOT_CERT),.signed)/$(variant)

.PHONY: stage
stage: has-flavour tree ## compile FLAVOUR with modules, perf and headers, ready to package
	@$(DEPS) package $(DEPS_CROSS)
	@tools/fl stage $(FLAVOUR)
ifneq ($(SECUREBOOT_KEY)$(SECUREBOOT_CERT),)
	@tools/fl package sign-stage --key '$(SECUREBOOT_KEY)' --cert '$(SECUREBOOT_CERT)' \
		$(BUILD)/stage/$(variant) $(staged)
endif

.PHONY: deb
deb: stage ## DEB packages of FLAVOUR=generic, cloud, generic-arm64 or powerpc64le
	@tools/fl package deb $(staged) $(BUILD)/packages/$(variant)/deb

# Not a target to call.
has-rpm:
ifeq ($(FLAVOUR),powerpc64le)
	@echo 'make: error: there are no RPM packages of FLAVOUR=powerpc64le: say make deb FLAVOUR=powerpc64le' >&2; exit 1
endif

.PHONY: rpm
rpm: has-rpm stage ## RPM packages of FLAVOUR=generic, cloud or generic-arm64, in build/packages
	@tools/fl package rpm $(staged) $(BUILD)/packages/$(variant)/rpm

.PHONY: packages
packages: has-rpm deb rpm ## both formats; REBUILD=2 makes the next build of a release

.PHONY: source-packages
source-packages: tree ## .dsc and .src.rpm, buildable without this repository
	@$(DEPS) package
	@tools/fl package deb-source $(if $(FLAVOUR),--flavour $(FLAVOUR)) \
		$(BUILD)/packages/source/deb
	@tools/fl package rpm-source $(BUILD)/packages/source/rpm

.PHONY: repo
repo: packages ## signed apt and dnf repositories of FLAVOUR (REPO_KEY, REPO_URL, REPO_VALID_DAYS)
	@tools/fl package make-repo --out $(BUILD)/repo/$(FLAVOUR) \
		$(if $(REPO_KEY),--key $(REPO_KEY)) $(if $(REPO_URL),--url $(REPO_URL)) \
		$(if $(REPO_VALID_DAYS),--valid-days $(REPO_VALID_DAYS)) \
		$(if $(REPO_NEXT_KEY),--next-key $(REPO_NEXT_KEY)) \
		$(if $(REPO_PHASE),--phase $(REPO_PHASE)) \
		--deb $(BUILD)/packages/$(variant)/deb --rpm $(BUILD)/packages/$(variant)/rpm

# --- In a VM

.PHONY: run
run: tree ## build microvm, boot it and demonstrate the switches
	@$(DEPS) vm
	@tools/fl build microvm
	@tests/demo/run.sh

.PHONY: demo-rollout
demo-rollout: tree ## an A/B experiment on four VMs, with its verdict; a quarter of an hour
	@$(DEPS) vm test
	@tools/fl build microvm
	@tests/demo/rollout.sh

.PHONY: shell
shell: tree ## a shell in a VM with the kernel of FLAVOUR
	@$(DEPS) vm
	@$(CROSS)
	@tools/fl build $(SMALL)
	@bash -c '. tests/lib/vm.sh && exec tools/fl vm shell --kernel "$$(image $(SMALL))"'

.PHONY: bench
bench: tree ## measure BENCH=munmap, hugetlb(_zero), pmd_clear, spf, micro, survey(_cost), workloads; PEER=1
	$(if $(and $(DEPS_CROSS),$(PEER)$(filter workloads,$(BENCH))),\
		$(error PEER=1 and BENCH=workloads are for x86: leave out FLAVOUR=$(FLAVOUR)))
	@$(DEPS) vm $(filter workloads,$(BENCH))
	@$(CROSS)
	@tools/fl build $(SMALL)-stock
	@tools/fl build $(SMALL)
	@$(if $(PEER),tools/fl build microvm-peer)
	@$(if $(filter workloads,$(BENCH)),tools/fl build microvm-trace)
	@tests/lab bench $(BENCH) --flavour $(SMALL) $(if $(PEER),--peer)

# --- Tests

.PHONY: test
test: deps tree ## run all tests that need no extra kernel, or SUITE="NAME..."
	@tests/run $(SUITE)

test-%: deps tree ## run one suite: test-source, test-runner, ...
	@tests/run $*

.PHONY: test-ppc64le
test-ppc64le: tree ## boot and test the ppc64le kernel, radix and hash MMU
	@$(DEPS) vm ppc64le
	@tests/run power/kernel

.PHONY: test-arm64
test-arm64: tree ## boot and test kernels for arm64, also with KASAN; sign one; install packages in VMs
	@$(DEPS) build vm package image arm64
	@tests/run arm64/kernel arm64/64k arm64/va52 arm64/debug arm64/signing
	@tests/run --limit 7200 arm64/packages

.PHONY: test-signing
test-signing: deps tree ## sign kernels; boot them with Secure Boot, load modules in them
	@tests/run hosts/signing

# Not part of test-release: it compiles a kernel of its own, for hours.
.PHONY: test-powerpc64le
test-powerpc64le: tree ## cross-build packages for POWER, install and boot them in a POWER9 VM
	@$(DEPS) vm package ppc64le
	@tests/run --limit 14400 power/packages

# Debian 13 has another compiler, so the suites compile everything again.
.PHONY: test-debian-13
test-debian-13: ## the suites that a host's programs matter to, in a Debian 13 made by mmdebstrap
	@$(DEPS) build image
	@tests/lab userland

.PHONY: test-debug
test-debug: deps tree ## KUnit, selftests and race tests under KASAN, lockdep, DEBUG_VM
	@tests/run kernel/debug runner/boots

.PHONY: test-kcsan
test-kcsan: deps tree ## race tests under KCSAN, the data race detector
	@tests/run kernel/kcsan

# On two busy cores the selftests alone can exceed the default time limit.
.PHONY: test-upstream
test-upstream: deps tree ## compare upstream's mm selftests and stress-ng with stock; FULL=1
	@$(DEPS) upstream
	@FULL=$(FULL) tests/run --limit 5400 upstream

# The tests of faultline-ab and faultline-boot, which FULL=1 repeats with busybox ash.
TWO_SHELLS = $(filter-out %-lib %-killed %-vm,$(basename $(wildcard tests/rollout/ab-*.sh tests/rollout/boot-*.sh)))

# make release runs it.
.PHONY: test-full
test-full: deps tree ## what `make test` leaves out: benchmarks in VMs, a second shell, more configurations
	@FULL=1 tests/run kernel/bench $(TWO_SHELLS:tests/%=%) build/matrix

.PHONY: test-rollout
test-rollout: deps tree ## experiments on a fleet, simulated and on VMs; faultline-stalls on Debian's kernels and ours
	@tests/run rollout rollout/fleet rollout/stalls

.PHONY: test-images
test-images: deps tree ## install FLAVOUR=microvm, cloud or generic in VMs; FORMAT=deb or rpm, FULL=1
	@FLAVOUR=$(SMALL) FULL=$(FULL) tests/run --limit 3600 $(if $(FORMAT),\
		hosts/images/$(FORMAT)-lifecycle hosts/failures/$(FORMAT),hosts/images hosts/failures)

# Not a target to call.
is-shipped:
ifneq ($(filter-out generic cloud,$(FLAVOUR)),)
	@echo 'make: error: FLAVOUR=$(FLAVOUR) is not shipped: say generic or cloud, or leave it out to test both' >&2; exit 1
endif

.PHONY: test-release
test-release: is-shipped deps tree ## what is shipped: generic and cloud, or FLAVOUR, in VMs, with DKMS, BTF, dumps; takes hours
	@set -e; for flavour in $(or $(FLAVOUR),generic cloud); do \
		FLAVOUR=$$flavour FULL=$(FULL) tests/run --limit 7200 \
			hosts/images hosts/failures hosts/release; done
	@tests/run hosts/signing

.PHONY: lint
lint: test-lint ## check the style and consistency of all tracked files

# --- Cleaning

.PHONY: clean
clean: ## remove build output; keep branch, downloads and compiler cache
	@tools/fl clean

.PHONY: distclean
distclean: ## remove everything generated, including the kernel branch
	@tools/fl clean --all

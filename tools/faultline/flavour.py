# SPDX-License-Identifier: GPL-2.0-only
"""The flavours of the kernel: their definitions and configuration.

Used by configure, build and stage, and by tests that need a flavour's folder
or state.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from .common import ROOT, Fail, Paths, call, shown, write_atomic
from .release import changelog
from .source import debian_config

# The environment section of the programs' --help.
ENVIRONMENT = """\
environment:
  REBUILD=N           the Nth build of one release: -faultline1.N, in its own folder
  KERNEL_TREE=path    a kernel source with overlay and patches applied, instead of build/tree;
                      need not be a git tree (used by source packages)
  BASE_CONFIGS=path   folder with the Debian configurations that flavours are based on,
                      instead of those in the pinned linux-config package
  SOURCE_DATE_EPOCH   the date in the kernel's banner, instead of the date in CHANGELOG
  BUILD=folder        folder for everything generated (default: build/)
"""

PATHS = Paths.from_env()
FRAGMENTS = PATHS.kernel / "config"
KERNEL_TREE = (pathlib.Path(os.environ["KERNEL_TREE"]).absolute()
               if os.environ.get("KERNEL_TREE") else None)
LOGS = PATHS.build / "log"


@dataclasses.dataclass(frozen=True)
class Arch:
    """The architecture that a kernel is built for."""

    # ARCH= and CROSS_COMPILE= for the kernel's make; empty: a native build.
    name: str = ""
    cross: str = ""
    # The make target of the bootable image, and its path below O=.
    target: str = "bzImage"
    image: str = "arch/x86/boot/bzImage"
    # The names that Debian and rpm have for it.
    debian: str = "amd64"
    rpm: str = "x86_64"
    # e_machine in the header of its programs.
    elf_machine: int = 62
    # The group of packaging/build-deps with its compiler.
    deps: str = ""
    # The name of the image in the stage, and in /boot before the release, as Debian's.
    boot: str = "vmlinuz"
    # The boot loaders that read Debian's hooks or menu, for Suggests.
    loaders: str = "grub-pc | grub-efi-amd64 | systemd-boot | extlinux"
    # Whether its firmware is UEFI: kernels can be signed for it, and rpm's hosts have it.
    uefi: bool = True

    @property
    def multiarch(self) -> str:
        """Debian's folder of its libraries, if it is not the host's."""
        return self.cross.rstrip("-")

    @property
    def selftests(self) -> str:
        """The folder of its selftests below build/."""
        return f"selftests-{self.rpm}" if self.name else "selftests"

    @property
    def variables(self) -> dict[str, str]:
        """The variables to pass to make."""
        return {"ARCH": self.name, "CROSS_COMPILE": self.cross} if self.name else {}


X86 = Arch()
PPC64LE = Arch("powerpc", "powerpc64le-linux-gnu-", target="vmlinux", image="vmlinux",
               debian="ppc64el", rpm="ppc64le", elf_machine=21, deps="ppc64le",
               # Its boot loaders read no other format.
               boot="vmlinux", loaders="grub-ieee1275", uefi=False)
ARM64 = Arch("arm64", "aarch64-linux-gnu-", target="Image", image="arch/arm64/boot/Image",
             debian="arm64", rpm="aarch64", elf_machine=183, deps="arm64",
             loaders="grub-efi-arm64 | systemd-boot | extlinux")
# By Debian's name.
ARCHES = {arch.debian: arch for arch in (X86, PPC64LE, ARM64)}


@dataclasses.dataclass(frozen=True)
class Flavour:
    """One row of the table: fragments (last wins) on one of the two trees."""

    name: str
    fragments: tuple[str, ...]
    # Appended to the release.  In our tree, the file localversion-faultline
    # puts -faultlineN before it; stock does not have that file.
    localversion: str = ""
    stock: bool = False
    # The kernel of kernel/upstream-peer, unchanged.
    peer: bool = False
    # The Debian configuration that the fragments modify; if empty, every option
    # that they do not name is off.
    base: str = ""
    arch: Arch = X86
    # The flavour that its packages and KVER name, if it is not its own: packages of
    # several architectures have the same names.
    package: str = ""
    # N of REBUILD=N.
    rebuild: str = ""

    @property
    def tree(self) -> pathlib.Path:
        """The source tree."""
        if self.peer:
            return PATHS.peer
        if self.stock:
            return PATHS.stock
        return KERNEL_TREE or PATHS.tree

    @property
    def packaged(self) -> str:
        """The flavour that its packages name."""
        return self.package or self.name

    @property
    def out_name(self) -> str:
        """The name of its folders below build/."""
        return f"{self.name}.{self.rebuild}" if self.rebuild else self.name

    @property
    def out(self) -> pathlib.Path:
        """The O= folder."""
        return PATHS.build / self.out_name

    @property
    def lock(self) -> pathlib.Path:
        """The lock for writing to the O= folder."""
        return self.out / ".faultline.lock"

    @property
    def image(self) -> pathlib.Path:
        """The bootable image."""
        return self.out / self.arch.image

    @property
    def config(self) -> pathlib.Path:
        """The configuration in use."""
        return self.out / ".config"


FAULTLINE = ("faultline.config", "faultline-hugetlb.config")
DISTRIBUTION = (*FAULTLINE, "distribution.config")
# Guests for tests on other architectures.
PPC64LE_GUEST = ("guest.config", "flavour-ppc64le.config")
ARM64_GUEST = ("guest.config", "flavour-microvm-arm64.config")
ARM64_TESTS = ("faultline.config", "faultline-arm64.config", "kunit.config")

FLAVOURS = {flavour.name: flavour for flavour in (
    Flavour("microvm", ("flavour-microvm.config", *FAULTLINE), ".microvm"),
    Flavour("microvm-debug",
            ("flavour-microvm.config", *FAULTLINE, "kunit.config", "debug.config"), "-debug"),
    Flavour("microvm-kcsan", ("flavour-microvm.config", *FAULTLINE, "kcsan.config"), "-kcsan"),
    # For tests of BPF programs.
    Flavour("microvm-btf", ("flavour-microvm.config", *FAULTLINE, "btf.config"), "-btf"),
    # For the benchmark workloads: allocations by where they are made.
    Flavour("microvm-trace", ("flavour-microvm.config", *FAULTLINE, "trace.config"), "-trace"),
    # The two whose object code the suite `build` compares: ours switched off, and upstream
    # (allnoconfig is the base, so options that are not named are off).
    Flavour("microvm-off", ("flavour-microvm.config",), "-off"),
    Flavour("microvm-stock", ("flavour-microvm.config",), "-stock", stock=True),
    # The newest upstream kernel, for benchmarks.
    Flavour("microvm-peer", ("flavour-microvm.config", "peer.config"), "-peer", stock=True,
            peer=True),
    Flavour("generic", (*DISTRIBUTION, "flavour-generic.config"), ".generic",
            base="config.amd64_none_amd64"),
    Flavour("cloud", (*DISTRIBUTION, "flavour-cloud.config"), ".cloud",
            base="config.amd64_none_cloud-amd64"),
    # Without faultline-ppc64le.config, whose options are for tests.
    Flavour("powerpc64le", ("faultline.config", "distribution.config",
                            "flavour-powerpc64le.config"), ".powerpc64le",
            base="config.ppc64el_none_powerpc64le", arch=PPC64LE),
    Flavour("generic-arm64", (*DISTRIBUTION, "flavour-generic-arm64.config"), ".generic",
            base="config.arm64_none_arm64", arch=ARM64, package="generic"),
    # For tests of signed modules.
    Flavour("tiny", ("flavour-tiny.config", "distribution.config"), ".tiny"),
    Flavour("tiny-arm64", ("flavour-tiny.config", "flavour-tiny-arm64.config",
                           "distribution.config"), ".tiny", arch=ARM64, package="tiny"),
    Flavour("ppc64le", (*PPC64LE_GUEST, "faultline.config", "faultline-ppc64le.config",
                        "kunit.config"), "-ppc64le", arch=PPC64LE),
    Flavour("ppc64le-stock", PPC64LE_GUEST, "-ppc64le-stock", stock=True, arch=PPC64LE),
    Flavour("microvm-arm64", (*ARM64_GUEST, *ARM64_TESTS, "faultline-hugetlb.config"),
            "-arm64", arch=ARM64),
    # No page tables are shared there.
    Flavour("microvm-arm64-64k", (*ARM64_GUEST, "arm64-64k.config", *ARM64_TESTS),
            "-arm64-64k", arch=ARM64),
    Flavour("microvm-arm64-va52", (*ARM64_GUEST, "arm64-va52.config", *ARM64_TESTS,
                                   "faultline-hugetlb.config"), "-arm64-va52", arch=ARM64),
    Flavour("microvm-arm64-debug", (*ARM64_GUEST, *ARM64_TESTS, "faultline-hugetlb.config",
                                    "debug.config"), "-arm64-debug", arch=ARM64),
    Flavour("microvm-arm64-stock", ARM64_GUEST, "-arm64-stock", stock=True, arch=ARM64),
    # For benchmarks: without the checks and the test options.
    Flavour("microvm-arm64-bench", (*ARM64_GUEST, "unchecked.config", *FAULTLINE),
            "-arm64-bench", arch=ARM64),
    Flavour("microvm-arm64-bench-stock", (*ARM64_GUEST, "unchecked.config"),
            "-arm64-bench-stock", stock=True, arch=ARM64),
    # As microvm for amd64: hosts install its packages and boot it from their disks.
    Flavour("microvm-arm64-host", (*ARM64_GUEST, "unchecked.config", "host.config", *FAULTLINE),
            ".microvm", arch=ARM64, package="microvm"),
)}


def packed_bases() -> list[str]:
    """The Debian configurations that source packages carry: those of the flavours they build."""
    return sorted({flavour.base for flavour in FLAVOURS.values()
                   if flavour.base and flavour.arch == X86})


# The purpose of flavours with packages, for the packages' descriptions.
AUDIENCE = {
    "generic": "runs on bare metal and in virtual machines",
    "powerpc64le": "is for POWER8 and later, bare metal and partitions",
    "cloud": "is for virtual machines of the large clouds and leaves out most drivers",
    "microvm": "is for tests in small virtual machines",
}


def with_packages(arch: Arch) -> list[Flavour]:
    """The flavours for an architecture that have packages."""
    return [flavour for flavour in FLAVOURS.values()
            if flavour.arch == arch and flavour.packaged in AUDIENCE]


def meta_suffix(flavour: str) -> str:
    """The suffix of the metapackages; generic has none."""
    return "" if flavour == "generic" else f"-{flavour}"


def find(name: str, rebuild: str | None = None) -> Flavour:
    """Look up a flavour by name and rebuild; REBUILD= is the default for the latter."""
    if name not in FLAVOURS:
        raise Fail(f"no flavour '{name}'; flavours are: {' '.join(FLAVOURS)}")
    flavour = FLAVOURS[name]
    if rebuild is None:
        rebuild = os.environ.get("REBUILD", "")
    if not rebuild:
        return flavour
    if not re.fullmatch(r"[1-9]\d{0,3}", rebuild):
        raise Fail(f"REBUILD={rebuild} must be a number from 1 to 9999: leave it unset for the "
                   "first build of a release, and count from 2")
    return dataclasses.replace(flavour, rebuild=rebuild,
                               localversion=f".{rebuild}{flavour.localversion}")


def environment() -> dict[str, str]:
    """The environment of build commands.

    It has only what they need: a stray ARCH, KCFLAGS, LOCALVERSION or GIT_DIR, or
    the MAKEFLAGS of our own Makefile, would build a different kernel.
    """
    keep = ("PATH", "HOME", "TMPDIR", "USER")
    env = {key: value for key, value in os.environ.items()
           if key in keep or key.startswith("CCACHE_")}
    env["LC_ALL"] = "C"
    env.setdefault("CCACHE_DIR", str(PATHS.cache / "ccache"))
    env.setdefault("CCACHE_MAXSIZE", "4G")
    # Trust the compiler's list of headers: otherwise, filling an empty cache
    # preprocesses each file twice and takes 1.7 times the CPU time.
    env.setdefault("CCACHE_DEPEND", "1")
    # We have no Rust code, and Kconfig would record the version of any rustc on
    # PATH: the image would differ from machine to machine.
    env["MAKEFLAGS"] = "RUSTC=false BINDGEN=false"
    # No CCACHE_BASEDIR: it makes source names relative, which bypasses the
    # kernel's -fmacro-prefix-map, and each __FILE__ would change.
    return env


def output(*command: str | pathlib.Path) -> str:
    """The standard output of a command that must succeed."""
    return call(*command, env=environment(),
                what=f"'{' '.join(map(str, command))}' failed").decode()


@dataclasses.dataclass(frozen=True)
class TreeState:
    """The commit of a source tree and the tracked files that differ from it."""

    head: str
    dirty: tuple[str, ...]


def tree_state(flavour: Flavour) -> TreeState:
    """Get the state of the flavour's source tree; cheap (0.1 s)."""
    tree = flavour.tree
    if not (tree / "Makefile").exists():
        command = ("tools/fl tree --peer" if flavour.peer else
                   "tools/fl tree --stock" if flavour.stock else "make tree")
        raise Fail(f"no kernel tree at {shown(tree)}: run '{command}'")
    if tree == KERNEL_TREE:
        # There is no way to tell what has changed in it, so make has to check.
        return TreeState("KERNEL_TREE", ("anything",))
    if not (tree / ".git").exists():
        raise Fail(f"{shown(tree)} is not a git work tree: remove it, then run 'make tree'")
    head = output("git", "-C", tree, "rev-parse", "HEAD").strip()
    # Untracked files are ignored (listing them takes five times as long): they
    # only matter if a tracked Makefile or source names them.
    status = output("git", "-C", tree, "status", "--porcelain", "--untracked-files=no")
    return TreeState(head, tuple(line[3:] for line in status.splitlines()))


def compiler(flavour: Flavour) -> str:
    """The versions of compiler and linker; those of a cross compiler first, then the host's."""
    cross = flavour.arch.cross
    if cross and not shutil.which(f"{cross}gcc"):
        raise Fail(f"{cross}gcc is not installed: run 'packaging/build-deps/install "
                   f"{flavour.arch.deps}'")
    tools = dict.fromkeys(prefix + tool for prefix in (cross, "") for tool in ("gcc", "ld"))
    return "; ".join(output(tool, "--version").splitlines()[0] for tool in tools)


def host_tools(flavour: Flavour) -> str:
    """Versions of the other host tools that Kconfig looks at; "none" if a tool is missing."""
    tools = (f"{flavour.arch.cross}as", "pahole")
    return "; ".join(output(tool, "--version").splitlines()[0] if shutil.which(tool) else "none"
                     for tool in tools)


def tool(flavour: Flavour, name: str) -> str:
    """The name of one of binutils, such as strip."""
    return f"{flavour.arch.cross}{name}"


def cc(flavour: Flavour) -> str:
    """The value of CC= for the build."""
    return f"{'ccache ' if shutil.which('ccache') else ''}{flavour.arch.cross}gcc"


def debug_flags(flavour: Flavour) -> list[str]:
    """The variables of make that keep the paths of the build out of debug information.

    The build ID of a kernel is a hash of that as well.  ccache knows the option.
    """
    if read_config(flavour.config).get("DEBUG_INFO") != "y":
        return []
    flags = f"-fdebug-prefix-map={flavour.tree}=. -fdebug-prefix-map={flavour.out}=."
    return [f"KCFLAGS={flags}", f"KAFLAGS={flags}"]


def digest(*parts: bytes | str) -> str:
    """One hash over all parts."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(b"%d:" % len(data) + data)
    return total.hexdigest()


class State:
    """The state of a flavour's folder, kept in .faultline.json."""

    def __init__(self, flavour: Flavour) -> None:
        self._path = flavour.out / ".faultline.json"
        try:
            self.data = json.loads(self._path.read_text())
        except (FileNotFoundError, ValueError):
            self.data = {}

    def save(self) -> None:
        """Write it to disk."""
        write_atomic(self._path, json.dumps(self.data, indent=1).encode() + b"\n")


def source_date_epoch() -> int:
    """The date of the release, in seconds since 1970: that of the newest CHANGELOG entry."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        if not epoch.isdigit():
            raise Fail(f"SOURCE_DATE_EPOCH={epoch} is not a number of seconds since 1970: unset it")
        return int(epoch)
    return int(changelog(ROOT / "CHANGELOG")[0].date.timestamp())


# --- Configuration

SET = re.compile(r"CONFIG_(\w+)=(.+)")
# A typo here would turn a request into a comment.
NEARLY = re.compile(r"#\s*CONFIG_\w+\s*(=|is\s+not\b)")
UNSET = re.compile(r"# CONFIG_(\w+) is not set")


def read_fragment(path: pathlib.Path) -> dict[str, tuple[str, int]]:
    """Parse a fragment strictly: symbols, each with its value and line."""
    found: dict[str, tuple[str, int]] = {}
    if not path.exists():
        raise Fail(f"no fragment {shown(path)}")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{shown(path)}:{number}"
        if match := SET.fullmatch(line):
            symbol, value = match.groups()
            if value == "n":
                raise Fail(f"{where}: write '# CONFIG_{symbol} is not set'")
        elif match := UNSET.fullmatch(line):
            symbol, value = match[1], "n"
        elif line == "" or line.startswith("#") and not NEARLY.match(line):
            continue
        else:
            raise Fail(f"{where}: write CONFIG_X=value, '# CONFIG_X is not set' or a comment")
        if symbol in found:
            raise Fail(f"{where}: CONFIG_{symbol} is already set in line {found[symbol][1]}")
        found[symbol] = (value, number)
    return found


def read_config(path: pathlib.Path) -> dict[str, str]:
    """The symbols of a .config; missing ones are 'n'."""
    return {match[1]: match[2] for line in path.read_text().splitlines()
            if (match := SET.fullmatch(line))}


def kconfig_symbols(tree: pathlib.Path) -> set[str]:
    """All symbols that the Kconfig files of a tree define."""
    # grep takes 0.1 s, Python a second.
    line = r"^[[:space:]]*(menu)?config[[:space:]]+[A-Za-z0-9_]+"
    if tree == KERNEL_TREE:
        text = output("grep", "-rhE", "--include=*Kconfig*", line, tree)
    else:
        text = output("git", "-C", tree, "grep", "-hE", "--untracked", "--no-exclude-standard",
                      line, "--", "*Kconfig*")
    return {line.split()[1] for line in text.splitlines()}


def check_symbols(flavour: Flavour) -> dict[str, tuple[str, str]]:
    """Lint the fragments and return the wanted symbols, each with value and location."""
    known = kconfig_symbols(flavour.tree)
    wanted: dict[str, tuple[str, str]] = {}
    for name in flavour.fragments:
        for symbol, (value, number) in read_fragment(FRAGMENTS / name).items():
            where = f"{shown(FRAGMENTS / name)}:{number}"
            if symbol not in known and flavour.peer:
                print(f"note: {where}: the peer has no CONFIG_{symbol}", file=sys.stderr)
                continue
            if symbol not in known:
                raise Fail(f"{where}: no Kconfig file in {shown(flavour.tree)} "
                           f"defines CONFIG_{symbol}")
            wanted[symbol] = (value, where)
    return wanted


def kconfig_state(flavour: Flavour, state: TreeState) -> str | None:
    """A digest of the Kconfig files; None while they are being edited."""
    if flavour.tree == KERNEL_TREE or any(
            "Kconfig" in name or "kconfig" in name for name in state.dirty):
        return None
    return digest(output("git", "-C", flavour.tree, "ls-files", "-s", "--",
                         "*Kconfig*", "scripts/kconfig", "scripts/*.include"))


def configure(flavour: Flavour, tree: TreeState) -> bool:
    """Bring the flavour's .config up to date; return True if it changed.

    The caller holds the lock.  On error the old .config is kept.
    """
    state = State(flavour)
    base = base_config(flavour)
    sources = [*([base] if base else []), *(FRAGMENTS / name for name in flavour.fragments)]
    fragments = digest(*(path.read_bytes() if path.exists() else b"" for path in sources))
    then = state.data.get("config", {})
    if then.get("head") == tree.head and not tree.dirty:
        kconfig = then.get("kconfig")
    else:
        kconfig = kconfig_state(flavour, tree)
    now = {"head": tree.head, "kconfig": kconfig, "fragments": fragments,
           "compiler": compiler(flavour), "tools": host_tools(flavour),
           "make": environment()["MAKEFLAGS"], "result": None}
    if flavour.config.exists():
        now["result"] = digest(flavour.config.read_bytes())
    if kconfig and {**now, "head": ""} == {**then, "head": ""}:
        if now != then:
            state.data["config"] = now
            state.save()
        return False

    wanted = check_symbols(flavour)
    new = flavour.out / ".config.new"
    log = LOGS / f"{flavour.name}-config.log"
    LOGS.mkdir(parents=True, exist_ok=True)
    merge_config(flavour, base, new, log)
    got = read_config(new)
    lost = [(symbol, value, where, got.get(symbol, "n"))
            for symbol, (value, where) in wanted.items() if got.get(symbol, "n") != value]
    if flavour.peer:
        # Its options are others: say which, and go on.
        for symbol, value, where, have in lost:
            print(f"note: {where}: CONFIG_{symbol}: wanted {value}, the peer has {have}",
                  file=sys.stderr)
    elif lost:
        new.unlink()
        for symbol, value, where, have in lost[1:]:
            print(f"{where}: CONFIG_{symbol}: wanted {value}, got {have}", file=sys.stderr)
        symbol, value, where, have = lost[0]
        raise Fail(f"{where}: CONFIG_{symbol} did not take effect: wanted {value}, got {have}"
                   f" ({'and ' + str(len(lost) - 1) + ' more above; ' if lost[1:] else ''}"
                   "is a dependency missing, or does another option select it?)")
    changed = not flavour.config.exists() or new.read_bytes() != flavour.config.read_bytes()
    if changed:
        new.replace(flavour.config)
    else:
        new.unlink()
    state.data["config"] = {**now, "result": digest(flavour.config.read_bytes())}
    state.save()
    return changed


def base_config(flavour: Flavour) -> pathlib.Path | None:
    """The Debian configuration that the flavour is based on."""
    if not flavour.base:
        return None
    if folder := os.environ.get("BASE_CONFIGS"):
        path = pathlib.Path(folder) / flavour.base
        if not path.is_file():
            raise Fail(f"BASE_CONFIGS={folder} has no {flavour.base}, which flavour "
                       f"{flavour.name} is based on")
        return path.absolute()
    return debian_config(PATHS, flavour.base)


def merge_config(flavour: Flavour, base: pathlib.Path | None, target: pathlib.Path,
                 log: pathlib.Path) -> None:
    """Run the kernel's own merge on the base, or on allnoconfig."""
    merged = target.with_name(f"{target.name}.merged")
    # It only merges: it would also look up each of ten thousand options with several programs,
    # which takes minutes; configure() checks those of the fragments.  It runs in the source
    # tree; the kernel's .gitignore covers the temporary files that it makes there.
    merge = ["scripts/kconfig/merge_config.sh", "-m",
             "-O", str(flavour.out), *([str(base)] if base else []),
             *(str(FRAGMENTS / name) for name in flavour.fragments)]
    make = ["make", f"O={flavour.out}", f"KCONFIG_ALLCONFIG={merged}",
            "alldefconfig" if base else "allnoconfig"]
    env = environment() | flavour.arch.variables
    with open(log, "w", encoding="utf-8") as sink:
        done = all(subprocess.run(
            command, cwd=flavour.tree, env=env | {"KCONFIG_CONFIG": str(result)},
            stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
            check=False).returncode == 0 for command, result in ((merge, merged), (make, target)))
    for name in (".old", ".merged"):
        target.with_name(f"{target.name}{name}").unlink(missing_ok=True)
    if not done or not target.exists():
        target.unlink(missing_ok=True)
        raise Fail(f"the configuration was not made, see {shown(log)}")

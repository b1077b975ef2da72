# SPDX-License-Identifier: GPL-2.0-only
"""Flavours of the kernel: what they are made of, and how they are configured.

Used by kernel/scripts/configure, build and stage, and by tests that need a
flavour's folder or state.
"""
from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from sourcelib.common import Fail, Paths, shown, write_atomic
from sourcelib.source import debian_config

# What `--help` of the programs says of the environment.
ENVIRONMENT = """\
environment:
  REBUILD=N           the N-th build of one release: -faultline1.N, in a folder of its own
  KERNEL_TREE=path    a kernel source with overlay and patches in it, instead of build/tree;
                      it needs no git (source packages build so)
  BASE_CONFIGS=path   folder with the configurations of Debian that flavours are based on,
                      instead of those of the pinned linux-config package
  SOURCE_DATE_EPOCH   the date in the kernel's banner, instead of that of the CHANGELOG
  BUILD=folder        everything generated goes there (default: build/)
"""

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATHS = Paths.from_env()
FRAGMENTS = PATHS.kernel / "config"
KERNEL_TREE = (pathlib.Path(os.environ["KERNEL_TREE"]).absolute()
               if os.environ.get("KERNEL_TREE") else None)
LOGS = PATHS.build / "log"


@dataclasses.dataclass(frozen=True)
class Arch:
    """What a kernel is built for."""

    # ARCH= and CROSS_COMPILE= of the kernel's make; none: as the host.
    name: str = ""
    cross: str = ""
    # The make target of what boots, and where that is below O=.
    target: str = "bzImage"
    image: str = "arch/x86/boot/bzImage"

    @property
    def variables(self) -> dict[str, str]:
        """What make has to be told."""
        return {"ARCH": self.name, "CROSS_COMPILE": self.cross} if self.name else {}


X86 = Arch()
PPC64LE = Arch("powerpc", "powerpc64le-linux-gnu-", target="vmlinux", image="vmlinux")


@dataclasses.dataclass(frozen=True)
class Flavour:
    """One row of the table: fragments (last wins) on one of the two trees."""

    name: str
    fragments: tuple[str, ...]
    # Appended to the release.  Ours starts with the -faultlineN that the file
    # localversion-faultline gives our tree; stock has nothing of that.
    localversion: str = ""
    stock: bool = False
    # The configuration of Debian's that the fragments change; else everything
    # that they do not name is off.
    base: str = ""
    arch: Arch = X86
    # The N of a rebuild.
    rebuild: str = ""

    @property
    def tree(self) -> pathlib.Path:
        """The source tree it is built from."""
        if self.stock:
            return PATHS.stock
        return KERNEL_TREE or PATHS.tree

    @property
    def out_name(self) -> str:
        """What its folders below build/ are called."""
        return f"{self.name}.{self.rebuild}" if self.rebuild else self.name

    @property
    def out(self) -> pathlib.Path:
        """The O= folder."""
        return PATHS.build / self.out_name

    @property
    def lock(self) -> pathlib.Path:
        """Held by whoever writes into the O= folder."""
        return self.out / ".faultline.lock"

    @property
    def image(self) -> pathlib.Path:
        """What boots."""
        return self.out / self.arch.image

    @property
    def config(self) -> pathlib.Path:
        """The configuration in force."""
        return self.out / ".config"


FAULTLINE_X86 = ("faultline.config", "faultline-x86.config")

FLAVOURS = {flavour.name: flavour for flavour in (
    Flavour("microvm", ("microvm.config", *FAULTLINE_X86)),
    Flavour("microvm-debug", ("microvm.config", *FAULTLINE_X86, "kunit.config", "debug.config"),
            "-debug"),
    Flavour("microvm-kcsan", ("microvm.config", *FAULTLINE_X86, "kcsan.config"), "-kcsan"),
    # The two that tests/build/objects compares: upstream, and ours switched
    # off (allnoconfig is the base, so what is not named is off).
    Flavour("microvm-off", ("microvm.config",), "-off"),
    Flavour("microvm-stock", ("microvm.config",), "-stock", stock=True),
    Flavour("cloud", (*FAULTLINE_X86, "cloud.config"), base="config.amd64_none_cloud-amd64"),
    Flavour("ppc64le", ("ppc64le.config", "faultline.config", "faultline-ppc64le.config",
                        "kunit.config"), "-ppc64le", arch=PPC64LE),
    Flavour("ppc64le-stock", ("ppc64le.config",), "-ppc64le-stock", stock=True, arch=PPC64LE),
)}


def find(name: str) -> Flavour:
    """The flavour of that name; of the rebuild that REBUILD= asks for."""
    if name not in FLAVOURS:
        raise Fail(f"no flavour '{name}'; flavours are: {' '.join(FLAVOURS)}")
    flavour, rebuild = FLAVOURS[name], os.environ.get("REBUILD", "")
    if not rebuild:
        return flavour
    if not re.fullmatch(r"[1-9]\d{0,3}", rebuild):
        raise Fail(f"REBUILD={rebuild} is no number from 1 to 9999: leave it out for the first "
                   "build of a release, and count from 2")
    return dataclasses.replace(flavour, rebuild=rebuild,
                               localversion=f".{rebuild}{flavour.localversion}")


def environment() -> dict[str, str]:
    """What commands run with.

    Only what they need: a stray ARCH, KCFLAGS, LOCALVERSION or GIT_DIR, or the
    MAKEFLAGS of our own Makefile, would make a kernel of another kind.
    """
    keep = ("PATH", "HOME", "TMPDIR", "USER")
    env = {key: value for key, value in os.environ.items()
           if key in keep or key.startswith("CCACHE_")}
    env["LC_ALL"] = "C"
    env.setdefault("CCACHE_DIR", str(PATHS.cache / "ccache"))
    env.setdefault("CCACHE_MAXSIZE", "4G")
    # Trust the compiler's own list of headers: without this, filling an empty
    # cache preprocesses each file twice and costs 1.7 times the CPU time.
    env.setdefault("CCACHE_DEPEND", "1")
    # Nothing of ours is written in Rust, and Kconfig would record the version of
    # a rustc that happens to be on PATH: another image on each machine.
    env["MAKEFLAGS"] = "RUSTC=false BINDGEN=false"
    # No CCACHE_BASEDIR: it rewrites source names to relative ones behind the
    # back of the kernel's -fmacro-prefix-map, and each __FILE__ would change.
    return env


def output(*command: str | pathlib.Path) -> str:
    """The standard output of a command that has to succeed."""
    try:
        return subprocess.run(command, env=environment(), check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout
    except FileNotFoundError:
        raise Fail(f"{command[0]} is not installed: run 'make deps'") from None
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip() or "no message").splitlines()[-1]
        raise Fail(f"'{' '.join(map(str, command))}' failed: {why}") from None


@dataclasses.dataclass(frozen=True)
class TreeState:
    """Commit of a source tree and the tracked files that differ from it."""

    head: str
    dirty: tuple[str, ...]


def tree_state(flavour: Flavour) -> TreeState:
    """Look at the flavour's source tree; cheap (0.1 s)."""
    tree = flavour.tree
    if not (tree / "Makefile").exists():
        raise Fail(f"no kernel tree at {shown(tree)}: "
                   f"run '{'kernel/scripts/tree --stock' if flavour.stock else 'make tree'}'")
    if tree == KERNEL_TREE:
        # Nobody can say what has changed in it, so make has to look.
        return TreeState("KERNEL_TREE", ("anything",))
    if not (tree / ".git").exists():
        raise Fail(f"{shown(tree)} is no git work tree: remove it, then run 'make tree'")
    head = output("git", "-C", tree, "rev-parse", "HEAD").strip()
    # Files that git does not track are not asked for (that takes five times
    # as long): to matter, a tracked Makefile or source has to name them.
    status = output("git", "-C", tree, "status", "--porcelain", "--untracked-files=no")
    return TreeState(head, tuple(line[3:] for line in status.splitlines()))


def compiler(flavour: Flavour) -> str:
    """Compiler and linker, as their versions name them; a cross compiler's, then the host's."""
    cross = flavour.arch.cross
    if cross and not shutil.which(f"{cross}gcc"):
        raise Fail(f"{cross}gcc is not installed: run 'packaging/build-deps/install ppc64le'")
    tools = dict.fromkeys(prefix + tool for prefix in (cross, "") for tool in ("gcc", "ld"))
    return "; ".join(output(tool, "--version").splitlines()[0] for tool in tools)


def host_tools(flavour: Flavour) -> str:
    """What Kconfig asks the host, besides compiler and linker; a missing tool is an answer."""
    tools = (f"{flavour.arch.cross}as", "pahole")
    return "; ".join(output(tool, "--version").splitlines()[0] if shutil.which(tool) else "none"
                     for tool in tools)


def cc(flavour: Flavour) -> str:
    """The CC= of the build."""
    return f"{'ccache ' if shutil.which('ccache') else ''}{flavour.arch.cross}gcc"


def digest(*parts: bytes | str) -> str:
    """One hash over parts."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(b"%d:" % len(data) + data)
    return total.hexdigest()


class State:
    """What is known about a flavour's folder; survives in .faultline.json."""

    def __init__(self, flavour: Flavour) -> None:
        self._path = flavour.out / ".faultline.json"
        try:
            self.data = json.loads(self._path.read_text())
        except (FileNotFoundError, ValueError):
            self.data = {}

    def save(self) -> None:
        """Keep it."""
        write_atomic(self._path, json.dumps(self.data, indent=1).encode() + b"\n")


def source_date_epoch() -> int:
    """The date of the release, in seconds since 1970: that of the newest CHANGELOG entry."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        if not epoch.isdigit():
            raise Fail(f"SOURCE_DATE_EPOCH={epoch} is no number of seconds since 1970: unset it")
        return int(epoch)
    changelog = ROOT / "CHANGELOG"
    newest = re.search(r"\b\d{4}-\d\d-\d\d\b", changelog.read_text(encoding="utf-8"))
    if not newest:
        raise Fail(f"{shown(changelog)} has no date (YYYY-MM-DD) for the kernel's banner: "
                   "add its newest entry, or set SOURCE_DATE_EPOCH")
    midnight = datetime.datetime.fromisoformat(f"{newest[0]}T00:00:00+00:00")
    return int(midnight.timestamp())


# --- Configuration

SET = re.compile(r"CONFIG_(\w+)=(.+)")
# A typing error here would turn a request into a comment.
NEARLY = re.compile(r"#\s*CONFIG_\w+\s*(=|is\s+not\b)")
UNSET = re.compile(r"# CONFIG_(\w+) is not set")


def read_fragment(path: pathlib.Path) -> dict[str, tuple[str, int]]:
    """Symbols of a fragment, each with its value and line; strict."""
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
            raise Fail(f"{where}: CONFIG_{symbol} is in line {found[symbol][1]} already")
        found[symbol] = (value, number)
    return found


def read_config(path: pathlib.Path) -> dict[str, str]:
    """Symbols of a .config; what is not in it is 'n'."""
    return dict(match.groups() for line in path.read_text().splitlines()
                if (match := SET.fullmatch(line)))


def kconfig_symbols(tree: pathlib.Path) -> set[str]:
    """All symbols that the Kconfig files of a tree define."""
    # grep takes 0.1 s for what costs Python a second.
    line = r"^[[:space:]]*(menu)?config[[:space:]]+[A-Za-z0-9_]+"
    if tree == KERNEL_TREE:
        text = output("grep", "-rhE", "--include=*Kconfig*", line, tree)
    else:
        text = output("git", "-C", tree, "grep", "-hE", "--untracked", "--no-exclude-standard",
                      line, "--", "*Kconfig*")
    return {line.split()[1] for line in text.splitlines()}


def check_symbols(flavour: Flavour) -> dict[str, tuple[str, str]]:
    """Lint the fragments; the symbols wanted, each with value and place."""
    known = kconfig_symbols(flavour.tree)
    wanted: dict[str, tuple[str, str]] = {}
    for name in flavour.fragments:
        for symbol, (value, number) in read_fragment(FRAGMENTS / name).items():
            where = f"{shown(FRAGMENTS / name)}:{number}"
            if symbol not in known:
                raise Fail(f"{where}: no Kconfig file of {shown(flavour.tree)} "
                           f"has CONFIG_{symbol}")
            wanted[symbol] = (value, where)
    return wanted


def kconfig_state(flavour: Flavour, state: TreeState) -> str | None:
    """What the meaning of a fragment depends on; None when it is being edited."""
    if flavour.tree == KERNEL_TREE or any(
            "Kconfig" in name or "kconfig" in name for name in state.dirty):
        return None
    return digest(output("git", "-C", flavour.tree, "ls-files", "-s", "--",
                         "*Kconfig*", "scripts/kconfig", "scripts/*.include"))


def configure(flavour: Flavour, tree: TreeState) -> bool:
    """Bring the flavour's .config up to date; True if it changed.

    The caller holds the lock.  On a fault the old .config stays.
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
    if lost:
        new.unlink()
        for symbol, value, where, have in lost[1:]:
            print(f"{where}: CONFIG_{symbol}: wanted {value}, got {have}", file=sys.stderr)
        symbol, value, where, have = lost[0]
        raise Fail(f"{where}: CONFIG_{symbol} did not take effect: wanted {value}, got {have}"
                   f" ({'and ' + str(len(lost) - 1) + ' more above; ' if lost[1:] else ''}"
                   "does something it depends on miss, or does something select it?)")
    changed = not flavour.config.exists() or new.read_bytes() != flavour.config.read_bytes()
    if changed:
        new.replace(flavour.config)
    else:
        new.unlink()
    state.data["config"] = {**now, "result": digest(flavour.config.read_bytes())}
    state.save()
    return changed


def base_config(flavour: Flavour) -> pathlib.Path | None:
    """The configuration of Debian's that the flavour starts from."""
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
    # It calls make in its working folder, so that is the source tree; the
    # temporary files it makes there are ignored by the kernel's .gitignore.
    command = ["scripts/kconfig/merge_config.sh", *([] if base else ["-n"]),
               "-O", str(flavour.out), *([str(base)] if base else []),
               *(str(FRAGMENTS / name) for name in flavour.fragments)]
    env = environment() | flavour.arch.variables | {"KCONFIG_CONFIG": str(target)}
    with open(log, "w", encoding="utf-8") as sink:
        status = subprocess.run(command, cwd=flavour.tree, env=env, stdin=subprocess.DEVNULL,
                                stdout=sink, stderr=subprocess.STDOUT, check=False).returncode
    target.with_name(f"{target.name}.old").unlink(missing_ok=True)
    if status != 0 or not target.exists():
        target.unlink(missing_ok=True)
        raise Fail(f"merge_config.sh failed, see {shown(log)}")

# SPDX-License-Identifier: GPL-2.0-only
"""Compile a flavour and lay out the contents of its packages.

The result, build/stage/FLAVOUR, serves both DEB and RPM:

  stage.env          names and versions, as KEY=value
  vmlinuz config System.map      (POWER: vmlinux, stripped; arm64: not compressed)
  modules/           /lib/modules/RELEASE, without the output of depmod
  headers/           for building external modules
  tools/             perf, unless it would have to be cross-compiled
  selftests/         the selftests of the features
  bench/             the measuring programs of faultline-bench
  stalls/            faultline-stalls, where there is perf
  debug/             vmlinux and modules with debug information, if the flavour has it
  doc/               pin, patches, configuration, CHANGELOG, bill of materials

All files have the date of the release, so that packages are reproducible.
The folder is replaced in one step; after a failure the previous one is kept.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import struct
import subprocess

from . import sbom
from .build import build
from .common import ROOT, Fail, lock, logged, say, shown
from .flavour import (ENVIRONMENT, FLAVOURS, LOGS, PATHS, X86, Flavour, cc, compiler, debug_flags,
                      digest, environment, find, output, read_config, source_date_epoch, tool,
                      tree_state, with_packages)
from .pin import Pin
from .release import Release
from .stage_env import image_name, make_env, write_env
from .sysroot import Sysroot, sysroot

# An ELF note: sizes of name and content, type NT_GNU_BUILD_ID, name; the SHA1 follows.
BUILD_ID_SIZE = 20
BUILD_ID_NOTE = struct.pack("<III4s", 4, BUILD_ID_SIZE, 3, b"GNU")
SELFTESTS = "tools/testing/selftests/mm/faultline"
BENCH = ("micro", "munmap", "survey")
BENCH_SELFTESTS = PATHS.kernel / "overlay" / SELFTESTS
BENCH_SOURCES = ROOT / "rollout/bench"
STALLS = ROOT / "rollout/stalls"
BENCH_COMMON = (BENCH_SOURCES / "bench_util.c", BENCH_SELFTESTS / "faultline_util.c")
# Warnings are errors where the programs are tested, not with every compiler.
BENCH_FLAGS = ("-D_GNU_SOURCE", "-D_FORTIFY_SOURCE=2", "-O2", "-Wall", "-fPIE", "-pie", "-pthread",
               "-fstack-protector-strong", "-Wl,-z,relro,-z,now,--build-id=none")
# perf with what an operator needs: symbols, call graphs, our tracepoints.
# Scripting languages, the graphical browser and other options are left out, so
# that the package depends on few libraries.
PERF = ("NO_LIBPYTHON=1", "NO_LIBPERL=1", "NO_GTK2=1", "NO_SLANG=1", "NO_LIBNUMA=1",
        "NO_LIBCRYPTO=1", "NO_LIBBABELTRACE=1", "NO_JVMTI=1", "NO_LIBCAP=1", "NO_LZMA=1",
        "NO_LIBUNWIND=1", "NO_LIBPFM4=1", "NO_SDT=1", "NO_LIBZSTD=1", "NO_DEMANGLE=1",
        "NO_LIBBPF=1", "BUILD_BPF_SKEL=0", "NO_LIBDEBUGINFOD=1", "NO_LIBLLVM=1", "NO_CAPSTONE=1",
        "WERROR=0")
PERF_LIBRARIES = ("libelf", "libdw", "zlib", "libtraceevent")


def run(title: str, log: pathlib.Path, *command: str | pathlib.Path) -> None:
    """Run a step whose output only matters if it fails."""
    logged(title, log, *command, env=environment())


def kbuild(flavour: Flavour, *words: str) -> list[str]:
    """The kernel's make, in the build folder.

    CC is the same as in the build, else everything counts as stale; HOSTCC as well, else the
    host programs in the headers are rebuilt.  They are if the architecture is another one.
    """
    host = [] if flavour.arch.cross else [f"HOSTCC={cc(flavour)}"]
    return ["make", "-C", str(flavour.tree), f"O={flavour.out}", "--no-print-directory",
            f"-j{os.cpu_count() or 1}", f"CC={cc(flavour)}", *host,
            *(f"{name}={value}" for name, value in flavour.arch.variables.items()),
            f"LOCALVERSION={flavour.localversion}", *debug_flags(flavour), *words]


def compile_kernel(flavour: Flavour) -> None:
    """Bring the O= folder up to date."""
    build(flavour, [flavour.arch.target, "modules"])
    if read_config(flavour.config).get("MODULES") != "y":
        raise Fail(f"flavour {flavour.name} has no modules (CONFIG_MODULES), so it cannot be "
                   "packaged: use generic or cloud")


def release_of(flavour: Flavour) -> str:
    """The output of `uname -r`."""
    return (flavour.out / "include/config/kernel.release").read_text(encoding="utf-8").strip()


def describe(flavour: Flavour) -> dict[str, str]:
    """The contents of stage.env."""
    release = Release.parse(release_of(flavour), flavour.packaged, f"flavour {flavour.name}")
    return make_env(release, flavour.packaged, source_date_epoch(),
                    read_config(flavour.config).get("DEBUG_INFO") == "y", flavour.arch)


def install_kernel(flavour: Flavour, stage: pathlib.Path, env: dict[str, str],
                   log: pathlib.Path) -> None:
    """Install image, symbols, configuration and modules."""
    kver, image = env["KVER"], stage / image_name(env)
    if flavour.arch.target == "vmlinux":
        # Most of the file is for debuggers.
        run("the image", log, tool(flavour, "strip"), "-o", image, flavour.image)
    else:
        shutil.copyfile(flavour.image, image)
    shutil.copyfile(flavour.config, stage / "config")
    shutil.copyfile(flavour.out / "System.map", stage / "System.map")
    scratch = stage / "scratch"
    run("modules_install", log, *kbuild(
        flavour, f"INSTALL_MOD_PATH={scratch}", "INSTALL_MOD_STRIP=1", "DEPMOD=true",
        "modules_install"))
    (scratch / "lib/modules" / kver).rename(stage / "modules")
    shutil.rmtree(scratch)
    for name in ("build", "source"):
        (stage / "modules" / name).unlink(missing_ok=True)


def elf_machine(path: pathlib.Path) -> int:
    """The machine of an executable ELF file; 0 for another file."""
    if path.is_symlink() or not path.is_file() or not os.access(path, os.X_OK):
        return 0
    with open(path, "rb") as file:
        head = file.read(20)
    return int.from_bytes(head[18:20], "little") if head[:4] == b"\x7fELF" else 0


def forget_build_id(path: pathlib.Path) -> None:
    """Zero the build ID; removing its section would make strip drop RELRO as well."""
    data = path.read_bytes()
    start = data.find(BUILD_ID_NOTE)
    if start >= 0:
        start += len(BUILD_ID_NOTE)
        path.write_bytes(data[:start] + bytes(BUILD_ID_SIZE) + data[start + BUILD_ID_SIZE:])


def install_headers(flavour: Flavour, stage: pathlib.Path, log: pathlib.Path) -> None:
    """Install the files that external modules need, by the kernel's list, and sign-file."""
    headers = stage / "headers"
    libraries, pkg_config = None, []
    if flavour.arch.cross:
        libraries = sysroot(PATHS, flavour.arch.debian, flavour.arch.multiarch)
        pkg_config = [f"HOSTPKG_CONFIG={libraries.pkg_config}"]
    run("the headers", log, *kbuild(
        flavour, *pkg_config, "run-command", "KBUILD_RUN_COMMAND="
        f"{flavour.tree}/scripts/package/install-extmod-build {headers}"))
    if libraries:
        cross_tools(flavour, headers, libraries, log)
    shutil.copyfile(flavour.config, headers / ".config")
    for path in list(headers.rglob("*")):
        # An intermediate file of a generated header; it contains build paths.
        if path.suffix == ".s":
            path.unlink()
        # So do the programs, in their debug data, which the build ID is a hash of.
        elif machine := elf_machine(path):
            if machine != flavour.arch.elf_machine:
                raise Fail(f"{path.relative_to(headers)} in the headers is not a program for "
                           f"{flavour.arch.debian}: see {shown(log)}")
            run("the headers", log, tool(flavour, "strip"), "--strip-unneeded", path)
            forget_build_id(path)
        elif path.is_symlink() and not path.resolve().is_relative_to(headers):
            raise Fail(f"{path.relative_to(headers)} in the headers points outside them: "
                       f"see {shown(log)}")


def cross_tools(flavour: Flavour, headers: pathlib.Path, libraries: Sysroot,
                log: pathlib.Path) -> None:
    """Compile the programs in the headers that install-extmod-build leaves as the host's."""
    # resolve_btfids needs a vmlinux with type information; the headers have no vmlinux.
    shutil.rmtree(headers / "tools/bpf", ignore_errors=True)
    objtool = headers / "tools/objtool/objtool"
    if not objtool.exists():
        return
    out = PATHS.build / f"objtool-{flavour.arch.debian}"
    cross = cc(flavour)
    overrides = " ".join(f'{name}="{value}"' for name, value in (
        ("CC", cross), ("LD", tool(flavour, "ld")), ("AR", tool(flavour, "ar"))))
    prefix = f"-O2 -ffile-prefix-map={flavour.tree}=. -ffile-prefix-map={out}=."
    out.mkdir(parents=True, exist_ok=True)
    # Its Makefile links with the compiler that makes fixdep, which runs here.
    run("objtool", log, "make", "-C", flavour.tree / "tools/objtool", f"O={out}",
        f"SRCARCH={flavour.arch.name}", f"HOSTARCH={flavour.arch.name}",
        f"HOST_OVERRIDES={overrides}",
        f"HOSTPKG_CONFIG={libraries.pkg_config}", f"KBUILD_HOSTCFLAGS={prefix}",
        f"{out}/objtool-in.o")
    libs = output(*libraries.pkg_config.split(), "--libs", "libelf").split()
    run("objtool", log, *cross.split(), "-o", objtool, out / "objtool-in.o",
        out / "libsubcmd/libsubcmd.a", *libs)


def install_debug(flavour: Flavour, stage: pathlib.Path, log: pathlib.Path) -> None:
    """Install the debug information, laid out like the modules."""
    debug = stage / "debug"
    debug.mkdir()
    # zlib is the one compression that crash, drgn and gdb all read.
    compress = "--compress-debug-sections=zlib"
    objcopy = tool(flavour, "objcopy")
    run("vmlinux", log, objcopy, compress, flavour.out / "vmlinux", debug / "vmlinux")
    modules = (flavour.out / "modules.order").read_text(encoding="utf-8").split()

    def one(name: str) -> None:
        module = (flavour.out / name).with_suffix(".ko")
        target = debug / "kernel" / module.relative_to(flavour.out)
        target.parent.mkdir(parents=True, exist_ok=True)
        run(f"the debug information of {name}", log, objcopy, "--only-keep-debug", compress,
            module, target.with_name(f"{target.name}.debug"))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(one, modules):
            pass


def install_perf(flavour: Flavour, tools: pathlib.Path, log: pathlib.Path) -> None:
    """Install perf."""
    missing = [name for name in PERF_LIBRARIES if subprocess.run(
        ["pkg-config", "--exists", name], check=False, env=environment()).returncode]
    if missing:
        raise Fail(f"perf needs the development files of {' '.join(missing)}: run 'make deps'")
    # perf's make does not notice changed options.
    out = PATHS.build / f"perf.{digest(*PERF)[:8]}"
    out.mkdir(parents=True, exist_ok=True)
    prefix = f"-ffile-prefix-map={flavour.tree}=. -ffile-prefix-map={out}=."
    # Its version must not depend on a repository that a source package does not have.
    run("perf", log, "env", "GIT_DIR=/nonexistent",
        "make", "-C", flavour.tree / "tools/perf", f"O={out}",
        f"-j{os.cpu_count() or 1}", *PERF, f"CC={cc(flavour)}", f"EXTRA_CFLAGS={prefix}",
        "perf")
    run("perf", log, "strip", "--strip-unneeded", "-o", tools / "perf", out / "perf")


def install_tools(flavour: Flavour, stage: pathlib.Path, perf: bool,
                  log: pathlib.Path) -> None:
    """Install perf, which is not cross-compiled, and the selftests."""
    tools = stage / "tools"
    tools.mkdir()
    if perf:
        install_perf(flavour, tools, log)
    for name in ("faultline-perf", "faultline-perf.1"):
        shutil.copyfile(ROOT / "packaging/share" / name, tools / name)
    (tools / "faultline-perf").chmod(0o755)
    selftests = stage / "scratch"
    selftests.mkdir()
    run("the selftests", log, "make", "-C", flavour.tree / SELFTESTS, f"OUTPUT={selftests}",
        *(f"{name}={value}" for name, value in flavour.arch.variables.items()),
        f"USERCFLAGS=-ffile-prefix-map={flavour.tree}=.")
    target = stage / "selftests"
    target.mkdir()
    for path in sorted(selftests.iterdir()):
        if path.is_file() and os.access(path, os.X_OK):
            run("the selftests", log, tool(flavour, "strip"), "--strip-unneeded", "-o",
                target / path.name, path)
    shutil.rmtree(selftests)
    shutil.copyfile(ROOT / "packaging/share/run-selftests", target / "run")
    (target / "run").chmod(0o755)


def install_bench(flavour: Flavour, stage: pathlib.Path, log: pathlib.Path) -> None:
    """Install what faultline-bench runs; the same bytes in each flavour.

    dh_strip would remove these sections.
    """
    bench = stage / "bench"
    bench.mkdir()
    for name in BENCH:
        run("the programs of faultline-bench", log, *cc(flavour).split(), *BENCH_FLAGS,
            f"-ffile-prefix-map={ROOT}=.", f"-I{BENCH_SOURCES}", f"-I{BENCH_SELFTESTS}",
            "-o", bench / name, BENCH_SOURCES / f"{name}.c", *BENCH_COMMON)
        run("the programs of faultline-bench", log, tool(flavour, "strip"),
            "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", bench / name)


def install_stalls(flavour: Flavour, stage: pathlib.Path, log: pathlib.Path) -> None:
    """Install faultline-stalls, which reads registers of x86-64."""
    stalls = stage / "stalls"
    stalls.mkdir()
    scratch = stage / "scratch"
    flags, linker = BENCH_FLAGS[:-1], BENCH_FLAGS[-1]
    run("faultline-stalls", log, "env", f"CC={cc(flavour)}",
        f"CFLAGS={' '.join(flag for flag in flags if flag != '-pthread')}", f"LDFLAGS={linker}",
        STALLS / "build.sh", scratch)
    run("faultline-stalls", log, tool(flavour, "strip"), "--strip-unneeded",
        "--remove-section=.comment", "--remove-section=.note", "-o", stalls / "faultline-stalls",
        scratch / "faultline-stalls")
    shutil.rmtree(scratch)


def install_doc(flavour: Flavour, stage: pathlib.Path, env: dict[str, str]) -> None:
    """Install the exact inputs of the kernel."""
    doc = stage / "doc"
    doc.mkdir()
    shutil.copyfile(PATHS.kernel / "upstream", doc / "upstream")
    shutil.copyfile(flavour.config, doc / "config")
    shutil.copyfile(ROOT / "CHANGELOG", doc / "CHANGELOG")
    shutil.copyfile(ROOT / "COPYING", doc / "COPYING")
    shutil.copytree(PATHS.kernel / "patches", doc / "patches")
    sbom.write(doc / "sbom.spdx.json", flavour, env)


def normalise(stage: pathlib.Path, epoch: int) -> None:
    """One date and two modes for all files."""
    for path in [stage, *stage.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def inputs(flavour: Flavour, env: dict[str, str]) -> str:
    """A digest of everything that determines the contents of the stage."""
    folders = [PATHS.kernel / "patches", PATHS.kernel / "overlay"]
    files = [flavour.config, flavour.image, pathlib.Path(__file__), ROOT / "CHANGELOG",
             *sorted((ROOT / "packaging/share").iterdir()),
             *sorted(BENCH_SOURCES.glob("*.[ch]")),
             STALLS / "build.sh", *sorted(STALLS.glob("*.[ch]")), ROOT / "sysctl/switches",
             pathlib.Path(sbom.__file__), PATHS.kernel / "upstream",
             flavour.out / "Module.symvers", flavour.out / "modules.order",
             *(path for folder in folders for path in sorted(folder.rglob("*"))
               if path.is_file())]
    # A module may have changed although the image did not.
    modules = (flavour.out / "modules.order").read_text(encoding="utf-8").split()
    stamps = [str((flavour.out / name).with_suffix(".ko").stat().st_mtime_ns) for name in modules]
    return digest(repr(env), repr(tree_state(flavour)), compiler(flavour),
                  *stamps,
                  *(part for path in files for part in (str(path).encode(), path.read_bytes())))


def inputs_file(stage: pathlib.Path) -> pathlib.Path:
    """The file with the digest of a stage's inputs."""
    return stage.with_name(f".{stage.name}.inputs")


def make_stage(flavour: Flavour) -> pathlib.Path:
    """Make the stage, unless it is up to date."""
    if flavour.stock:
        raise Fail("stock kernels come from their distribution: use generic or cloud")
    packed = [other.name for other in with_packages(flavour.arch)]
    if flavour.arch != X86 and not (flavour.base or flavour.package):
        raise Fail(f"there are no packages for {flavour.name}: "
                   + (f"use {' or '.join(packed)}" if packed else "it is for tests only"))
    compile_kernel(flavour)
    env = describe(flavour)
    target = PATHS.build / "stage" / flavour.out_name
    stage = target.with_name(f".{target.name}.part")
    log = LOGS / f"stage-{flavour.out_name}.log"
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock(target.parent / f".{flavour.out_name}.lock"):
        known, now = inputs_file(target), inputs(flavour, env)
        if target.exists() and known.exists() and known.read_text(encoding="ascii") == now:
            say(f"{flavour.out_name}: {shown(target)} is up to date")
            return target
        known.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        install_kernel(flavour, stage, env, log)
        install_headers(flavour, stage, log)
        install_tools(flavour, stage, env["PERF"] == "yes", log)
        install_bench(flavour, stage, log)
        if env["PERF"] == "yes":
            install_stalls(flavour, stage, log)
        if env["DEBUG"] == "yes":
            install_debug(flavour, stage, log)
        install_doc(flavour, stage, env)
        write_env(stage, env)
        normalise(stage, int(env["SOURCE_DATE_EPOCH"]))
        old = stage.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        stage.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        known.write_text(now, encoding="ascii")
    modules = sum(1 for path in (target / "modules").rglob("*.ko*"))
    say(f"{flavour.out_name}: {shown(target)}: {env['KVER']}, {modules} modules")
    return target


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flavour", help=", ".join(FLAVOURS))
    args = parser.parse_args()
    Pin.load(PATHS.kernel)
    make_stage(find(args.flavour))

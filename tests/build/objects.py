#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: GPL-2.0-only
"""CONFIG_FAULTLINE=n leaves the object code of existing files as upstream.

Compiles each C file that our patches touch, and some more that include the
headers they touch, once from upstream's tree (flavour microvm-stock) and once
from ours (microvm-off) with the same configuration, and compares the object
files: every loaded section byte by byte, its relocations, and the symbols
that the file exports.

Fixes that upstream lacks are in our kernel in every configuration: files that
they touch, or that include a header they touch, are compared with upstream's
tree plus the fixes.  A patch is a fix if its header says "Forwarded: no", that
is, if it is still to be sent upstream.

Two things may differ, because lines were added above them:
  - the line number in an entry of __bug_table (WARN and BUG);
  - names of local symbols, which may end in a line number or a counter.  A
    relocation against one is compared by the address that it points to.
"""
from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

from faultline.common import ROOT, Fail
from faultline.flavour import FLAVOURS, PATHS, check_symbols, environment, find, output, read_config
from faultline.patchqueue import series_names
from lib.tap import Tap
from lib.touched import configured, of_kernel, touched

# Users of the headers that we touch, compiled in any case.
ALWAYS = ("mm/memory.c", "mm/mmap.c", "mm/vma.c", "mm/mremap.c", "mm/madvise.c", "mm/vmstat.c",
          "kernel/fork.c", "kernel/sysctl.c", "ipc/shm.c", "fs/proc/task_mmu.c")

SHF_ALLOC = 2
SHT_NOBITS = 8
SHT_RELA = 4
SHT_SYMTAB = 2
STB_LOCAL = 0
STT_FUNC = 2


@dataclasses.dataclass(frozen=True)
class Section:
    """The properties of a section that must be equal."""

    flags: int
    kind: int
    size: int
    content: bytes
    relocations: tuple[tuple[int, int, object, int], ...]


@dataclasses.dataclass(frozen=True)
class Object:
    """An object file: loaded sections, exported names, functions by section."""

    sections: dict[str, Section]
    exported: frozenset[str]
    functions: dict[str, list[tuple[int, str]]]

    def near(self, section: str, offset: int) -> str:
        """An offset with the function that contains it."""
        before = [name for start, name in self.functions.get(section, []) if start <= offset]
        return f"{offset:#x} ({before[-1]})" if before else f"{offset:#x}"


def text(table: bytes, offset: int) -> str:
    """A name in a string table."""
    return table[offset:table.index(b"\0", offset)].decode()


def load(path: pathlib.Path) -> Object:
    """Read a 64-bit little-endian object file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise Fail(f"{path} is not a 64-bit little-endian ELF file")
    start, = struct.unpack_from("<Q", data, 0x28)
    entry, count, names_at = struct.unpack_from("<HHH", data, 0x3a)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * entry) for i in range(count)]

    def body(header: tuple[int, ...]) -> bytes:
        return b"" if header[1] == SHT_NOBITS else data[header[4]:header[4] + header[5]]

    strings = body(headers[names_at])
    names = [text(strings, header[0]) for header in headers]

    symbols: list[object] = []
    exported: set[str] = set()
    functions: dict[str, list[tuple[int, str]]] = {}
    for header in headers:
        if header[1] != SHT_SYMTAB:
            continue
        labels = body(headers[header[6]])
        for label, info, _, where, value, _ in struct.iter_unpack("<IBBHQQ", body(header)):
            name = text(labels, label)
            here = 0 < where < len(names)
            symbols.append((names[where], value) if here and info >> 4 == STB_LOCAL else name)
            if here and info >> 4 != STB_LOCAL:
                exported.add(name)
            if here and info & 15 == STT_FUNC:
                functions.setdefault(names[where], []).append((value, name))

    relocations: dict[int, list[tuple[int, int, object, int]]] = {}
    for header in headers:
        if header[1] == SHT_RELA:
            relocations[header[7]] = sorted(
                place(offset, info, addend, symbols)
                for offset, info, addend in struct.iter_unpack("<QQq", body(header)))

    found: dict[str, Section] = {}
    for index, header in enumerate(headers):
        if not header[2] & SHF_ALLOC:
            continue
        content = body(header)
        if names[index] == "__bug_table":
            content = without_lines(content)
        name = names[index]
        while name in found:
            name += "'"
        found[name] = Section(header[2], header[1], header[5], content,
                              tuple(relocations.get(index, ())))
    for group in functions.values():
        group.sort()
    return Object(found, frozenset(exported), functions)


def place(offset: int, info: int, addend: int, symbols: list[object]
          ) -> tuple[int, int, object, int]:
    """A relocation, with a local symbol replaced by its section and offset."""
    symbol = symbols[info >> 32]
    if isinstance(symbol, tuple):
        section, value = symbol
        return offset, info & 0xffffffff, section, value + addend
    return offset, info & 0xffffffff, symbol, addend


def without_lines(table: bytes) -> bytes:
    """__bug_table with the line numbers set to 0.

    x86's struct bug_entry: relative address of the code, relative address of
    the file name (both are relocations), 16-bit line, 16-bit flags.  Without
    CONFIG_DEBUG_BUGVERBOSE there is neither file nor line.
    """
    if "DEBUG_BUGVERBOSE" not in read_config(find("microvm-off").config):
        return table
    entry = struct.Struct("<iiHH")
    return b"".join(entry.pack(code, file, 0, flags)
                    for code, file, _, flags in entry.iter_unpack(table))


def differences(ours: pathlib.Path, theirs: pathlib.Path) -> list[str]:
    """Describe the differences between two objects."""
    our, their = load(ours), load(theirs)
    mine, stock = our.sections, their.sections
    if not any(section.size for name, section in stock.items() if name.startswith(".text")):
        return [f"{theirs} has no code: nothing was compared"]
    found = [f"{name} is exported by {'ours' if name in our.exported else 'upstream'} only"
             for name in sorted(our.exported ^ their.exported)]
    for name in sorted({*mine, *stock}):
        if name not in stock:
            found.append(f"{name}: only in ours")
        elif name not in mine:
            found.append(f"{name}: only in upstream's")
        elif mine[name].content != stock[name].content:
            at = next((i for i, (a, b) in enumerate(zip(mine[name].content, stock[name].content))
                       if a != b), mine[name].size)
            found.append(f"{name}: differs from {our.near(name, at)} on, upstream's "
                         f"{their.near(name, at)}; {mine[name].size} bytes, upstream's "
                         f"{stock[name].size}")
        elif mine[name].relocations != stock[name].relocations:
            at = next((a[0] for a, b in zip(mine[name].relocations, stock[name].relocations)
                       if a != b), mine[name].size)
            found.append(f"{name}: a relocation differs at {our.near(name, at)}")
        elif mine[name] != stock[name]:
            found.append(f"{name}: type, flags or size differ")
    return found


def fixes() -> list[pathlib.Path]:
    """Patches of ours that upstream lacks, in their order."""
    folder = PATHS.kernel / "patches"
    names = series_names((folder / "series").read_text(encoding="utf-8"))
    return [path for path in map(folder.joinpath, names)
            if re.search(r"(?m)^Forwarded: no\b", path.read_text(encoding="utf-8"))]


def fixed_files() -> set[str]:
    """C files and headers of the kernel itself that the fixes touch."""
    names = {name for path in fixes()
             for name in re.findall(r"(?m)^\+\+\+ b/(.*\.[ch])$", path.read_text(encoding="utf-8"))}
    return {name for name in names if of_kernel(name)}


def fixed_objects(objects: list[str]) -> list[str]:
    """The objects, compiled from upstream's tree, that the fixes may change."""
    files = fixed_files()
    # Each dependency is one word, with or without the folder of the tree.
    wanted = re.compile(rf"[\s/]({'|'.join(map(re.escape, sorted(files)))})(?=[\s\\)])")
    out = find("microvm-stock").out

    def includes(name: str) -> bool:
        path = out / name
        commands = path.with_name(f".{path.name}.cmd").read_text(encoding="utf-8")
        return bool(wanted.search(commands))

    return [name for name in objects if files and includes(name)]


def compile_objects(flavour: str, objects: list[str], **env: str) -> None:
    """Prepare the flavour and compile the objects, if any; tests/run keeps standard error."""
    for targets in filter(None, (["prepare"], objects)):
        command = [str(ROOT / "tools/fl"), "build", flavour, *targets]
        if subprocess.run(command, env=os.environ | env, stdout=sys.stderr,
                          check=False).returncode != 0:
            raise Fail(f"{flavour}: {' '.join(targets)} did not compile")


def compile_fixed(objects: list[str]) -> pathlib.Path:
    """Compile them from upstream's tree plus the fixes; return their folder."""
    build = PATHS.build / "test" / "fixed"
    tree = build / "source"
    shutil.rmtree(tree, ignore_errors=True)
    # Links: git writes a patched file as a new one.
    shutil.copytree(PATHS.stock, tree, symlinks=True, copy_function=os.link,
                    ignore=lambda folder, _: [".git"] if folder == str(PATHS.stock) else [])
    for patch in fixes():
        # Else git resolves the paths from the top of our own repository.
        output("env", f"GIT_CEILING_DIRECTORIES={build}", "git", "-C", tree, "apply", patch)
    for name in fixed_files():
        if (tree / name).samefile(PATHS.stock / name):
            raise Fail(f"the fixes name {name}, but do not change it")
    # Use a flavour with none of our options.
    compile_objects("microvm-off", objects, BUILD=str(build), KERNEL_TREE=str(tree),
                    CCACHE_DIR=environment()["CCACHE_DIR"])
    return build / "microvm-off"


def config_differences() -> list[str]:
    """Differences between the two configurations."""
    ours, stock = (read_config(find(name).config)
                   for name in ("microvm-off", "microvm-stock"))
    return [f"CONFIG_{name}={value} in one of them" for name, value
            in sorted(set(ours.items()) ^ set(stock.items()))]


def unknown_options() -> list[str]:
    """Flavours with an option that their tree does not have; CI does not build all of them."""
    problems = []
    for flavour in FLAVOURS.values():
        if flavour.peer:
            # Its source is fetched on demand, and may lack some.
            continue
        try:
            check_symbols(flavour)
        except Fail as fault:
            problems.append(f"{flavour.name}: {fault}")
    return problems


def main() -> int:
    """Compile, compare, print TAP."""
    compile_objects("microvm-stock", [])
    every = sorted({*touched(), *ALWAYS})
    stock = find("microvm-stock")
    config = read_config(stock.config)
    sources = [name for name in every if configured(name, stock.tree, config)]
    for name in every:
        if name not in sources:
            print(f"# {name} is not in this configuration")
    objects = [str(pathlib.Path(name).with_suffix(".o")) for name in sources]
    print("TAP version 13", flush=True)
    compile_objects("microvm-stock", objects)
    compile_objects("microvm-off", objects)

    off = find("microvm-off")
    fixed = fixed_objects(objects)
    reference = dict.fromkeys(objects, stock.out)
    if fixed:
        reference |= dict.fromkeys(fixed, compile_fixed(fixed))
    makefile = (stock.tree / "Makefile").read_text()
    version = ".".join(re.findall(r"(?m)^(?:VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)$", makefile))
    local = (PATHS.kernel / "overlay/localversion-faultline").read_text().strip()
    results = [("both flavours have the same configuration", config_differences()),
               ("every option of every flavour exists", unknown_options())]
    releases = [(off, f"{version}{local}-off"), (stock, f"{version}-stock")]
    wrong = [f"expected {release}, got {have}" for flavour, release in releases
             if (have := (flavour.out / "include/config/kernel.release").read_text().strip())
             != release]
    results.append(("release names contain neither '+' nor a commit", wrong))
    results += [(f"{name} is as upstream's{' with our fixes' if name in fixed else ''}",
                 differences(off.out / name, reference[name] / name))
                for name in objects]
    tap = Tap()
    for name, problems in results:
        tap.result(name, not problems, problems)
    return tap.finish()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Fail as fault:
        print(f"Bail out! {fault}")
        sys.exit(1)

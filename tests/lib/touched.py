# SPDX-License-Identifier: GPL-2.0-only
"""Upstream C files that our patches change, for tests that compile them."""
from __future__ import annotations

import pathlib
import re

from faultline.flavour import PATHS, output


def of_kernel(name: str, arch: str = "x86") -> bool:
    """Whether a source file is part of this architecture's kernel."""
    return not re.match(rf"(tools|samples|scripts|Documentation|arch/(?!{arch}/)[^/]+)/", name)


def touched(arch: str = "x86") -> list[str]:
    """C files of this architecture's kernel that our branch changes."""
    # Against the work tree: uncommitted changes count as well.
    names = output("git", "-C", PATHS.tree, "diff", "--name-only", "--diff-filter=M",
                   "upstream").split()
    return [name for name in names if name.endswith(".c") and of_kernel(name, arch)]


def configured(source: str, tree: pathlib.Path, config: dict[str, str]) -> bool:
    """Whether the configuration includes this file; not every file compiles without it."""
    path = pathlib.Path(source)
    makefile = (tree / path.parent / "Makefile").read_text(encoding="utf-8")
    makefile = makefile.replace("\\\n", " ")
    names = [path.stem, *re.findall(rf"(?m)^(\w+)-objs\s*[+:]?=.*\b{re.escape(path.stem)}\.o\b",
                                    makefile)]
    options = [option for name in names for option in re.findall(
        rf"(?m)^obj-\$\(CONFIG_(\w+)\)\s*[+:]?=.*\b{re.escape(name)}\.o\b", makefile)]
    return not options or any(config.get(option) == "y" for option in options)

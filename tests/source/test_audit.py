# SPDX-License-Identifier: GPL-2.0-only
"""audit: the list matches the kernel, and it shows each kind of change."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from source.fake import Result
from faultline.audit import LIST, QUOTED
from faultline.common import ROOT, Paths

TREE = Paths.from_env().tree
# Enough of the kernel to try changes on.
COPIED = ("include/linux/mm.h", "include/linux/mmap_lock.h", "include/asm-generic/tlb.h",
          "mm/mprotect.c", "mm/mremap.c", "mm/mmu_notifier.c", "mm/memory.c", "fs/exec.c",
          "arch/x86/mm/pgtable.c", "kernel/fork.c")


def audit(*args: object) -> Result:
    """Run audit."""
    result = subprocess.run([sys.executable, "-B", "-m", "faultline", "audit", *map(str, args)],
                            text=True, capture_output=True, check=False)
    return Result(result.returncode, result.stdout, result.stderr)


class Copy:
    """A copy of a part of the kernel, with its own list."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.list = self.tree / "sites"
        for name in COPIED:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TREE / name, self.tree / name)
        self.audit("--update").good()

    def audit(self, *args: str) -> Result:
        """Run audit on the copy."""
        return audit("--tree", self.tree, "--list", self.list, *args)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace the first occurrence of a text in a file."""
        text = (self.tree / name).read_text(encoding="utf-8")
        assert old in text
        (self.tree / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    def shows(self, *lines: str) -> None:
        """The audit fails and prints exactly these lines."""
        result = self.audit().bad("lines differ", "follow the steps at the top of")
        assert sorted(result.out.splitlines()) == sorted(lines)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy of a part of the kernel."""
    if not (TREE / "mm").is_dir():
        pytest.fail(f"no kernel in {TREE}: run 'make tree'", pytrace=False)
    return Copy(tmp_path)


def test_number_in_the_guide() -> None:
    """The guide says how many places are listed."""
    guide = ROOT / "kernel/overlay/Documentation/admin-guide/mm/faultline/objections.rst"
    said = re.search(r"(\d+) places in the kernel", guide.read_text("utf-8"))
    sites = (ROOT / "kernel/audit/spf.sites").read_text("utf-8").splitlines()
    assert said and int(said[1]) == sum(bool(line) and line[0] != "#" for line in sites)


def test_kernel() -> None:
    """kernel/audit/spf.sites matches the kernel in build/tree."""
    assert "sites, as in" in audit().good().out


def test_hooks() -> None:
    """The list has our own hooks in upstream functions, so none gets lost."""
    text = (ROOT / "kernel/audit/spf.sites").read_text(encoding="utf-8")
    for site in ("include/linux/mm.h: vma_start_write: spf_write_barrier()",
                 "mm/mremap.c: move_normal_pmd: spf_drain_pmd()",
                 "mm/mremap.c: move_normal_pud: spf_drain_pud()",
                 "mm/mmu_notifier.c: __mmu_notifier_register: spf_sync_notifiers()"):
        assert f"\n{site}\n" in text


def test_other_edits(copy: Copy) -> None:
    """Comments, strings, moved lines and changes elsewhere do not show."""
    copy.edit("mm/mprotect.c", "#include",
              "/* vma_start_write(vma);\n * pmd_clear(pmd); */\n#include")
    copy.edit("mm/mprotect.c", "\tvma_start_write(vma);",
              "\tpr_info(\"vm_flags_set(vma)\");\n\n\n\tvma_start_write(vma);")
    copy.edit("include/linux/mm.h", "\tWRITE_ONCE(vma->vm_lock_seq, mm_lock_seq);",
              "\t/* Other words. */\n\tWRITE_ONCE(vma->vm_lock_seq,  mm_lock_seq);")
    (copy.tree / "mm/nothing.c").write_text(
        "int vm_flags;\nvoid f(void)\n{\n\tg(vm_flags);\n}\n")
    assert "sites, as in" in copy.audit().good().out


def function(*lines: str) -> str:
    """A function at the end of a file."""
    body = "".join(f"\t{line}\n" for line in lines)
    return f"\nstatic int added(struct vm_area_struct *vma,\n\t\tpmd_t *pmd)\n{{\n{body}}}\n"


def test_new_sites(copy: Copy) -> None:
    """A new site of each kind is found, with its function."""
    kinds = (("vma->vm_end = 1;", "->vm_end ="), ("vma->vm_start += 1;", "->vm_start ="),
             ("WRITE_ONCE(vma->vm_page_prot, prot);", "write ->vm_page_prot"),
             ("vma->detached = true;", "->detached ="), ("vma->anon_vma = NULL;", "->anon_vma ="),
             ("vm_flags_set(vma, VM_IO);", "vm_flags_set()"),
             ("vma_start_write(vma);", "vma_start_write()"),
             ("mm_lock_seqcount_end(vma->vm_mm);", "mm_lock_seqcount_end()"),
             ("vma->vm_mm->mm_lock_seq.sequence++;", "->mm_lock_seq"),
             ("downgrade_write(&vma->vm_mm->mmap_lock);", "downgrade_write of mmap_lock"),
             ("pmd_clear(pmd);", "pmd_clear()"), ("pte_free(vma->vm_mm, table);", "pte_free()"),
             ("tlb_remove_table(tlb, table);", "tlb_remove_table()"),
             ("vma->vm_mm->notifier_subscriptions = NULL;", "->notifier_subscriptions"),
             ("ptlock_free(ptdesc);", "ptlock_free()"))
    with open(copy.tree / "fs/exec.c", "a", encoding="utf-8") as file:
        file.write(function(*(line for line, _ in kinds)))
    copy.shows(*(f"+ fs/exec.c: added: {what}" for _, what in kinds))
    copy.audit("--update").good()
    copy.audit().good()


def test_more_and_fewer(copy: Copy) -> None:
    """An additional site in a function changes the count, a removed one shows as gone."""
    copy.edit("mm/mprotect.c", "\tvma_start_write(vma);\n", "")
    copy.edit("mm/mprotect.c", "\tvm_flags_reset(vma,",
              "\tvm_flags_reset(vma, 0);\n\tvm_flags_reset(vma,")
    copy.shows("- mm/mprotect.c: mprotect_fixup: vma_start_write()",
               "- mm/mprotect.c: mprotect_fixup: vm_flags_reset()",
               "+ mm/mprotect.c: mprotect_fixup: vm_flags_reset() x2")


def test_quoted_code(copy: Copy) -> None:
    """Changed code in a function that the proof quotes shows, even without new sites."""
    copy.edit("include/linux/mm.h", "\tWRITE_ONCE(vma->vm_lock_seq, mm_lock_seq);\n\tup_write(",
              "\tWRITE_ONCE(vma->vm_lock_seq, mm_lock_seq + 1);\n\tup_write(")
    result = copy.audit().bad("2 lines differ")
    assert ([re.sub("is .*", "is", line) for line in result.out.splitlines()]
            == [f"{sign} include/linux/mm.h: vma_start_write: is" for sign in "-+"])


def test_quotes_are_found() -> None:
    """Each function that the proof quotes is in the list."""
    lines = (ROOT / "kernel" / LIST).read_text("ascii")
    assert not [f"{path}: {name}" for path, names in QUOTED.items() for name in names
                if f"{path}: {name}: is " not in lines]


def test_new_file(copy: Copy) -> None:
    """A site in a new file is found, but not in a folder that is not searched."""
    for name in ("mm/new.c", "drivers/new.c", "arch/arm/mm/new.c"):
        (copy.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (copy.tree / name).write_text(function("vma_start_write(vma);"))
    copy.shows("+ mm/new.c: added: vma_start_write()")


def test_nothing_there(copy: Copy) -> None:
    """A missing kernel or list is an error, not an empty list."""
    audit("--tree", copy.tree / "none", "--list", copy.list).bad("no kernel in", "make tree")
    copy.list.unlink()
    copy.audit().bad("there is no", "--update")

# SPDX-License-Identifier: GPL-2.0-only
"""Compare the kernel with the list of sites that the proof of speculative page faults relies on.

The list is kernel/audit/spf.sites; its header says what to do when it differs. The tree is
searched as it is on disk, including uncommitted changes.

A site is a file, a function, what the function does and how often. There are no line numbers,
so that only relevant changes show. For functions that a proof quotes, the list has a checksum
of the code without comments and white space.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .common import Fail, Paths, say, shown, write_atomic
from .repo import Repo

# The text of the file at a path, or "".
Texts = Callable[[str], str]

# Below kernel/.
LIST = Path("audit", "spf.sites")
# The folders that are searched.
FOLDERS = ("arch/arm64/include", "arch/arm64/kernel", "arch/arm64/kvm", "arch/arm64/mm",
           "arch/powerpc/include", "arch/powerpc/mm", "arch/x86/include", "arch/x86/kernel",
           "arch/x86/mm", "fs", "include/asm-generic", "include/linux", "ipc", "kernel", "mm")
# The code that the proof is about; code without an MMU; tests; code for the kernel's own
# memory.
IGNORED = re.compile(r"mm/faultline/spf\.[ch]|include/linux/spf\.h|mm/nommu\.c|"
                     r"mm/debug_vm_pgtable\.c|mm/kasan/|.*/tests?/|.*_test\.c$")

# Fields of a VMA that a snapshot is used for. Matching by name is good enough: other
# structures with such a field end up in the list, but do not change either.
FIELDS = ("vm_start", "vm_end", "vm_pgoff", "vm_flags", "__vm_flags", "vm_page_prot", "vm_ops",
          "vm_file", "vm_policy", "vm_userfaultfd_ctx", "vm_mm", "anon_vma", "detached",
          "vm_lock", "vm_lock_seq")
CALLS = (
    # W1 to W4: VMAs and the sequence numbers.
    "vma_start_write", "vma_end_write_all", "vma_mark_detached", "vma_assert_write_locked",
    "vm_flags_init", "vm_flags_reset", "vm_flags_reset_once", "vm_flags_set", "vm_flags_clear",
    "vm_flags_mod", "__vm_flags_mod", "vma_set_page_prot", "vma_set_range", "vma_set_anonymous",
    "vma_iter_store", "vma_iter_bulk_store", "vma_iter_store_gfp", "vma_iter_clear",
    "vma_iter_clear_gfp", "vma_iter_prealloc", "vma_replace_policy", "userfaultfd_set_ctx",
    "vm_area_alloc", "vm_area_dup", "vm_area_free", "__vm_area_free", "vma_lock_alloc",
    "mm_lock_seqcount_begin", "mm_lock_seqcount_end", "mm_lock_seqcount_init",
    "mmap_write_downgrade", "mm_take_all_locks", "mm_drop_all_locks",
    # W5 and W6: page tables, their locks, and anon_vmas.
    "pmd_clear", "pud_clear", "p4d_clear", "pgd_clear", "pmdp_collapse_flush", "pmd_populate",
    "pmd_install", "pud_populate", "set_pmd", "pte_free", "__pte_free", "pte_free_tlb",
    "__pte_free_tlb", "___pte_free_tlb", "pte_free_defer", "pte_free_now", "pmd_free_tlb",
    "__pmd_free_tlb", "___pmd_free_tlb", "pte_fragment_free", "tlb_remove_table",
    "faultline_table_remove", "faultline_table_free_lone",
    "tlb_remove_ptdesc", "tlb_remove_table_sync_one", "__tlb_remove_table",
    "paravirt_tlb_remove_table", "pgtable_trans_huge_deposit", "pgtable_trans_huge_withdraw",
    "free_pgtables", "free_pgd_range", "pagetable_free", "pagetable_pte_dtor", "ptlock_alloc",
    "ptlock_free", "ptlock_free_rcu", "unlink_anon_vmas", "anon_vma_merge", "pmd_clear_collapse",
    "pmd_clear_broadcast", "pmd_clear_free_old", "faultline_table_free", "pmd_clear_alloc",
    "zap_deposited_table",
    "tlb_remove_table_one", "native_tlb_remove_table", "pgtable_free_tlb", "pmd_fragment_free",
    # W5: translations that outlive the PMD entry.
    "flush_hash_table_pmd_range", "hpte_need_flush", "hash_preload",
    # W7: notifiers.
    "__mmu_notifier_register",
    # I6 of munmap.c.
    "unmap_huge_pmd_locked",
    # Our functions that upstream code calls.
    "spf_enabled", "spf_fault", "spf_write_barrier", "spf_drain_pmd", "spf_drain_pud",
    "spf_sync_notifiers",
)
ASSIGNED = r"\s*(?:=(?!=)|[-+|&^]=|\+\+|--)"
PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in (
    ("{}()", rf"(?<![\w.>])({'|'.join(CALLS)})\s*\("),
    ("->{} =", rf"->({'|'.join(FIELDS)}){ASSIGNED}"),
    ("->{} =", rf"->(vm_userfaultfd_ctx)\.ctx{ASSIGNED}"),
    ("write ->{}",
     rf"(?:WRITE_ONCE|smp_store_release|swap|xchg)\([^;]*?->({'|'.join(FIELDS)})\b"),
    ("->{}", r"(?:->|\.)(mm_lock_seq|notifier_subscriptions)\b(?!->)"),
    # Bypassing the functions that maintain mm_lock_seq.
    ("{} of mmap_lock", r"\b((?:up|downgrade|down)_write\w*)\([^;]*?\bmmap_lock\b"),
))
# A file without any of these words has no site. A word that contains another is redundant.
ALL_WORDS = {*CALLS, *FIELDS, "mm_lock_seq", "notifier_subscriptions", "mmap_lock"}
WORDS = [word for word in ALL_WORDS
         if not any(other in word for other in ALL_WORDS if other != word)]

# Functions that the proof quotes.
QUOTED = {
    "arch/arm64/include/asm/tlb.h": ("tlb_get_level", "tlb_flush", "__tlb_remove_table",
                                     "__pte_free_tlb", "__pmd_free_tlb", "__pud_free_tlb",
                                     "__p4d_free_tlb"),
    "arch/arm64/include/asm/tlbflush.h": ("__tlbi_sync_s1ish", "__flush_tlb_range_op",
                                          "__flush_tlb_range_nosync", "__flush_tlb_range",
                                          "__flush_tlb_page_nosync", "flush_tlb_mm",
                                          "flush_tlb_page", "flush_tlb_range"),
    # They read or write entries next to the one of the fault.
    "arch/arm64/mm/contpte.c": ("contpte_convert", "contpte_ptep_get",
                                "contpte_ptep_get_lockless",
                                "contpte_all_subptes_match_access_flags",
                                "contpte_ptep_set_access_flags", "contpte_set_ptes",
                                "__contpte_try_fold"),
    # The code before the hook and behind it.
    "arch/arm64/mm/fault.c": ("__ptep_set_access_flags", "is_write_abort", "fault_from_pkey",
                              "do_page_fault"),
    "arch/powerpc/mm/book3s64/hash_pgtable.c": ("hash__pmdp_collapse_flush",),
    "arch/powerpc/mm/book3s64/hash_tlb.c": ("flush_hash_table_pmd_range", "hpte_need_flush"),
    "arch/powerpc/mm/book3s64/hash_utils.c": ("hash_preload", "__update_mmu_cache"),
    "arch/powerpc/mm/book3s64/pgtable.c": ("__tlb_remove_table", "pgtable_free_tlb"),
    "arch/x86/kernel/paravirt.c": ("native_tlb_remove_table",),
    "arch/x86/mm/pgtable.c": ("paravirt_tlb_remove_table", "___pte_free_tlb", "___pmd_free_tlb",
                              "___pud_free_tlb", "___p4d_free_tlb"),
    # flush_waits() of pmd_clear.c.
    "arch/x86/include/asm/tlb.h": ("tlb_flush",),
    "arch/x86/mm/tlb.c": ("switch_mm_irqs_off", "native_flush_tlb_multi", "flush_tlb_mm_range"),
    "include/linux/mm.h": ("vma_start_read", "vma_start_write", "vma_mark_detached",
                           "__is_vma_write_locked"),
    "include/linux/mmap_lock.h": ("mm_lock_seqcount_begin", "mm_lock_seqcount_end",
                                  "mmap_write_lock", "mmap_write_unlock", "mmap_write_downgrade",
                                  "vma_end_write_all"),
    "include/linux/seqlock.h": ("do_raw_write_seqcount_begin", "do_raw_write_seqcount_end"),
    "mm/khugepaged.c": ("collapse_huge_page",),
    "mm/mmu_gather.c": ("tlb_remove_table", "tlb_remove_table_one", "tlb_remove_table_free",
                        "tlb_table_flush"),
    "mm/mmu_notifier.c": ("__mmu_notifier_register", "mmu_interval_notifier_insert",
                          "mmu_interval_notifier_insert_locked"),
    "mm/mremap.c": ("move_normal_pmd", "move_normal_pud"),
    "mm/rmap.c": ("__anon_vma_prepare", "unlink_anon_vmas"),
    "mm/vma.c": ("mm_take_all_locks", "vma_complete", "__split_vma"),
    # Functions that spf.c and spf_huge.c mirror.
    "mm/huge_memory.c": ("do_huge_pmd_anonymous_page", "__do_huge_pmd_anonymous_page",
                         "vma_thp_gfp_mask", "zap_deposited_table"),
    "mm/memory.c": ("do_anonymous_page", "wp_page_copy", "do_wp_page", "wp_page_reuse",
                    "wp_can_reuse_anon_folio", "alloc_anon_folio", "mm_account_fault",
                    "__handle_mm_fault", "handle_mm_fault", "sanitize_fault_flags",
                    "lru_gen_enter_fault", "__vmf_anon_prepare", "pmd_install"),
}

HEADER = """\
# SPDX-License-Identifier: GPL-2.0-only
#
# The code that the proof of speculative page faults relies on (see
# mm/faultline/spf.c, rules W1 to W7): functions that change VMAs, their sequence
# numbers or page tables, or register MMU notifiers.  One line each: file,
# function, what it does, how often; or a checksum of a function that the proof
# quotes.
#
# `make test` and `make rebase` compare the list with the kernel.  If a line is
# new or its count differs, read that function:
#
#  - Does it change a VMA that is in a tree?  If so, does it hold mmap_lock for
#    writing, and is the change after vma_start_write() of that write section
#    (W1) and before the section ends (W4)?
#  - Does it free or move a page table, or rely on its entries or on translations
#    made from them?  If so, does it lock the table after vma_start_write(), or
#    find no table (W5)?
#  - Does it free a page table that was in use?  If so, does it wait for a grace
#    period while spf_writer_key is on (W6), and read the key after
#    vma_start_write()?
#  - Does it register an MMU notifier?  Can others insert theirs without mmap_lock
#    before it has waited (W7)?
#  - Is it a call of unmap_huge_pmd_locked()?  That breaks I6 of munmap.c, which
#    relies on entries that stay none.
#  - Does spf.c mirror it, and must spf.c change too?
#  - Is it an x86 TLB flush?  If so, does it still wait for every CPU of
#    mm_cpumask(), see flush_waits() in pmd_clear.c?
#  - Is it an arm64 TLB flush?  If so, is it complete when it returns, also for
#    walks of tables that were unlinked (last_level is false)?
#  - Does it write to contiguous entries of arm64?  If so, does it hold the lock of
#    their table, and leave all but the contiguous, accessed and dirty bits of the
#    others alone?
#
# Then rewrite the list:
#
#    tools/fl audit --update

"""


def blank(match: re.Match[str]) -> str:
    """Blank a comment or string, but keep its line breaks."""
    text = match[0]
    return '""' if text[0] in "\"'" else " " + "\n" * text.count("\n")


BLANKS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
# A line at the left margin that starts a definition, as in git's hunk headers; a macro may have
# its body there.
MARGIN = re.compile(r"(?:#\s*define\s+)?(?!do\b)[A-Za-z_]")
LABEL = re.compile(r"[A-Za-z_]\w*:\s*$")
# Words before a parenthesis that are not function names.
ATTRIBUTE = re.compile(r"__attribute__|__printf|__aligned|__section|__must_hold|__acquires|"
                       r"__releases|__cond_lock|__bpf_kfunc")
DEFINE = re.compile(r"(?:COMPAT_)?SYSCALL_DEFINE\d\((\w+)")
CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")


def name_of(line: str) -> str:
    """The function, macro or variable that a line at the margin defines."""
    if match := DEFINE.match(line):
        return f"sys_{match[1]}"
    if match := re.match(r"#\s*define\s+(\w+)", line):
        return match[1]
    for match in CALLED.finditer(line):
        if not ATTRIBUTE.fullmatch(match[1]):
            return match[1]
    words: list[str] = re.findall(r"\w+", line.partition("=")[0])
    return words[-1] if words else "?"


def functions(text: str) -> Iterator[tuple[str, str]]:
    """The definitions in a file without comments: name, and the text from its body on."""
    name, body = "", ""
    for line in text.splitlines(keepends=True):
        if MARGIN.match(line) and not LABEL.match(line):
            # A one-line function has its body on the same line.
            head, brace, rest = line.partition("{")
            macro = re.match(r"#\s*define\s+\w+(?:\([^)]*\))?(.*)", line, re.S)
            if body.strip():
                yield name, body
            name, body = name_of(head), macro[1] if macro else brace + rest
        else:
            body += line
    yield name, body


def scan(path: str, text: str) -> Counter[str]:
    """The sites in one file."""
    found: Counter[str] = Counter()
    quoted = QUOTED.get(path, ())
    if not quoted and not any(word in text for word in WORDS):
        return found
    for name, body in functions(BLANKS.sub(blank, text)):
        for form, pattern in PATTERNS:
            for match in pattern.finditer(body):
                found[f"{path}: {name}: {form.format(match[1])}"] += 1
        if name in quoted and "{" in body:
            code = re.sub(r"\s+", " ", body[:body.find("\n}") + 2])
            found[f"{path}: {name}: is {hashlib.sha256(code.encode()).hexdigest()[:12]}"] += 1
    return found


def wanted(path: str) -> bool:
    """Whether a file is searched."""
    return (path.endswith((".c", ".h")) and not IGNORED.match(path) and
            path.startswith(tuple(f"{name}/" for name in FOLDERS)))


def in_folder(tree: Path) -> Iterator[tuple[str, str]]:
    """The files of a work tree, including uncommitted changes."""
    for folder in FOLDERS:
        for file in (tree / folder).rglob("*.[ch]"):
            path = file.relative_to(tree).as_posix()
            if wanted(path) and file.is_file():
                yield path, file.read_text(encoding="utf-8", errors="replace")


def in_commit(repo: Repo, commit: str) -> Iterator[tuple[str, str]]:
    """The files of a commit."""
    paths = {path: name for path, (mode, name) in repo.files(commit).items()
             if wanted(path) and mode != "120000"}
    data = repo.call("cat-file", "--batch=%(objectsize)",
                     data="".join(f"{name}\n" for name in paths.values()).encode())[0]
    place = 0
    for path in paths:
        end = data.index(b"\n", place)
        size = int(data[place:end])
        yield path, data[end + 1:end + 1 + size].decode(errors="replace")
        place = end + 1 + size + 1


def sites(files: Iterable[tuple[str, str]]) -> list[str]:
    """List the sites in these files."""
    total: Counter[str] = Counter()
    for path, text in files:
        total += scan(path, text)
    return [line if count == 1 else f"{line} x{count}" for line, count in sorted(total.items())]


def list_of(paths: Paths) -> Path:
    """The path of the committed list."""
    return paths.kernel / LIST


def read(path: Path) -> list[str]:
    """Read a list."""
    if not path.exists():
        raise Fail(f"there is no {shown(path)}: write it with tools/fl audit --update")
    text = path.read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def written(lines: list[str]) -> bytes:
    """The contents of the file for a list."""
    return (HEADER + "".join(f"{line}\n" for line in lines)).encode()


def changes(old: list[str], new: list[str]) -> list[str]:
    """The new (+) and removed (-) lines, in the order of the list."""
    lines = [(line, sign) for sign, these, others in (("-", old, new), ("+", new, old))
             for line in set(these) - set(others)]
    return [f"{sign} {line}" for line, sign in sorted(lines, key=lambda item: (
        re.sub(r" (?:x\d+|[0-9a-f]{12})$", "", item[0]), item[1] == "+", item[0]))]


def compare(lines: list[str], old: Texts, new: Texts) -> str:
    """A diff of each function that these lines of changes() name."""
    found = []
    for path, name in dict.fromkeys(tuple(line[2:].split(": ", 2)[:2]) for line in lines):
        before, after = ([f"{part}\n" for known, body in functions(text(path)) if known == name
                          for part in body.splitlines()] for text in (old, new))
        found.append("".join(difflib.unified_diff(
            before, after, f"a/{path} {name}()", f"b/{path} {name}()", n=len(after))))
    return "\n".join(filter(None, found))


def main() -> None:
    """Compare, or rewrite the list."""
    paths = Paths.from_env()
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=paths.tree, metavar="DIR",
                        help="the kernel to search (default: build/tree)")
    parser.add_argument("--list", type=Path, default=list_of(paths), metavar="FILE",
                        dest="path", help="default: kernel/audit/spf.sites")
    parser.add_argument("--update", action="store_true", help="rewrite the list from the kernel")
    args = parser.parse_args()
    found = sites(in_folder(args.tree))
    if not found:
        raise Fail(f"no kernel in {shown(args.tree)}: run `make tree`")
    differences = changes(
        read(args.path) if args.path.exists() or not args.update else [], found)
    for line in differences:
        say(line)
    if args.update:
        write_atomic(args.path, written(found))
        say(f"{shown(args.path)}: {len(found)} sites")
    elif differences:
        raise Fail(f"{len(differences)} lines differ: follow the steps at the top of "
                   f"{shown(args.path)}")
    else:
        say(f"{len(found)} sites, as in {shown(args.path)}")

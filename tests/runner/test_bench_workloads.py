# SPDX-License-Identifier: GPL-2.0-only
"""The benchmark of Debian's programs: its order, its figures and its errors, without VMs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from faultline.apt import Apt
from bench import allocations, cli, guest, rootfs, workloads
from bench.guest import BenchError, Kernels, Sample
from faultline.common import ROOT, Fail, Paths, run_main
from faultline.flavour import FLAVOURS
from faultline.vm import run as vm
from faultline.vm.guest import Job
from faultline.vm.qemu import Machine

KERNELS = Kernels(Path("ours"), Path("stock"))
BEFORE = {"pgfault": 100, "spf_anon": 5, "nr_free_pages": 7}
AFTER = {"pgfault": 200, "spf_anon": 35, "spf_cow": 30, "spf_abort_no_table": 10,
         "spf_abort_no_anon_vma": 4, "spf_skipped": 1, "nr_free_pages": 9,
         "munmap_section_calls": 3}


def value(samples: list[Sample], metric: str) -> float:
    """Return the only value of METRIC."""
    found = [sample.value for sample in samples if sample.metric == metric]
    assert len(found) == 1, metric
    return found[0]


def test_each_round_turns_the_order_round() -> None:
    """Stock, off, on; then on, off, stock; then as at first."""
    order = [(number, arm) for number, _, arm in workloads.boots(KERNELS, 3)]
    assert order == [(0, "stock"), (0, "off"), (0, "on"), (1, "on"), (1, "off"), (1, "stock"),
                     (2, "stock"), (2, "off"), (2, "on")]
    kernels = {arm: kernel for _, kernel, arm in workloads.boots(KERNELS, 2)}
    assert kernels == {"stock": KERNELS.stock, "off": KERNELS.ours, "on": KERNELS.ours}


def test_without_a_stock_kernel() -> None:
    """Only the two arms of our kernel are left."""
    assert [arm for _, _, arm in workloads.boots(Kernels(Path("ours"), None), 1)] == \
        ["off", "on"]


def test_peer_is_in_the_order_and_in_the_table() -> None:
    """The newest upstream kernel is an arm between stock and ours."""
    kernels = Kernels(Path("ours"), Path("stock"), Path("peer"))
    assert [arm for _, _, arm in workloads.boots(kernels, 1)] == \
        ["stock", "peer", "off", "on"]
    samples = [Sample("s_p50", "ms", arm, 1) for arm in ("on", "peer", "off", "stock")]
    assert [sample.arm for sample in workloads.in_order(samples, ("s",))] == \
        ["stock", "peer", "off", "on"]


def test_scenes_of_a_program_share_a_boot() -> None:
    """The name of a scene begins with its program, which has a script."""
    found = workloads.programs(workloads.SCENES)
    assert [scene for scenes in found.values() for scene in scenes] == list(workloads.SCENES)
    for name in found:
        assert (ROOT / "tests/bench/workloads" / f"{name}.sh").is_file()
        assert name in workloads.PACKAGES


@pytest.mark.parametrize(("count", "figures"), [
    (1000, {"p50": 500, "p99": 990, "p99.9": 999, "max": 1000}),
    (999, {"p50": 500, "p99": 990, "max": 999}), (99, {"p50": 50, "max": 99}), (1, {"max": 1})])
def test_percentiles(count: int, figures: dict[str, float]) -> None:
    """A percentile is one of the values; with too few requests, it is left out."""
    found = workloads.latencies("s", "on", "".join(f"{n}000\n" for n in range(count, 0, -1)))
    assert [(sample.metric, sample.value) for sample in found] == [
        (f"s_{name}", figure) for name, figure in figures.items()]


SAFEPOINT = ("[0.161s][info][safepoint] Safepoint \"ZMarkEnd\", Time since last: 9 ns, "
             "Reaching safepoint: 7 ns, At safepoint: 2 ns, Total: {:>10} ns\n")


def test_safepoints() -> None:
    """Figures of their own, from the log of the JVM."""
    found = workloads.safepoints("s", "on", "".join(
        SAFEPOINT.format(n * 1000000) for n in range(100, 0, -1)))
    assert {sample.metric: sample.value for sample in found} == {
        "s_safepoint_p50": 50, "s_safepoint_p99": 99, "s_safepoint_max": 100}
    assert not workloads.safepoints("s", "on", "")


def test_counts_and_rate() -> None:
    """A name and a number per line; requests per second."""
    assert workloads.counts_in("batches 3\nreleased_mib 0\n", "s.on.facts") == {
        "batches": 3, "released_mib": 0}
    assert workloads.rate("s", "on", "30 2.5\n").value == 12


@pytest.mark.parametrize(("read", "error", "texts"), [
    (workloads.latencies, "s: the program made no request in arm on", ("",)),
    (workloads.latencies, "s: .* a bad latency .*'x'", ("1\nx\n",)),
    (workloads.safepoints, "s: the JVM wrote a bad line about a safepoint",
     tuple(SAFEPOINT.format(1) + line
           for line in ("OutOfMemoryError\n", SAFEPOINT.format("x"), "\n"))),
    (workloads.rate, "s: the program wrote a bad amount of work",
     ("", "1", "1 0", "a b", "1 2 3")),
    (lambda scene, arm, text: workloads.counts_in(text, f"{scene}.{arm}.facts"),
     r"the guest returned a bad s.on.facts \(", ("batches\n", "batches x\n", "a 1 2\n"))])
def test_bad_result(read: Callable[[str, str, str], object], error: str,
                    texts: tuple[str, ...]) -> None:
    """One clear error for each bad text."""
    for text in texts:
        with pytest.raises(BenchError, match=error):
            read("s", "on", text)


def test_counters() -> None:
    """Only counters of the switches, and page faults."""
    text = "".join(f"{name} {count}\n" for name, count in AFTER.items())
    growth = workloads.grown(BEFORE, workloads.counts_in(text, "s.on.after"))
    assert growth == {"pgfault": 100, "spf_anon": 30, "spf_cow": 30, "spf_abort_no_table": 10,
                      "spf_abort_no_anon_vma": 4, "spf_skipped": 1, "munmap_section_calls": 3}


def test_share_of_faults_without_locks() -> None:
    """60 of 100 have taken no lock; the largest other group are the 25 that were not tried."""
    growth = workloads.grown(BEFORE, AFTER)
    found = workloads.fault_samples("s", "on", [growth])
    assert value(found, "s_lock_free") == 0.6
    assert value(found, "s_largest_other:not_tried") == 0.25


def test_largest_group_over_all_rounds() -> None:
    """One group for all rounds, by its sum."""
    found = workloads.fault_samples("s", "on", [
        {"pgfault": 10, "spf_anon": 9, "spf_abort_pte": 1},
        {"pgfault": 10, "spf_anon": 5, "spf_abort_no_vma": 5},
        {"pgfault": 0}])
    assert [(sample.metric, sample.value) for sample in found] == [
        ("s_lock_free", 0.9), ("s_largest_other:abort_no_vma", 0),
        ("s_lock_free", 0.5), ("s_largest_other:abort_no_vma", 0.5)]


def test_order_without_a_percentile() -> None:
    """An arm that lacks p99.9 does not move it behind max."""
    samples = [Sample(f"s_{figure}", "ms", arm, 1) for arm, figures in (
        ("on", ("p50", "p99.9", "max")), ("stock", ("p50", "max"))) for figure in figures]
    samples += [Sample("s_lock_free", "of_faults", "on", 1), Sample("s pgfault", "events", "on", 1)]
    assert [(sample.metric, sample.arm) for sample in workloads.in_order(samples, ("s",))] == [
        ("s_p50", "stock"), ("s_p50", "on"), ("s_p99.9", "on"), ("s_max", "stock"),
        ("s_max", "on"), ("s_lock_free", "on"), ("s pgfault", "on")]


def returned(folder: Path, scene: str, arm: str) -> None:
    """Write what a guest returns of one turn."""
    folder.mkdir(parents=True, exist_ok=True)
    for what, text in {"latency": "1000\n2000\n", "work": f"{9 if arm == 'on' else 10} 1.0\n",
                       "before": "pgfault 0\nspf_anon 0\n",
                       "after": "pgfault 10\nspf_anon 6\n"}.items():
        (folder / f"{scene}.{arm}.{what}").write_text(text, "ascii")


def test_missing_result(tmp_path: Path) -> None:
    """One clear error."""
    returned(tmp_path, "arrays_freed", "on")
    (tmp_path / "arrays_freed.on.after").unlink()
    with pytest.raises(BenchError, match="did not return arrays_freed.on.after"):
        workloads.read_results(tmp_path, "arrays_freed", "on")


def test_safepoints_and_counts_are_read(tmp_path: Path) -> None:
    """Only if the program leaves them."""
    returned(tmp_path, "jvm_g1", "on")
    samples, growth = workloads.read_results(tmp_path, "jvm_g1", "on")
    assert not [sample for sample in samples if "safepoint" in sample.metric]
    assert growth == {"pgfault": 10, "spf_anon": 6}
    (tmp_path / "jvm_g1.on.safepoints").write_text(SAFEPOINT.format(5000000), "ascii")
    (tmp_path / "jvm_g1.on.facts").write_text("batches 2\n", "ascii")
    (tmp_path / "jvm_g1.on.unpaused").write_text("1000\n3000\n2000\n", "ascii")
    samples, growth = workloads.read_results(tmp_path, "jvm_g1", "on")
    assert value(samples, "jvm_g1_safepoint_max") == 5
    assert value(samples, "jvm_g1_unpaused_max") == 3
    assert growth == {"pgfault": 10, "spf_anon": 6, "batches": 2}
    ordered = workloads.in_order(samples, ("jvm_g1",))
    assert [sample.metric for sample in ordered[-3:]] == [
        "jvm_g1_unpaused_max", "jvm_g1_rate", "jvm_g1_safepoint_max"]


FAULT = ("do_user_addr_fault", "exc_page_fault", "asm_exc_page_fault")
SPF = ("map_hole", "spf_fault", *FAULT)
UPSTREAM = ("__handle_mm_fault", "handle_mm_fault", *FAULT)
STACKS = [
    (("vma_alloc_folio_noprof", "map_anon", "spf_fault", *FAULT), 0, allocations.FREE),
    (("vma_alloc_folio_noprof", "prepare", "spf_fill_hole", *SPF), 9, allocations.FREE_HUGE),
    (("__pmd_alloc", "make_upper_tables", "spf_fill_hole", *SPF), 0, allocations.UPPER),
    (("__pmd_alloc", *UPSTREAM), 0, allocations.UPPER),
    (("pte_alloc_one", "do_fault", *UPSTREAM), 0, allocations.FILE),
    (("shmem_get_folio_gfp", "shmem_fault", "__do_fault", "do_fault", *UPSTREAM), 0,
     allocations.SHARED),
    (("vma_alloc_folio_noprof", "do_huge_pmd_anonymous_page", *UPSTREAM), 9,
     "locked, huge page"),
    (("pte_alloc_one", "__pte_alloc", "do_anonymous_page", *UPSTREAM), 0, "locked, new memory"),
    (("vma_alloc_folio_noprof", "do_numa_page", *UPSTREAM), 0, allocations.OTHER),
    # A stack that is cut off: one with a lock.
    (("vma_alloc_folio_noprof", "do_wp_page", "__handle_mm_fault"), 0, "locked, copy"),
    (("do_wp_page", "__handle_mm_fault", "handle_mm_fault"), 0, "locked, copy"),
    (("do_huge_pmd_anonymous_page", "__handle_mm_fault", "handle_mm_fault", "__get_user_pages"),
     9, allocations.POPULATED),
    # No lock on any kernel; an interrupt; a system call that faults is not in its own stack.
    (("folio_alloc_noprof", "page_cache_ra_unbounded", "filemap_fault", "do_fault", *UPSTREAM),
     0, ""),
    (("allocate_slab", "asm_sysvec_apic_timer_interrupt", "spf_fault", *FAULT), 0, ""),
    (("pipe_write", "vfs_write"), 0, ""),
]


@pytest.mark.parametrize(("stack", "order", "found"), STACKS)
def test_kind_of_an_allocation(stack: tuple[str, ...], order: int, found: str) -> None:
    """By the innermost function that tells."""
    assert allocations.kind(stack, order) == found


def hist(*entries: tuple[tuple[str, ...], int, int], dropped: int = 0) -> str:
    """The file "hist" of the kernel; an entry is a stack, an order and a count."""
    return "".join(
        "{ common_stacktrace:\n" + "".join(f"         {name}+0x1/0x2\n" for name in stack) +
        f", order:          {order}}} hitcount:         {hits}\n"
        for stack, order, hits in entries) + f"\nTotals:\n    Dropped: {dropped}\n"


def test_shares_of_allocations(tmp_path: Path) -> None:
    """Those between the two files; files of a process are in only one of the shares."""
    free, huge, file = STACKS[0][:2], STACKS[1][:2], STACKS[4][:2]
    for when, text in {"before": hist((*free, 5)),
                       "after": hist((*free, 65), (*huge, 30), (*file, 10))}.items():
        (tmp_path / f"s.on.allocations-{when}").write_text(text, "ascii")
    samples = workloads.read_allocations(tmp_path, "s", "on")
    assert value(samples, "s_allocated_lock_free") == 0.9
    assert value(samples, "s_allocated_lock_free_but_files") == 1
    assert value(samples, "s allocated without a lock, huge") == 30
    assert allocations.lock_free({}) is None


@pytest.mark.parametrize("text", ["", hist((("a",), 0, 1), dropped=1)])
def test_bad_histogram(text: str) -> None:
    """One that is not complete is an error."""
    with pytest.raises(BenchError, match="a bad s.allocations: it is cut off"):
        allocations.histogram(text, "s.allocations")


def compiler(folder: Path, name: str, text: str) -> None:
    """Write a compiler to FOLDER."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n", "ascii")
    (folder / name).chmod(0o755)


def test_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled again only if its source is newer; a failure is one error, leaving none."""
    source, tools = tmp_path / "load", tmp_path / "tools"
    source.write_text("one", "ascii")
    monkeypatch.setattr(guest, "BUILD", tmp_path)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(Fail, match="javac is missing: install default-jdk-headless"):
        workloads.java(source)
    # The last two arguments are the folder and the source.
    copy = 'while [ $# -gt 2 ]; do shift; done; PATH=/usr/bin:/bin cp "$2" "$1"'
    compiler(tools, "javac", copy)
    made = workloads.java(source)
    assert (made / "load").read_text("ascii") == "one"
    compiler(tools, "javac", "echo 'line 1: bad' >&2; exit 1")
    assert workloads.java(source) == made
    source.write_text("two", "ascii")
    os.utime(source, (made.stat().st_mtime + 1,) * 2)
    with pytest.raises(Fail, match="cannot compile .*load:\nline 1: bad"):
        workloads.java(source)
    assert (made / "load").read_text("ascii") == "one"
    assert not made.with_suffix(".new").exists()
    compiler(tools, "javac", copy)
    assert (workloads.java(source) / "load").read_text("ascii") == "two"


def run_qemu(variant: str, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run QEMU's scene on this host, small and short."""
    return subprocess.run(
        # Between the last deletion and the end there is a third of the time, in milliseconds: a
        # busy host may need more than one second.
        [sys.executable, ROOT / "tests/bench/workloads/vm_memory.py", variant, out, "6000", "16",
         "2"],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("variant, fact", [
    ("shared", "memory_deleted"), ("private", "memory_deleted"), ("plugged", "memory_added")])
def test_qemu_changes_memory_beside_reads(tmp_path: Path, variant: str, fact: str) -> None:
    """Its results are those that the benchmark reads; QEMU's files are gone."""
    scene = f"qemu_{variant}"
    result = run_qemu(variant, tmp_path / f"{scene}.on", TMPDIR=str(tmp_path))
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    samples, growth = workloads.read_results(tmp_path, scene, "on")
    assert value(samples, f"{scene}_rate") > 1
    assert value(samples, f"{scene}_max") >= value(samples, f"{scene}_p50") > 0
    assert growth[fact] == 2
    assert growth["status_max_us"] > 0
    assert all(path.name.startswith(f"{scene}.on.") for path in tmp_path.iterdir())


def test_qemu_that_does_not_start(tmp_path: Path) -> None:
    """One error; no results."""
    compiler(tmp_path / "bin", "qemu-system-x86_64", "exit 3")
    result = run_qemu("shared", tmp_path / "x", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert result.stderr == "QEMU ended with status 3\n"
    assert not list(tmp_path.glob("x.*"))


def fake_vms(folder: Path, monkeypatch: pytest.MonkeyPatch,
             status: int = 0) -> list[tuple[Machine, list[str]]]:
    """Replace VMs by ones that return results at once; return machine and command of each boot."""
    booted: list[tuple[Machine, list[str]]] = []

    def run(machine: Machine, job: Job, out: Path, **_: object) -> mock.Mock:
        booted.append((machine, job.command))
        words = [word for word in job.command if word != "traced"]
        scenes, arm = words[-4:-2]
        for scene in scenes.split(","):
            returned(out / "files", scene, arm)
            for when, count in (("before", 0), ("after", 9)) if words != job.command else ():
                (out / f"files/{scene}.{arm}.allocations-{when}").write_text(
                    hist((*STACKS[0][:2], count), (*STACKS[4][:2], 1)), "ascii")
        report = mock.Mock(out=out, status=status)
        report.machine.release, report.choice.accel = "6.12-test", "tcg"
        return report

    for module in (guest, cli):
        monkeypatch.setattr(module, "BUILD", folder)
    monkeypatch.setattr(rootfs, "image", lambda packages: folder / "disk")
    monkeypatch.setattr(vm, "run", run)
    return booted


def bench(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit status of `lab bench`."""
    monkeypatch.setattr("sys.argv", ["lab bench", *words])
    return run_main("lab bench", cli.main)


def bzimage(path: Path) -> Path:
    """Write a file that looks like a kernel for x86."""
    path.write_bytes(bytes(0x202) + b"HdrS" + bytes(0x100))
    return path


def test_peer_is_booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                        capsys: pytest.CaptureFixture[str]) -> None:
    """With --peer, each round boots it; its figures are in the table and in the JSON file."""
    booted = fake_vms(tmp_path, monkeypatch)
    for name in ("ours", "stock"):
        bzimage(tmp_path / name)
    words = ["workloads", "--scenes", "arrays_freed", "--rounds", "2", "--kernel",
             f"{tmp_path}/ours", "--stock", f"{tmp_path}/stock", "--peer", f"{tmp_path}/peer"]
    assert bench(monkeypatch, *words) == 1
    assert "no kernel" in capsys.readouterr().err
    bzimage(tmp_path / "peer")
    assert bench(monkeypatch, *words) == 0
    order = [("stock", "stock"), ("peer", "peer"), ("ours", "off"), ("ours", "on")]
    assert [(machine.kernel.name, command[-3]) for machine, command in booted] == \
        order + order[::-1]
    assert "peer" in capsys.readouterr().out
    rows = json.loads((tmp_path / "bench/workloads-arrays_freed.json").read_text("ascii"))["rows"]
    assert [row["arm"] for row in rows if row["metric"] == "arrays_freed_max"] == \
        ["stock", "peer", "off", "on"]


def test_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All arms in all rounds; a lower throughput than that of stock misses the aim."""
    booted = fake_vms(tmp_path, monkeypatch)
    disks: list[tuple[str, ...]] = []

    def image(packages: tuple[str, ...]) -> Path:
        disks.append(packages)
        return tmp_path / "disk"

    monkeypatch.setattr(rootfs, "image", image)
    monkeypatch.setattr(guest, "compile_program", lambda source: tmp_path / "client")
    plan = workloads.Plan(rounds=2, scenes=("redis_flush", "redis_watched", "arrays_freed"))
    report = workloads.run(KERNELS, plan)
    both, sizes = "redis_flush,redis_watched", ("15000", "768")
    order = [("stock", "stock"), ("ours", "off"), ("ours", "on")]
    assert [(machine.kernel.name, *command[-4:]) for machine, command in booted] == [
        (kernel, scenes, arm, *sizes) for scenes in (both, "arrays_freed")
        for kernel, arm in order + order[::-1]]
    assert disks == [("coreutils", "dash", "redis-server", "redis-tools"),
                     ("coreutils", "dash", "python3-numpy")]
    assert report.kernel == "6.12-test"
    assert report.median("arrays_freed_lock_free", "on") == 0.6
    assert report.median("arrays_freed_lock_free", "off") is None
    assert [row.arm for row in report.rows if row.metric == "arrays_freed_max"] == \
        ["stock", "off", "on"]
    assert all(row.n == 2 for row in report.rows)
    assert [(aim.metric, aim.verdict()) for aim in report.aims] == [
        (metric, "NOT MET") for metric in (
            "redis_flush_rate", "redis_watched_rate", "redis_watched_max", "arrays_freed_rate")]


def test_only_allocations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    """One boot a round, with huge pages for everybody; other scenes are left out."""
    booted = fake_vms(tmp_path, monkeypatch)
    image = tmp_path / "traced"
    bzimage(tmp_path / "ours")
    monkeypatch.setattr(guest, "compile_program", lambda source: tmp_path / "client")
    monkeypatch.setattr(cli, "FLAVOURS", {
        name: mock.Mock(image=image) for name in FLAVOURS})
    words = ["workloads", "--allocations", "--rounds", "2", "--kernel", f"{tmp_path}/ours",
             "--scenes", "redis_flush,arrays_freed"]
    assert bench(monkeypatch, *words) == 1
    assert "needs the kernel microvm-trace" in capsys.readouterr().err
    bzimage(image)
    assert bench(monkeypatch, *words) == 0
    assert [(machine.kernel.name, command[-5], command[-1]) for machine, command in booted] == \
        [("traced", "redis_flush", "traced")] * 2
    assert all("transparent_hugepage=always" in machine.append for machine, _ in booted)
    assert "redis_flush_allocated_lock_free" in capsys.readouterr().out
    assert bench(monkeypatch, *words[:2], *words[4:-1], "arrays_freed") == 1
    assert "--allocations is for redis_flush" in capsys.readouterr().err


def test_other_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                            capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels are for the architecture of the flavour, and Debian's programs for the host's."""
    fake_vms(tmp_path, monkeypatch)
    words = ("workloads", "--quick", "--flavour", "microvm-arm64", "--kernel")
    assert bench(monkeypatch, *words, str(bzimage(tmp_path / "ours"))) == 1
    assert "ours is not a kernel for aarch64" in capsys.readouterr().err
    (tmp_path / "arm64").write_bytes(bytes(0x38) + b"ARM\x64")
    assert bench(monkeypatch, *words, f"{tmp_path}/arm64") == 1
    assert "another architecture than the kernel" in capsys.readouterr().err


def test_failed_vm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the VM and its logs."""
    fake_vms(tmp_path, monkeypatch, status=126)
    monkeypatch.setattr(guest, "compile_program", lambda source: tmp_path / "client")
    with pytest.raises(BenchError, match="workloads-redis-0-stock: .* status 126; logs are in"):
        workloads.run(KERNELS, workloads.Plan(scenes=("redis_flush",)))


@pytest.mark.parametrize(("words", "error"), [
    ((), "lab bench: error: no coreutils\n"),
    (("--scenes", "redis_slush"), "no 'redis_slush' in redis_flush")])
def test_no_download(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                     tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    """A failed download is one error; an unknown scene is refused before it."""
    kernel = bzimage(tmp_path / "kernel")

    def image(packages: tuple[str, ...]) -> Path:
        raise Fail(f"no {packages[0]}")

    monkeypatch.setattr(rootfs, "image", image)
    assert bench(monkeypatch, "workloads", "--quick", "--kernel", str(kernel), *words) == 1
    said = capsys.readouterr().err
    assert error in said and said.count("\n") == 1


def release(name: str) -> dict[str, str]:
    """Return the facts of a distribution."""
    return {"ID": name, "VERSION_CODENAME": "bookworm" if name == "debian" else ""}


def test_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is of Debian."""
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release("fedora"))
    with pytest.raises(Fail, match="not a Debian; run it on one"):
        rootfs.image(("redis-server",))


class FakeApt(Apt):
    """An apt whose archive is one package."""

    deb = Path()
    broken = ""

    def update(self) -> Apt:
        """Do nothing."""
        return self

    def run(self, program: str, *args: str,
            cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """List or download the package."""
        listed = f"'http://archive/a.deb' {self.deb.name} 9 SHA256:1\n"
        archives = self.folder / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        if self.broken == "list":
            return subprocess.CompletedProcess([], 100, "", "E: Unable to locate package a\n")
        if "--download-only" in args and self.broken != "download":
            (archives / self.deb.name).write_bytes(self.deb.read_bytes())
        failed = 100 if "--download-only" in args and self.broken == "download" else 0
        return subprocess.CompletedProcess([], failed, listed, "E: Failed to fetch\n")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[FakeApt]:
    """An archive with a package whose files are in /bin and in /usr/bin."""
    tree = tmp_path / "tree"
    for name in ("bin/one", "usr/bin/two", "usr/share/doc/text"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name, "ascii")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\n"
        "Description: a\n", "ascii")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, tmp_path / "a_1_all.deb"],
                   check=True, capture_output=True)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release("debian"))
    monkeypatch.setattr(Paths, "from_env", lambda: Paths(tmp_path, tmp_path / "build"))
    monkeypatch.setattr(rootfs, "Apt", FakeApt)
    monkeypatch.setattr(FakeApt, "deb", tmp_path / "a_1_all.deb")
    monkeypatch.setattr(FakeApt, "broken", "")
    return FakeApt


def test_image(archive: type[FakeApt]) -> None:
    """It is an ext4 file system, made once, and the packages are not kept."""
    assert archive.broken == ""
    made = rootfs.image(("a",))
    with made.open("rb") as file:
        file.seek(1024 + 0x38)
        assert file.read(2) == b"\x53\xef"
    with mock.patch.object(rootfs, "_make", side_effect=AssertionError):
        assert rootfs.image(("a",)) == made
    assert sorted(path.suffix for path in made.parent.iterdir()) == [".ext4", ".lock"]


def test_both_places_of_a_program_are_one(archive: type[FakeApt]) -> None:
    """Files of /bin are in /usr/bin; documents are left out."""
    found: list[str] = []

    def look(_: Path, tree: Path) -> None:
        found.extend(str(path.relative_to(tree)) for path in tree.rglob("*")
                     if path.is_file() and "usr" in path.relative_to(tree).parts)

    with mock.patch.object(rootfs, "_format", look):
        rootfs.image(("a",))
    assert archive.deb.exists()
    assert sorted(found) == ["usr/bin/one", "usr/bin/two"]


@pytest.mark.parametrize(("broken", "error"), [
    ("list", "no set of packages for a .Unable to locate package a.: check the network"),
    ("download", "download of a_1_all.deb failed .Failed to fetch.: check the network")])
def test_broken_archive(archive: type[FakeApt], monkeypatch: pytest.MonkeyPatch, broken: str,
                        error: str) -> None:
    """One clear error, and no image."""
    monkeypatch.setattr(archive, "broken", broken)
    with pytest.raises(Fail, match=error):
        rootfs.image(("a",))
    assert not list(Paths.from_env().build.glob("bench/rootfs/*.ext4"))


def test_damaged_package(archive: type[FakeApt], monkeypatch: pytest.MonkeyPatch,
                         tmp_path: Path) -> None:
    """It is downloaded again next time."""
    bad = tmp_path / "bad.deb"
    bad.write_text("not a package", "ascii")
    monkeypatch.setattr(archive, "deb", bad)
    with pytest.raises(Fail, match="cannot unpack bad.deb"):
        rootfs.image(("a",))
    assert not list(tmp_path.glob("build/**/bad.deb"))


def test_missing_tool(archive: type[FakeApt], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install."""
    assert archive.broken == ""
    monkeypatch.setattr(rootfs, "_tool", lambda name: None)
    with pytest.raises(Fail, match="mkfs.ext4 is missing: install e2fsprogs"):
        rootfs.image(("a",))


def test_virtual_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                      capsys: pytest.CaptureFixture[str]) -> None:
    """One CPU that counts instructions; the report and its file say so."""
    booted = fake_vms(tmp_path, monkeypatch)
    bzimage(tmp_path / "ours")
    words = ["workloads", "--kernel", f"{tmp_path}/ours", "--scenes", "arrays_freed",
             "--rounds", "1", "--virtual-time"]
    assert bench(monkeypatch, *words) == 0
    assert "QEMU TCG, virtual time" in capsys.readouterr().out
    assert (tmp_path / "bench/workloads-arrays_freed-virtual.json").is_file()
    assert booted
    for machine, _ in booted:
        assert (machine.icount, machine.icount_sleep, machine.cpus) == (0, True, 1)
    for wrong, error in (([*words, "--cpus", "2"], "takes no --cpus"),
                         (["spf", *words[1:3], "--virtual-time"], "not for spf")):
        assert bench(monkeypatch, *wrong) == 1
        assert error in capsys.readouterr().err

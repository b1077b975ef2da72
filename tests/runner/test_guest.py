# SPDX-License-Identifier: GPL-2.0-only
"""The root file system, what comes back from the guest, and the verdict."""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from unittest import mock

import pytest

from faultline.vm import accel, guest, session, verdict
from faultline.vm.arch import ARCHITECTURES, identify
from faultline.vm.console import Console
from faultline.vm.errors import RunnerError
from faultline.vm.initramfs import Archive, FileSet, elf_facts, guest_path
from faultline.vm.qemu import CHANNELS, Machine

X86 = ARCHITECTURES["x86_64"]
PPC = ARCHITECTURES["ppc64le"]
ARM = ARCHITECTURES["aarch64"]
LOG = Path("console.log")


def put(folder: Path, name: str, data: bytes, mode: int = 0o644) -> Path:
    """Make a file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    return path


def members(archive: Archive) -> dict[str, tuple[int, bytes]]:
    """Return {name: (mode, data)} of a written archive."""
    out = io.BytesIO()
    archive.write(out)
    data, place = out.getvalue(), 0
    found: dict[str, tuple[int, bytes]] = {}
    while True:
        assert data[place:place + 6] == b"070701", place
        fields = [int(data[place + 6 + 8 * i:place + 14 + 8 * i], 16) for i in range(13)]
        name = data[place + 110:place + 110 + fields[11] - 1].decode()
        place += (110 + fields[11] + 3) & ~3
        if name == "TRAILER!!!":
            return found
        found[name] = fields[1], data[place:place + fields[6]]
        place += (fields[6] + 3) & ~3


# --- The cpio archive and the files given with --file.

def files(*specs: str | Path) -> Archive:
    """Return the archive with the given --file arguments."""
    archive = Archive()
    fileset = FileSet(archive, X86.elf_machine)
    for spec in specs:
        fileset.add(str(spec))
    fileset.finish()
    return archive


def test_content_and_modes(tmp_path: Path) -> None:
    script = put(tmp_path, "go", b"#!/bin/sh\n", 0o755)
    plain = put(tmp_path, "data.bin", bytes(range(7)))
    found = members(files(script, f"{plain}:/lib/firmware/x", f"{plain}:sub/"))
    assert found["test/go"] == (0o100755, b"#!/bin/sh\n")
    assert found["lib/firmware/x"] == (0o100644, bytes(range(7)))
    assert found["test/sub/data.bin"][1] == bytes(range(7))
    assert found["lib/firmware"][0] == 0o040755


def test_directory(tmp_path: Path) -> None:
    put(tmp_path, "tree/b/run", b"1", 0o700)
    put(tmp_path, "tree/a", b"2")
    (tmp_path / "tree/link").symlink_to("b/run")
    found = members(files(tmp_path / "tree"))
    assert sorted(found) == ["test", "test/tree", "test/tree/a", "test/tree/b", "test/tree/b/run",
                             "test/tree/link"]
    assert found["test/tree/link"] == (0o120777, b"b/run")


def test_same_content_same_bytes(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        put(tmp_path, f"tree/{name}", name.encode())
    first, second = io.BytesIO(), io.BytesIO()
    files(tmp_path / "tree").write(first)
    for name in ("a", "b", "c"):
        os.utime(tmp_path / "tree" / name, (1, 1))
    files(tmp_path / "tree").write(second)
    assert first.getvalue() == second.getvalue()


@pytest.mark.skipif(not shutil.which("cpio"), reason="cpio is not installed")
def test_cpio_reads_it(tmp_path: Path) -> None:
    out = io.BytesIO()
    files(put(tmp_path, "odd", b"12345")).write(out)
    result = subprocess.run(["cpio", "-it", "--quiet"], input=out.getvalue(),
                            capture_output=True, check=True)
    assert result.stdout.split() == [b"test", b"test/odd"]


def test_shared_libraries_come_along() -> None:
    found = members(files(sys.executable))
    names = [Path(name).name for name in found]
    assert any(name.startswith("libc.so") for name in names), names
    assert any(name.startswith("ld-linux") for name in names), names


def test_interpreter_comes_along(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash
    found = members(files(put(tmp_path, "go", f"#!{bash} -e\n".encode(), 0o755)))
    assert found[bash.lstrip("/")][1].startswith(b"\x7fELF")


def test_errors(tmp_path: Path) -> None:
    one, two = put(tmp_path, "x/f", b"1"), put(tmp_path, "y/f", b"2")
    elf = bytearray(Path(sys.executable).read_bytes()[:4096])
    elf[18:20] = b"\x15\x00"
    other = put(tmp_path, "ppc", bytes(elf), 0o755)
    cases: list[tuple[list[str | Path], str]] = [
        ([tmp_path / "none"], "does not exist"), ([one, two], "another name"),
        ([f"{one}:/init"], "reserved"), ([f"{one}:/dev/x"], "reserved"),
        ([f"{one}:../x"], "'..'"), (["/dev/null"], "only files and directories"),
        ([other], "another machine")]
    for specs, text in cases:
        with pytest.raises(RunnerError, match=text):
            files(*specs)


def test_same_file_twice_is_fine(tmp_path: Path) -> None:
    one = put(tmp_path, "f", b"1")
    assert "test/f" in members(files(one, one))


def test_guest_path() -> None:
    for given, wanted in (("", "/test/n"), ("b", "/test/b"), ("d/", "/test/d/n"),
                          ("/bin/b", "/bin/b"), ("/opt/", "/opt/n")):
        assert guest_path(given, "n") == wanted


def test_elf_facts() -> None:
    assert elf_facts(b"\x7fELF") == (0, False)
    head = guest.busybox(X86).read_bytes()[:4096]
    assert elf_facts(head) == (X86.elf_machine, False)


def test_not_a_kernel(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="not a kernel image"):
        identify(put(tmp_path, "bzImage", b"hello"))
    with pytest.raises(RunnerError, match="cannot read the kernel"):
        identify(tmp_path / "none")


def test_kernel_of_another_machine(tmp_path: Path) -> None:
    head = b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + b"\x15"
    kernel = put(tmp_path, "vmlinux", head.ljust(64, b"\0"))
    assert identify(kernel) == (PPC, "")
    machine = Machine(kernel)
    assert machine.arch == PPC
    words = machine.qemu_command("qemu", {name: "null" for name in CHANNELS})
    assert "console=hvc0" in machine.kernel_command_line()
    assert ([word for word in words if word.startswith("spapr-vty")]
            == [f"spapr-vty,chardev={name}" for name in CHANNELS])


def test_kernel_for_arm64(tmp_path: Path) -> None:
    machine = Machine(put(tmp_path, "Image", b"MZ".ljust(0x38, b"\0") + b"ARM\x64" + bytes(64)))
    assert machine.arch == ARM
    words = machine.qemu_command("qemu", {name: "null" for name in CHANNELS})
    # The board's own port is the console: others do not work before there is PCI.
    assert words[words.index("-serial") + 1] == "chardev:console"
    assert ([word for word in words if word.startswith("pci-serial")]
            == [f"pci-serial,chardev={name}" for name in CHANNELS[1:]])


def test_toggles(tmp_path: Path) -> None:
    table = put(tmp_path, "switches", b"# vm.no 0\n\nvm.one 0  1  0  1  -  -\nvm.two 0 9 0 9 - -\n")
    assert guest.toggles(table) == ["vm/one", "vm/two"]


# --- The archive from a guest is not trusted.

def tar(folder: Path, *items: tuple[str, bytes, bytes]) -> Path:
    """Make an archive of (name, type, data)."""
    path = folder / "returned.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, kind, data in items:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), "/etc/passwd"
            info.mode = 0o755
            archive.addfile(info, io.BytesIO(data))
    return path


def unpack(folder: Path, path: Path, status: str | None = "0") -> int:
    """Unpack and return the count."""
    return verdict.unpack(path, folder / "files", status)


def test_files(tmp_path: Path) -> None:
    path = tar(tmp_path, ("./a", tarfile.REGTYPE, b"1"), ("./d", tarfile.DIRTYPE, b""),
               ("./d/b", tarfile.REGTYPE, b"2"), ("./l", tarfile.SYMTYPE, b""))
    assert unpack(tmp_path, path) == 2
    assert (tmp_path / "files/d/b").read_bytes() == b"2"
    assert not (tmp_path / "files/l").is_symlink()


def test_nothing(tmp_path: Path) -> None:
    assert unpack(tmp_path, put(tmp_path, "returned.tar.gz", b""), None) == 0


def test_outside(tmp_path: Path) -> None:
    for name in ("../evil", "/evil", "a/../../evil"):
        with pytest.raises(RunnerError, match="refused"):
            unpack(tmp_path, tar(tmp_path, (name, tarfile.REGTYPE, b"1")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files", "returned.tar.gz"]


def test_damage(tmp_path: Path) -> None:
    whole = tar(tmp_path, ("a", tarfile.REGTYPE, os.urandom(5000))).read_bytes()
    for data in (b"junk" * 200, whole[:2000], whole[:1000] + b"\0" * 50 + whole[1050:], b""):
        with pytest.raises(RunnerError):
            unpack(tmp_path, put(tmp_path, "returned.tar.gz", data))


def test_tar_failed_in_the_guest(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="could not send"):
        unpack(tmp_path, tar(tmp_path, ("a", tarfile.REGTYPE, b"1")), "1")


def outcome(log: str = "", qemu_status: int = 0, qemu_output: str = "", cut: str = "",
            **records: str) -> session.Outcome:
    """Return an Outcome with a console log and status records."""
    console = Console()
    console.feed(log.encode())
    made = session.Outcome(console, dict(records), cut)
    made.qemu_status, made.qemu_output = qemu_status, qemu_output
    return made


# --- The exit code for every outcome of a boot.

def ended(log: str = "", cut: str = "", **records: str) -> session.Outcome:
    """Return the outcome of a guest that has ended by itself."""
    return outcome(log, 0, "", cut,
                   **{"start": "1", "exit": "0", "taint": "0", "end": "", **records})


WARNING = "[    1.000000] WARNING: CPU: 0 PID: 1 at mm/vma.c:1 f+0x1/0x2\n"


@pytest.mark.parametrize(("code", "reason", "made"), [
    # The command decides, except by codes that mean something else.
    *((code, "", ended(exit=str(code))) for code in (0, 1, 42, 122)),
    *((123, reason, ended(exit=str(code))) for code, reason in (
        (123, "exit code 123"), (126, "exit code 126"), (255, "255"), (139, "signal 11"),
        (137, "signal 9"))),
    # Kernel trouble wins.
    (126, "console.log:1", ended(WARNING)),
    (126, "warn", outcome(WARNING, cut="timeout", start="1")),
    (126, "tainted: WARN", ended(taint="512")),
    (124, "the command ran", outcome(cut="timeout", start="1")),
    (124, "still booting", outcome(cut="stall")),
    # Silent death.
    (126, "while the command ran", outcome(start="1")),
    (126, "before the command", outcome()),
    (126, "without a report", outcome(start="1", exit="0")),
    (126, "reset", ended(cut="reset")),
    (125, "no such machine", outcome(qemu_status=1, qemu_output="no such machine")),
    (126, "damaged", ended(exit="x1"))])
def test_exit_code(code: int, reason: str, made: session.Outcome) -> None:
    """The verdict's exit code and reason."""
    result = verdict.judge(made, allow_warn=False, log=LOG)
    assert result.exit == code, result.reason
    assert reason in result.reason


def test_allowed_taint() -> None:
    assert verdict.judge(ended(taint="512"), allow_warn=True, log=LOG).exit == 0


# --- Errors of the host, and the choice of the accelerator.

def test_full_disk() -> None:
    with pytest.raises(RunnerError, match="No space left on device.*--out"):
        session.LogFile(Path("/dev/full")).write(b"x")


def test_build_folder(tmp_path: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if key != "KERNEL"}
    said = subprocess.run([sys.executable, "-m", "faultline", "vm", "run", "true"],
                          env={**clean, "BUILD": str(tmp_path)}, text=True,
                          capture_output=True, check=False).stderr
    assert f"cannot read the kernel {tmp_path}/microvm/" in said


def test_dynamic_busybox(tmp_path: Path) -> None:
    (tmp_path / "busybox").symlink_to(sys.executable)
    with mock.patch.dict(os.environ, PATH=str(tmp_path), BUILD=str(tmp_path)):
        with pytest.raises(RunnerError, match="not statically linked; install"):
            guest.busybox(X86)


def test_busybox_of_another_machine(tmp_path: Path) -> None:
    with mock.patch.dict(os.environ, BUILD=str(tmp_path)):
        with pytest.raises(RunnerError, match="not run on ppc64le; run 'tools/fl"):
            guest.busybox(PPC)
        elf = bytearray(guest.busybox(X86).read_bytes())
        elf[18:20] = b"\x15\x00"
        fetched = put(tmp_path, "cache/busybox-ppc64le", bytes(elf))
        assert guest.busybox(PPC) == fetched


def machine_in(folder: Path, kernel: bytes = b"1") -> Machine:
    """Return a machine with a file for an x86 kernel that ends in these bytes."""
    head = b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + b"\x3e"
    return Machine(put(folder, "kernel", head.ljust(64, b"\0") + kernel), folder / "initramfs")


def choose(folder: Path, cache: Path, answer: tuple[str, bool] | None,
           kernel: bytes = b"1") -> tuple[accel.Choice, mock.Mock]:
    """Choose with a probe that returns answer; return choice and probe."""
    with mock.patch.object(accel, "_unusable", return_value=""), \
            mock.patch.object(accel, "probe", side_effect=[answer]) as probe:
        return accel.choose("auto", machine_in(folder, kernel), cache), probe


def test_probe_is_remembered_until_the_host_boots(tmp_path: Path) -> None:
    cache = tmp_path / "sub/cache.json"
    for answer, wanted in ((("broken", True), "tcg"), (("", True), "kvm")):
        cache.unlink(missing_ok=True)
        assert choose(tmp_path, cache, answer)[0].accel == wanted
        choice, probe = choose(tmp_path, cache, None)
        assert choice.accel == wanted
        probe.assert_not_called()
        boot_id = put(tmp_path, "boot_id", b"another\n")
        with mock.patch.object(accel, "_BOOT_ID", boot_id):
            choose(tmp_path, cache, answer)[1].assert_called_once()


def test_kernel_that_fails_under_kvm_says_nothing_about_others(tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    assert choose(tmp_path, cache, ("bad kernel", False))[0].accel == "tcg"
    choose(tmp_path, cache, None)
    choice, probe = choose(tmp_path, cache, ("", True), b"2")
    probe.assert_called_once()
    assert choice.accel == "kvm"


def test_damaged_cache_is_made_again(tmp_path: Path) -> None:
    for text in (b"", b"{", b"[]", b'{"host": 1}'):
        choose(tmp_path, put(tmp_path, "cache.json", text), ("", True))[1].assert_called_once()


def test_no_device(tmp_path: Path) -> None:
    with mock.patch.object(accel, "_DEVICE", tmp_path / "kvm"):
        assert "does not exist" in accel.choose("auto", machine_in(tmp_path), LOG).why
        with pytest.raises(RunnerError, match="does not exist"):
            accel.choose("kvm", machine_in(tmp_path), LOG)


def test_icount_is_tcg(tmp_path: Path) -> None:
    machine = machine_in(tmp_path)
    machine.icount = 0
    assert accel.choose("auto", machine, LOG).accel == "tcg"
    with pytest.raises(RunnerError, match="only TCG"):
        accel.choose("kvm", machine, LOG)
    command = machine.qemu_command("qemu", {})
    assert "shift=0,sleep=off" in command
    machine.icount_sleep = True
    assert "shift=0,sleep=on" in machine.qemu_command("qemu", {})
    assert "norandmaps" in machine.kernel_command_line().split()


def test_icount_fair(tmp_path: Path) -> None:
    """A CPU that the guest does not start is created after each one that it does."""
    machine = machine_in(tmp_path)
    machine.icount, machine.icount_fair, machine.cpus = 4, True, 3
    command = machine.qemu_command("qemu", {})
    cores = [re.findall(r"core-id=(\d+)", word) for word in command if "core-id" in word]
    # QEMU itself creates core 0.
    assert [int(core) for core, in cores] == [3, 1, 4, 2, 5]
    assert command[command.index("-smp") + 1].startswith("1,maxcpus=6,")
    assert "nr_cpus=3" in machine.kernel_command_line().split()

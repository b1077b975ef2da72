# SPDX-License-Identifier: GPL-2.0-only
"""The root file system, what comes back from the guest, and the verdict."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from faultline.vm import accel, guest, session, verdict
from faultline.vm.arch import ARCHITECTURES, identify
from faultline.vm.console import Console
from faultline.vm.errors import RunnerError
from faultline.vm.initramfs import Archive, FileSet, elf_facts, guest_path
from faultline.vm.qemu import CHANNELS, Machine

X86 = ARCHITECTURES["x86_64"]
PPC = ARCHITECTURES["ppc64le"]
LOG = Path("console.log")


class Scratch(unittest.TestCase):
    """A test with its own directory."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = Path(scratch.name)

    def put(self, name: str, data: bytes, mode: int = 0o644) -> Path:
        """Make a file."""
        path = self.dir / name
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


class Initramfs(Scratch):
    """The cpio archive and the files given with --file."""

    def files(self, *specs: str | Path) -> Archive:
        """Return the archive with the given --file arguments."""
        archive = Archive()
        fileset = FileSet(archive, X86.elf_machine)
        for spec in specs:
            fileset.add(str(spec))
        self.library_path = fileset.finish()
        return archive

    def test_content_and_modes(self) -> None:
        script = self.put("go", b"#!/bin/sh\n", 0o755)
        plain = self.put("data.bin", bytes(range(7)))
        found = members(self.files(script, f"{plain}:/lib/firmware/x", f"{plain}:sub/"))
        self.assertEqual(found["test/go"], (0o100755, b"#!/bin/sh\n"))
        self.assertEqual(found["lib/firmware/x"], (0o100644, bytes(range(7))))
        self.assertEqual(found["test/sub/data.bin"][1], bytes(range(7)))
        self.assertEqual(found["lib/firmware"][0], 0o040755)

    def test_directory(self) -> None:
        self.put("tree/b/run", b"1", 0o700)
        self.put("tree/a", b"2")
        (self.dir / "tree/link").symlink_to("b/run")
        found = members(self.files(self.dir / "tree"))
        self.assertEqual(sorted(found), ["test", "test/tree", "test/tree/a", "test/tree/b",
                                         "test/tree/b/run", "test/tree/link"])
        self.assertEqual(found["test/tree/link"], (0o120777, b"b/run"))

    def test_same_content_same_bytes(self) -> None:
        for name in ("c", "a", "b"):
            self.put(f"tree/{name}", name.encode())
        first, second = io.BytesIO(), io.BytesIO()
        self.files(self.dir / "tree").write(first)
        for name in ("a", "b", "c"):
            os.utime(self.dir / "tree" / name, (1, 1))
        self.files(self.dir / "tree").write(second)
        self.assertEqual(first.getvalue(), second.getvalue())

    @unittest.skipUnless(shutil.which("cpio"), "cpio is not installed")
    def test_cpio_reads_it(self) -> None:
        out = io.BytesIO()
        self.files(self.put("odd", b"12345")).write(out)
        result = subprocess.run(["cpio", "-it", "--quiet"], input=out.getvalue(),
                                capture_output=True, check=True)
        self.assertEqual(result.stdout.split(), [b"test", b"test/odd"])

    def test_shared_libraries_come_along(self) -> None:
        found = members(self.files(sys.executable))
        names = [Path(name).name for name in found]
        self.assertTrue(any(name.startswith("libc.so") for name in names), names)
        self.assertTrue(any(name.startswith("ld-linux") for name in names), names)

    def test_interpreter_comes_along(self) -> None:
        bash = shutil.which("bash")
        assert bash
        found = members(self.files(self.put("go", f"#!{bash} -e\n".encode(), 0o755)))
        self.assertTrue(found[bash.lstrip("/")][1].startswith(b"\x7fELF"))

    def test_errors(self) -> None:
        one, two = self.put("x/f", b"1"), self.put("y/f", b"2")
        elf = bytearray(Path(sys.executable).read_bytes()[:4096])
        elf[18:20] = b"\x15\x00"
        other = self.put("ppc", bytes(elf), 0o755)
        cases: list[tuple[list[str | Path], str]] = [
            ([self.dir / "none"], "does not exist"), ([one, two], "another name"),
            ([f"{one}:/init"], "reserved"), ([f"{one}:/dev/x"], "reserved"),
            ([f"{one}:../x"], "'..'"), (["/dev/null"], "only files and directories"),
            ([other], "another machine")]
        for specs, text in cases:
            with self.subTest(text), self.assertRaisesRegex(RunnerError, text):
                self.files(*specs)

    def test_same_file_twice_is_fine(self) -> None:
        one = self.put("f", b"1")
        self.assertIn("test/f", members(self.files(one, one)))

    def test_guest_path(self) -> None:
        for given, wanted in (("", "/test/n"), ("b", "/test/b"), ("d/", "/test/d/n"),
                              ("/bin/b", "/bin/b"), ("/opt/", "/opt/n")):
            self.assertEqual(guest_path(given, "n"), wanted)

    def test_elf_facts(self) -> None:
        self.assertEqual(elf_facts(b"\x7fELF"), (0, False))
        head = guest.busybox(X86).read_bytes()[:4096]
        self.assertEqual(elf_facts(head), (X86.elf_machine, False))

    def test_not_a_kernel(self) -> None:
        with self.assertRaisesRegex(RunnerError, "not a kernel image"):
            identify(self.put("bzImage", b"hello"))
        with self.assertRaisesRegex(RunnerError, "cannot read the kernel"):
            identify(self.dir / "none")

    def test_kernel_of_another_machine(self) -> None:
        head = b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + b"\x15"
        kernel = self.put("vmlinux", head.ljust(64, b"\0"))
        self.assertEqual(identify(kernel), (PPC, ""))
        machine = Machine(PPC, kernel, self.dir / "initramfs")
        words = machine.qemu_command("qemu", {name: "null" for name in CHANNELS})
        self.assertIn("console=hvc0", machine.kernel_command_line())
        self.assertEqual([word for word in words if word.startswith("spapr-vty")],
                         [f"spapr-vty,chardev={name}" for name in CHANNELS])

    def test_toggles(self) -> None:
        self.put("sysctl/60-x.conf", b"# vm.no = 1\n-vm.one = 0\nvm/two=1\nkernel.other = 1\n")
        self.assertEqual(guest.toggles(self.dir / "sysctl"), ["vm/one", "vm/two"])


class Returned(Scratch):
    """The archive from a guest is not trusted."""

    def tar(self, *items: tuple[str, bytes, bytes]) -> Path:
        """Make an archive of (name, type, data)."""
        path = self.dir / "returned.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name, kind, data in items:
                info = tarfile.TarInfo(name)
                info.type, info.size, info.linkname = kind, len(data), "/etc/passwd"
                info.mode = 0o755
                archive.addfile(info, io.BytesIO(data))
        return path

    def unpack(self, path: Path, status: str | None = "0") -> int:
        """Unpack and return the count."""
        return verdict.unpack(path, self.dir / "files", status)

    def test_files(self) -> None:
        path = self.tar(("./a", tarfile.REGTYPE, b"1"), ("./d", tarfile.DIRTYPE, b""),
                        ("./d/b", tarfile.REGTYPE, b"2"), ("./l", tarfile.SYMTYPE, b""))
        self.assertEqual(self.unpack(path), 2)
        self.assertEqual((self.dir / "files/d/b").read_bytes(), b"2")
        self.assertFalse((self.dir / "files/l").is_symlink())

    def test_nothing(self) -> None:
        self.assertEqual(self.unpack(self.put("returned.tar.gz", b""), None), 0)

    def test_outside(self) -> None:
        for name in ("../evil", "/evil", "a/../../evil"):
            with self.assertRaisesRegex(RunnerError, "refused"):
                self.unpack(self.tar((name, tarfile.REGTYPE, b"1")))
        self.assertEqual(sorted(path.name for path in self.dir.iterdir()),
                         ["files", "returned.tar.gz"])

    def test_damage(self) -> None:
        whole = self.tar(("a", tarfile.REGTYPE, os.urandom(5000))).read_bytes()
        for data in (b"junk" * 200, whole[:2000], whole[:1000] + b"\0" * 50 + whole[1050:], b""):
            with self.subTest(len(data)), self.assertRaises(RunnerError):
                self.unpack(self.put("returned.tar.gz", data))

    def test_tar_failed_in_the_guest(self) -> None:
        with self.assertRaisesRegex(RunnerError, "could not send"):
            self.unpack(self.tar(("a", tarfile.REGTYPE, b"1")), "1")


def outcome(log: str = "", qemu_status: int = 0, qemu_output: str = "", cut: str = "",
            **records: str) -> session.Outcome:
    """Return an Outcome with a console log and status records."""
    console = Console()
    console.feed(log.encode())
    made = session.Outcome(console, dict(records), cut)
    made.qemu_status, made.qemu_output = qemu_status, qemu_output
    return made


class Verdicts(unittest.TestCase):
    """The exit code for every outcome of a boot."""

    def check(self, exit_code: int, reason: str, made: session.Outcome,
              allow_warn: bool = False) -> None:
        """Compare the verdict's exit code and reason."""
        result = verdict.judge(made, allow_warn=allow_warn, log=LOG)
        self.assertEqual(result.exit, exit_code, result.reason)
        self.assertIn(reason, result.reason)

    def test_the_command_decides(self) -> None:
        for code in (0, 1, 42, 122):
            self.check(code, "", outcome(start="1.0", exit=str(code), taint="0", end=""))

    def test_codes_that_mean_something_else(self) -> None:
        for code, reason in ((123, "exit code 123"), (126, "exit code 126"), (255, "255"),
                             (139, "signal 11"), (137, "signal 9")):
            self.check(123, reason, outcome(start="1", exit=str(code), taint="0", end=""))

    def test_kernel_trouble_wins(self) -> None:
        log = "[    1.000000] WARNING: CPU: 0 PID: 1 at mm/vma.c:1 f+0x1/0x2\n"
        self.check(126, "console.log:1", outcome(log, start="1", exit="0", taint="0", end=""))
        self.check(126, "warn", outcome(log, cut="timeout", start="1"))

    def test_taint(self) -> None:
        made = outcome(start="1", exit="0", taint="512", end="")
        self.check(126, "tainted: WARN", made)
        self.check(0, "", made, allow_warn=True)

    def test_time(self) -> None:
        self.check(124, "the command ran", outcome(cut="timeout", start="1"))
        self.check(124, "still booting", outcome(cut="stall"))

    def test_silent_death(self) -> None:
        self.check(126, "while the command ran", outcome(start="1"))
        self.check(126, "before the command", outcome())
        self.check(126, "without a report", outcome(start="1", exit="0"))
        self.check(126, "reset", outcome(cut="reset", start="1", exit="0", taint="0", end=""))

    def test_qemu_failed(self) -> None:
        self.check(125, "no such machine", outcome(qemu_status=1, qemu_output="no such machine"))

    def test_damaged_record(self) -> None:
        self.check(126, "damaged", outcome(start="1", exit="x1", taint="0", end=""))


class Host(Scratch):
    """Errors of the host, and the choice of the accelerator."""

    def test_full_disk(self) -> None:
        with self.assertRaisesRegex(RunnerError, "No space left on device.*--out"):
            session.LogFile(Path("/dev/full")).write(b"x")

    def test_build_folder(self) -> None:
        clean = {key: value for key, value in os.environ.items() if key != "KERNEL"}
        said = subprocess.run([sys.executable, "-m", "faultline", "vm", "run", "true"],
                              env={**clean, "BUILD": str(self.dir)}, text=True,
                              capture_output=True, check=False).stderr
        self.assertIn(f"cannot read the kernel {self.dir}/microvm/", said)

    def test_dynamic_busybox(self) -> None:
        (self.dir / "busybox").symlink_to(sys.executable)
        with mock.patch.dict(os.environ, PATH=str(self.dir), BUILD=str(self.dir)):
            with self.assertRaisesRegex(RunnerError, "not statically linked; install"):
                guest.busybox(X86)

    def test_busybox_of_another_machine(self) -> None:
        with mock.patch.dict(os.environ, BUILD=str(self.dir)):
            with self.assertRaisesRegex(RunnerError, "not run on ppc64le; run 'kernel/scripts/fl"):
                guest.busybox(PPC)
            elf = bytearray(guest.busybox(X86).read_bytes())
            elf[18:20] = b"\x15\x00"
            fetched = self.put("cache/busybox-ppc64le", bytes(elf))
            self.assertEqual(guest.busybox(PPC), fetched)

    def machine(self) -> Machine:
        """Return a machine with a file for a kernel."""
        return Machine(X86, self.put("kernel", b"1"), self.dir / "initramfs")

    def choose(self, cache: Path,
               answer: tuple[str, bool] | None) -> tuple[accel.Choice, mock.Mock]:
        """Choose with a probe that returns answer; return choice and probe."""
        with mock.patch.object(accel, "_unusable", return_value=""), \
                mock.patch.object(accel, "probe", side_effect=[answer]) as probe:
            return accel.choose("auto", self.machine(), cache), probe

    def test_probe_is_remembered_until_the_host_boots(self) -> None:
        cache = self.dir / "sub/cache.json"
        for answer, wanted in ((("broken", True), "tcg"), (("", True), "kvm")):
            cache.unlink(missing_ok=True)
            self.assertEqual(self.choose(cache, answer)[0].accel, wanted)
            choice, probe = self.choose(cache, None)
            self.assertEqual(choice.accel, wanted)
            probe.assert_not_called()
            boot_id = self.put("boot_id", b"another\n")
            with mock.patch.object(accel, "_BOOT_ID", boot_id):
                self.choose(cache, answer)[1].assert_called_once()

    def test_kernel_that_fails_under_kvm_says_nothing_about_others(self) -> None:
        cache = self.dir / "cache.json"
        self.assertEqual(self.choose(cache, ("bad kernel", False))[0].accel, "tcg")
        self.choose(cache, None)
        self.put("kernel", b"2")
        with mock.patch.object(self, "machine", lambda: Machine(
                X86, self.put("kernel", b"2"), self.dir / "initramfs")):
            choice, probe = self.choose(cache, ("", True))
        probe.assert_called_once()
        self.assertEqual(choice.accel, "kvm")

    def test_damaged_cache_is_made_again(self) -> None:
        for text in (b"", b"{", b"[]", b'{"host": 1}'):
            self.choose(self.put("cache.json", text), ("", True))[1].assert_called_once()

    def test_no_device(self) -> None:
        with mock.patch.object(accel, "_DEVICE", self.dir / "kvm"):
            self.assertIn("does not exist", accel.choose("auto", self.machine(), LOG).why)
            with self.assertRaisesRegex(RunnerError, "does not exist"):
                accel.choose("kvm", self.machine(), LOG)

    def test_icount_is_tcg(self) -> None:
        machine = self.machine()
        machine.icount = 0
        self.assertEqual(accel.choose("auto", machine, LOG).accel, "tcg")
        with self.assertRaisesRegex(RunnerError, "only TCG"):
            accel.choose("kvm", machine, LOG)
        command = machine.qemu_command("qemu", {})
        self.assertIn("shift=0,sleep=off", command)
        self.assertIn("norandmaps", machine.kernel_command_line().split())


if __name__ == "__main__":
    unittest.main()

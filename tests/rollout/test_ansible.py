# SPDX-License-Identifier: GPL-2.0-only
"""The Ansible playbooks, on a throw-away copy of this host's files.

apt, dpkg and faultline-ab are the real ones; the repository has packages of the right names with
the agent's files.  test_fleet_trial.py has the playbook that calls faultline-rollout.
"""
from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from faultline.common import ROOT

ANSIBLE = ROOT / "rollout/ansible"
PLAYBOOKS = sorted(path.name for path in ANSIBLE.glob("*.yml"))
# Changes go to a tmpfs, not to this host.
MOUNT = r"""set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay none -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" "$1/root"
mount -t proc none "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs none "$1/root/tmp"
mount -t tmpfs none "$1/root/run"
mkdir "$1/root/tmp/ansible" "$1/root/tmp/repository"
cp -R "$2/rollout" "$1/root/tmp/ansible/"
cp -R "$3"/. "$1/root/tmp/repository"
rm -rf "$1/root/etc/apt/sources.list" "$1/root/etc/apt/sources.list.d"/*
exec chroot "$1/root" sh -c 'echo ready; exec sleep infinity'
"""
# There is no systemd in the copy.
SYSTEMCTL = r"""#!/bin/sh
case $1 in
show) printf 'LoadState=loaded\nActiveState=active\nSubState=running\n' ;;
*) echo "$*" >>/run/systemctl.calls ;;
esac
"""
SOURCES = "Types: deb\nURIs: file:/tmp/repository\nSuites: ./\nTrusted: yes\n"


def package(folder: pathlib.Path, name: str, files: dict[str, pathlib.Path] | None = None) -> None:
    """Make a small package."""
    place = folder / "work" / name
    (place / "DEBIAN").mkdir(parents=True)
    (place / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: Test <test@example.com>\n"
        "Description: for a test\n")
    for target, source in (files or {}).items():
        (place / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place / target)
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", place, folder / f"{name}.deb"],
                   check=True, stdout=subprocess.DEVNULL)


@dataclasses.dataclass
class Host:
    """A copy of this host."""

    process: subprocess.Popen[str]

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        return subprocess.run(
            ["nsenter", "--target", str(self.process.pid), "--mount", "--root",
             "sh", "-c", 'cd / && exec "$@"', "sh", *words],
            input=stdin, capture_output=True, text=True, check=False, timeout=900,
            env={"PATH": os.environ["PATH"], "HOME": "/tmp", "LC_ALL": "C.UTF-8"})

    def shell(self, script: str) -> str:
        """Run a script; returns its output."""
        done = self.run("sh", "-ec", script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def play(self, name: str, *words: str) -> tuple[int, int, str]:
        """Run a playbook: exit status, how many tasks changed something, output."""
        done = self.run("ansible-playbook", "-i", "localhost,", "-c", "local",
                        "-e", "ansible_python_interpreter=/usr/bin/python3",
                        f"/tmp/ansible/rollout/ansible/{name}", *words)
        text = done.stdout + done.stderr
        found = re.search(r"changed=(\d+)", text)
        assert found, text
        return done.returncode, int(found[1]), text

    def files(self) -> str:
        """The contents of the folders that playbooks may change."""
        return self.shell("find /etc /var/lib/dpkg/info /var/lib/prometheus "
                          "/usr/lib/faultline ! -name ld.so.cache -printf '%p %m %s %T@\\n' "
                          "2>/dev/null | sort || true")


@pytest.fixture(name="host")
def fixture_host(tmp_path: pathlib.Path) -> Iterator[Host]:
    """A copy of this host, with a repository."""
    if os.geteuid():
        pytest.skip("needs root: mount")
    repository = tmp_path / "repository"
    repository.mkdir()
    for name in ("linux-image-faultline", "prometheus-node-exporter"):
        package(repository, name)
    package(repository, "faultline-profiles",
            {"usr/share/faultline/switches": ROOT / "sysctl/switches"})
    package(repository, "faultline-host", {
        "usr/sbin/faultline-ab": ROOT / "rollout/host/faultline-ab",
        **{f"usr/lib/faultline/{name}.sh": ROOT / f"rollout/host/{name}.sh"
           for name in ("common", "owners", "plan", "state")}})
    shutil.rmtree(repository / "work")
    with open(repository / "Packages", "w", encoding="utf-8") as index:
        subprocess.run(["apt-ftparchive", "packages", "."], cwd=repository, stdout=index,
                       check=True)
    (tmp_path / "mount").mkdir()
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", MOUNT, "sh", tmp_path / "mount", ROOT,
                           repository], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            found = Host(process)
            found.run("sh", "-c", "cat >/tmp/faultline.sources", stdin=SOURCES)
            found.run("sh", "-c", "rm -f /usr/bin/systemctl; cat >/usr/bin/systemctl; "
                      "chmod 755 /usr/bin/systemctl", stdin=SYSTEMCTL)
            yield found
        finally:
            process.kill()


def install(host: Host) -> None:
    """Put the agent there."""
    status, _, text = host.play("kernel.yml", "-e", "faultline_repository=/tmp/faultline.sources")
    assert status == 0, text


def unchanged(host: Host, name: str, *words: str) -> None:
    """A second run, and a dry run, change nothing and say so."""
    before = host.files()
    for more in ((), ("--check",)):
        assert host.play(name, *words, *more)[:2] == (0, 0)
    assert host.files() == before


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_syntax(name: str) -> None:
    """Each playbook parses, and its roles exist."""
    subprocess.run(["ansible-playbook", "--syntax-check", "-i", "localhost,", ANSIBLE / name],
                   check=True, stdout=subprocess.DEVNULL)


def defined(part: object) -> Iterator[str]:
    """The variables that tasks define."""
    if isinstance(part, list):
        for one in part:
            yield from defined(one)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key == "register":
                yield value
            elif key in ("vars", "ansible.builtin.set_fact"):
                yield from value
            else:
                yield from defined(value)


def test_variables() -> None:
    """The names of all variables begin with that of the project, as .ansible-lint promises."""
    names = [name for path in ANSIBLE.glob("roles/*/defaults/*.yml")
             for name in yaml.safe_load(path.read_text())]
    for path in (*ANSIBLE.glob("*.yml"), *ANSIBLE.glob("roles/*/tasks/*.yml")):
        names += defined(yaml.safe_load(path.read_text()))
    assert {"faultline_repository", "faultline_flavour", "faultline_trial"} < set(names)
    assert not [name for name in names if not name.startswith("faultline_")]


def test_variables_of_the_operator() -> None:
    """No task of a role registers a variable that a playbook takes from the operator.

    The operator's value, given for all playbooks, would take the place of the result.
    """
    taken = {name for path in ANSIBLE.glob("*.yml")
             for name in re.findall(r"faultline_\w+", path.read_text())}
    assert "faultline_options" in taken
    for path in ANSIBLE.glob("roles/*/tasks/*.yml"):
        assert not taken & set(defined(yaml.safe_load(path.read_text()))), path


def test_lint(tmp_path: pathlib.Path) -> None:
    """ansible-lint accepts the playbooks, and finds a planted mistake."""
    copy = tmp_path / "ansible"
    shutil.copytree(ANSIBLE, copy)
    lint = ["ansible-lint", "--offline", "--nocolor", *PLAYBOOKS,
            *(f"roles/{path.name}" for path in sorted((copy / "roles").iterdir()))]
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(lint, cwd=copy, capture_output=True, text=True, check=False,
                          env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(copy / "roles/ab/tasks/main.yml", "a", encoding="utf-8") as tasks:
        tasks.write("\n- command: true\n")
    assert subprocess.run(lint, cwd=copy, capture_output=True, check=False,
                          env=environment).returncode


def test_kernel(host: Host) -> None:
    """The kernel is installed once; a dry run before it changes nothing."""
    words = ("-e", "faultline_repository=/tmp/faultline.sources")
    before = host.files()
    status, changed, text = host.play("kernel.yml", *words, "--check")
    assert status == 0 and changed == 1, text
    assert host.files() == before
    status, changed, text = host.play("kernel.yml", *words)
    assert status == 0 and changed == 2, text
    assert "install ok installed" in host.shell("dpkg -s linux-image-faultline faultline-host")
    unchanged(host, "kernel.yml", *words)
    assert host.play("kernel.yml", *words, "-e", "faultline_flavour=big")[0] == 2


OPTIONS = "/etc/default/prometheus-node-exporter"
CONFLICT = 'ARGS="--collector.vmstat.fields=^nr_dirty$"\n'
THEIRS = r"""# Their options.
ARGS="--web.config.file=/etc/prometheus/web-config.yml --web.listen-address=127.0.0.1:9100 \
    --collector.systemd --collector.netdev.device-exclude=\"^(lo|veth.*)$\""
# The end.
"""


def test_ab(host: Host) -> None:
    """node_exporter gets its flags once, and keeps those that it had, or the role refuses.

    It gets those of switches only on a Faultline kernel.
    """
    install(host)
    host.shell(f"cat >{OPTIONS} <<'END'\n{CONFLICT}END\nchmod 640 {OPTIONS}")
    status, _, text = host.play("ab.yml")
    assert status == 2 and re.search("by hand.*--collector.vmstat.fields=.*oom_kill", text), text
    assert host.shell(f"cat {OPTIONS}") == CONFLICT
    host.shell(f"cat >{OPTIONS} <<'END'\n{THEIRS}END")
    status, changed, text = host.play("ab.yml")
    assert status == 0 and changed >= 1, text
    assert host.shell("cat /run/systemctl.calls") == "restart prometheus-node-exporter.service\n"
    there = host.shell(f"cat {OPTIONS}")
    added = re.search(r"(?m)^# In ARGS by .*: (--.*)\n", there)
    assert added and there.replace(added[0], "").replace(f" {added[1]}", "") == THEIRS, there
    kernel = os.path.exists("/proc/sys/vm/munmap_section_kbytes")
    assert ("--collector.sysctl" in added[1]) == kernel
    assert "(munmap|madvise|walk)_section_" in added[1]
    assert "--collector.textfile.directory=/var/lib" in added[1]
    assert host.shell(f"cat {OPTIONS}.*~; stat -c %a {OPTIONS}") == f"{THEIRS}640\n"
    unchanged(host, "ab.yml")
    assert host.shell("wc -l </run/systemctl.calls").strip() == "1"


def merge(text: str, wanted: list[str], own: tuple[str, ...] = ()) -> dict[str, str]:
    """The filter of the role."""
    path = ANSIBLE / "roles/ab/filter_plugins/node_exporter.py"
    spec = importlib.util.spec_from_file_location("node_exporter", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result: dict[str, str] = module.merge(text, wanted, list(own))
    return result


FLAGS = ["--collector.a.b=^(x|y).*", "--collector.sysctl.include=v"]
ADDED = " ".join(FLAGS)


@pytest.mark.parametrize("before, after", [
    ("", f'ARGS="{ADDED}"'),
    ("# ARGS=\n", f'ARGS="{ADDED}"'),
    ("ARGS=\n", f'ARGS="{ADDED}"'),
    ('ARGS=""\n', f'ARGS="{ADDED}"'),
    ("ARGS=--mine\n", f"ARGS=--mine {ADDED}"),
    ("ARGS=--mine \\\n  --more\nB=1\n", f"ARGS=--mine \\\n  --more {ADDED}\nB=1"),
    ("ARGS='--mine'\nB=\"2\"\n", f"ARGS='--mine {ADDED}'\nB=\"2\""),
    (f'ARGS="--mine {FLAGS[0]}"\n', f'ARGS="--mine {FLAGS[0]} {FLAGS[1]}"'),
    (f'ARGS="{ADDED} --mine"\n', f'ARGS="{ADDED} --mine"'),
    ('ARGS="--collector.disable-defaults --collector.time"\n',
     f'ARGS="--collector.disable-defaults --collector.time {ADDED} --collector.stat '
     '--collector.textfile --collector.uname --collector.vmstat"'),
    ('ARGS="--collector.sysctl.include=w"\n', f'ARGS="--collector.sysctl.include=w {ADDED}"'),
])
def test_merge(before: str, after: str) -> None:
    """The flags are added once, and another run with others takes them out again."""
    done = merge(before, FLAGS)
    assert done["problem"] == "" and after in done["text"], done
    assert merge(done["text"], FLAGS) == done
    other = [FLAGS[0], "--collector.c=new"]
    assert merge(done["text"], other)["text"] == merge(before, other)["text"]


def test_merge_own() -> None:
    """Flags that the administrator takes care of are not added."""
    text = 'ARGS="--collector.a.b=mine"\n'
    done = merge(text, FLAGS, ("--collector.a.b",))
    assert f'ARGS="--collector.a.b=mine {FLAGS[1]}"\n' in done["text"]


@pytest.mark.parametrize("text, problem, by_hand", [
    ('ARGS="--collector.a.b=mine"\n', "it has --collector.a.b already", f'ARGS="{ADDED}"\n'),
    ('ARGS="--no-collector.sysctl"\n', "it has --no-collector.sysctl", f'ARGS="{ADDED}"\n'),
    ('ARGS="--mine"\nARGS="--more"\n', "it is there twice", f'ARGS="--mine"\nARGS="{ADDED}"\n'),
    ("ARGS=\"--mine\"'--more'\n", "not in one pair of quotes", f"ARGS=\"--mine\"' {ADDED}'\n"),
    ('ARGS="--mine\n', "not in one pair of quotes", f'ARGS="{ADDED}"\n'),
])
def test_merge_refuses(text: str, problem: str, by_hand: str) -> None:
    """ARGS that cannot be completed stays as it is, until the flags are in it."""
    done = merge(text, FLAGS)
    assert problem in done["problem"] and done["text"] == text, done
    assert done["flags"] == ADDED
    done = merge(by_hand, FLAGS)
    assert (done["text"], done["problem"]) == (by_hand, "")


def test_stop(host: Host) -> None:
    """stop does nothing where no experiment runs."""
    install(host)
    unchanged(host, "stop.yml")


def test_stop_ends_holds(host: Host) -> None:
    """stop ends the hold of a program such as faultline-bench, too."""
    install(host)
    host.run("sh", "-ec", "cat >/usr/sbin/faultline-ab", stdin='''#!/bin/sh
case $1 in
status) echo '{"experiments": [], "holds": [{"name": "bench", "process": 7}], "blocked": false}' ;;
*) echo "$*" >>/run/ab.calls ;;
esac
''')
    status, changed, text = host.play("stop.yml")
    assert (status, changed) == (0, 1), text
    assert host.shell("cat /run/ab.calls") == "stop --all\n"

# SPDX-License-Identifier: GPL-2.0-only
"""The demo of `make demo-rollout`: an A/B experiment on VMs, from the start to the verdict."""
from __future__ import annotations

import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time

from faultline.common import ROOT, Fail, Paths
from faultline_rollout import Error, design, experiment
from faultline_rollout.hosts import inventory
from rollout import vm_fleet
from rollout.vm_fleet import SWITCH, Fleet, Problem, fleet

# The fewest that the design allows: half alternate, two stay off; and the shortest slots.
GUESTS, PAIRS, SLOT = 4, design.MIN_PAIRS, 60
KBYTES = 4096
COMMAND = ROOT / "rollout/fleet/faultline-rollout"
# faultline-rollout refuses to start while a VM is late; each time it gets twice as long.
ATTEMPTS, LEAD = 5, 15
# Seconds between two looks at the clocks of the VMs.
CLOCK_EVERY = 5


def source(found: Fleet) -> dict[str, object]:
    """The contents of the experiment file."""
    return {
        "name": "demo", "switch": SWITCH, "a": 0, "b": KBYTES,
        "slot": f"{SLOT}s", "washout": "15s", "duration": f"{2 * PAIRS * SLOT}s",
        "expires": "15min", "canary": [], "prometheus": found.url,
        "transport": {"command": found.transport()},
        "primary": {"name": "longest wait for mmap", "better": "lower", "margin": "10%",
                    "query": "rate(load_longest_wait_microseconds_total[$slot])"
                             " / rate(load_rounds_total[$slot])"},
        "guard": [{"name": "rounds of the load", "better": "higher", "margin": "25%",
                   "query": "rate(load_rounds_total[$slot])"}],
        "mechanism": {"query": "rate(node_vmstat_munmap_section_sections[$slot])", "min": 0.5},
    }


def plan(found: Fleet, values: dict[str, object]) -> design.Plan:
    """Make a plan, without the replays on a history that this fleet does not have."""
    exp = experiment.parse(values, "demo: ")
    (found.folder / "inventory.ini").write_text(found.inventory())
    hosts = tuple(inventory(found.folder / "inventory.ini"))
    seed = secrets.token_hex(16)
    strata = design.by_stratum(hosts, exp.strata)
    arms = design.schedule(seed, strata, 2 * PAIRS, exp.design)
    return design.Plan(exp, values, seed, hosts, {host.name: "all" for host in hosts}, arms, {})


def write_plan(found: Fleet) -> pathlib.Path:
    """Make the plan of the demo, and write it to a file."""
    path = found.folder / "demo.json"
    design.write(path, plan(found, source(found)).text())
    return path


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def run(*words: object, good: tuple[int, ...] = (0,)) -> int:
    """Show and run a command of faultline-rollout."""
    say("\n$ faultline-rollout " + " ".join(
        word.name if isinstance(word, pathlib.Path) else str(word) for word in words))
    status = subprocess.run([COMMAND, *map(str, words)], check=False).returncode
    if status not in good:
        raise Problem(f"faultline-rollout {words[0]} failed with exit status {status}")
    return status


def stock(found: Fleet) -> None:
    """Check that every switch is off."""
    values = {guest.name: guest.switch() for guest in found.guests}
    if set(values.values()) != {"0"}:
        raise Problem(f"{SWITCH} is not 0 everywhere: {values}")
    say(f"\n{SWITCH} is 0 on all VMs again.")


def start(found: Fleet, path: pathlib.Path, *options: str) -> int:
    """Start an experiment, with right clocks; again, if a VM is late; returns the lead."""
    for attempt in range(ATTEMPTS):
        found.set_clocks()
        lead = LEAD << attempt
        last = attempt == ATTEMPTS - 1
        if run("start", path, "--lead", lead, *options, good=(0,) if last else (0, 2)) == 0:
            break
        say("Not started. VMs fall behind when this machine is busy: clocks are set, and this is "
            f"tried again ({attempt + 2} of {ATTEMPTS}).")
    return lead


def wait(found: Fleet, seconds: float) -> None:
    """Wait, and keep the clocks right meanwhile, as the NTP daemon of a host does."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        found.set_clocks()
        time.sleep(min(left, CLOCK_EVERY))


def alternate(found: Fleet, path: pathlib.Path) -> None:
    """Start an experiment, and look at it until it is over."""
    lead = start(found, path)
    # Slot 0 begins with a minute; the last values are scraped after the last slot.
    end = time.time() + lead + 60 + 2 * PAIRS * SLOT + 15
    while (left := end - time.time()) > 0:
        wait(found, min(left, 120))
        # No look ends the demo: the verdict tells the same again.
        run("status", path, good=(0, 10, 20, 30, 40))


def demo(folder: pathlib.Path) -> int:
    """The whole thing; returns the exit status of the verdict."""
    begin = time.monotonic()
    say(f"Booting {GUESTS} VMs with 1 CPU and {vm_fleet.MEMORY} MiB each; on them one thread "
        f"unmaps {vm_fleet.RANGE} MiB now and then, and another one waits for it.")
    with fleet(folder, GUESTS) as found:
        say(f"All of them are in Prometheus, {found.url}, after {time.monotonic() - begin:.0f} s. "
            "Each host starts, or none.")
        path = write_plan(found)
        start(found, path, "--dry-run")
        alternate(found, path)
        pages = [folder / "demo.svg", folder / "demo.png", folder / "demo.html"]
        status = run("verdict", path, "--plot", pages[0], "--plot", pages[1], "--html", pages[2],
                     good=(0, 10, 20, 30))
        run("stop", path)
        stock(found)
        if problems := found.end():
            raise Problem("the VMs had problems:\n  " + "\n  ".join(problems))
    say(f"""
The picture: {pages[0]} (also .png, and the page .html).
It took {(time.monotonic() - begin) / 60:.0f} minutes.

What this shows: the real faultline-ab and node_exporter on real kernels, the real
Prometheus and the real commands, and a stall that the switch removes.
What it does not show: a small effect. {GUESTS} hosts and {PAIRS} pairs find only a large one.
The plan was made without `faultline-rollout plan`, which replays a history four times
as long as the experiment to tell how noisy the metric is; these hosts have none. The
VMs have no systemd and no ssh: a loop stands for the timers, and a port for the login.
They share the CPUs of this machine.""")
    return status


def main() -> int:
    """Run it in build/demo-rollout."""
    # One thread: the matrices are small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return demo(Paths.from_env().build / "demo-rollout")
    except (Problem, Fail, Error, AssertionError, subprocess.CalledProcessError) as err:
        print(f"demo-rollout: error: {err}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("demo-rollout: interrupted, the VMs are gone", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

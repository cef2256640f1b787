# SPDX-License-Identifier: GPL-2.0-only
"""Screens of `cohort top` in a terminal (tmux): the text of docs/top-screens.md.

Hosts with VMs, and the one without, are made up; the last four screens are of the machine that this runs on, as root.

build/venv/bin/python bench/top/captures.py >docs/top-screens.md
"""

from __future__ import annotations

import itertools
import json
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COHORT = Path("build/bin/cohort").absolute()
INTERVAL_S = 1
S = 1_000_000_000
# Instead of a key.
WAIT = "wait"
_numbers = itertools.count()
NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups"
_INTRODUCTION = """\
# Screens of `cohort top` in a terminal (tmux)

`bench/top/captures.py` makes this page. The hosts with VMs, and the one without, are made up. The last four screens are
of the machine where it was made: what `cohort top` says there to who is not root, where BTF or KVM is hidden from it,
and to root. [top.md](top.md) explains what is shown."""
# What a vCPU's second may go to, in per cent of it: ran, ready, of that co-stop; and pause-loop exits, preemptions in
# the kernel. From a quiet VM to one that suffers.
KINDS = ((5, 0, 0, 0, 0), (40, 2, 0, 5, 3), (60, 12, 2, 40, 20), (50, 45, 30, 700, 90))


def feed(vms: int, seconds: int, gone: Sequence[int] = (), gone_after: int = 0) -> str:
    """Return samples, a second apart, of a host with so many VMs; some are gone after so many samples."""
    dice = random.Random(1)
    shapes = [(dice.choice((1, 2, 2, 4, 8)), dice.choice(KINDS)) for _ in range(vms)]
    lines = []
    for second in range(1, seconds + 1):
        there = [vm for vm in range(vms) if vm not in gone or second <= gone_after]
        sample = {
            "time_s": 1_700_000_000.0 + second,
            "clock_ns": second * S,
            "pcpus": 64,
            "idle_ns": second * S * 5,
            "switches": second * 90_000,
            "scheduler": "fair",
            "kernel": "7.3.4",
            "vms": [_vm(vm, second, *shapes[vm]) for vm in there],
        }
        lines.append(json.dumps(sample))
    return "\n".join(lines) + "\n"


def _vm(number: int, second: int, vcpus: int, kind: tuple[int, ...]) -> dict[str, Any]:
    ran, ready, costop, ple, kernel = (part * second for part in kind)
    part_ns = S // 100
    counters = {
        "run_ns": ran * part_ns,
        "ready_ns": ready * part_ns,
        "costop_ns": costop * part_ns,
        "halted_ns": second * S - (ran + ready) * part_ns,
        "switches": 200 * second,
        "migrations": 4 * second,
        "wakeups": 90 * second,
        "wait_wakeup_ns": ready * part_ns // 4,
        "preemptions": kernel + 20 * second,
        "preemptions_kernel": kernel,
        "wait_kernel_ns": ready * part_ns // 2 if kernel else 0,
        "ple": ple,
        "ple_chains": ple // 3,
        "yields_asked": ple // 4,
        "yields_granted": ple // 8,
        "ipis_sent": 300 * second,
    }
    state = "running" if kind[0] >= 50 else "halted"
    return {
        "name": f"vm-{number:03}",
        "pid": 1000 + number,
        "id": number + 1,
        "weight": 100.0,
        # Who waits much is behind its due, who waits little ahead; who wants little has it.
        "lag_ns": (ready - 15 * second) * part_ns * vcpus if ready else 0,
        "total": {name: value * vcpus for name, value in counters.items()},
        "vcpus": [
            {"vcpu": vcpu, "tid": 2000 + 10 * number + vcpu, "state": state, "pcpu": (number + vcpu) % 64} | counters
            for vcpu in range(vcpus)
        ],
    }


def without(folder: str) -> str:
    """Return what a command begins with that must not see what is in ``folder``."""
    return f"unshare --mount sh -c 'mount -t tmpfs none {folder} && exec \"$@\"' sh"


def capture(columns: int, rows: int, command: str, keys: Sequence[str] = (), wait_s: float = 2.5) -> str:
    """Return what a terminal of that size shows after the keys were pressed, a moment after each."""
    # A server of its own: one that is killed takes a moment to go.
    tmux = ["tmux", "-L", f"cohort-captures-{next(_numbers)}"]
    size = ["-x", str(columns), "-y", str(rows)]
    subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", *size, f"{command}; sleep 60"], check=True)
    try:
        time.sleep(wait_s)
        for key in keys:
            if key == WAIT:
                time.sleep(wait_s)
            else:
                subprocess.run([*tmux, "send-keys", key], check=True)
            time.sleep(0.3)
        time.sleep(wait_s if keys else 0)
        shown = subprocess.run([*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    return "\n".join(line.rstrip() for line in shown.rstrip().splitlines())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:

        def top(text: str) -> str:
            file = Path(folder) / f"{len(list(Path(folder).iterdir()))}.jsonl"
            file.write_text(text)
            return f"{shlex.quote(str(COHORT))} top --interval {INTERVAL_S} --feed {file}"

        many = top(feed(200, 60))
        print(_INTRODUCTION)
        for title, shown in (
            ("200 VMs, 80 columns", capture(80, 24, many)),
            ("200 VMs, 200 columns, the first one opened", capture(200, 24, many, ["Enter"])),
            ("One VM, 80 columns", capture(80, 10, top(feed(1, 60)))),
            ("One VM, 200 columns", capture(200, 8, top(feed(1, 60)))),
            ("No VM, 80 columns", capture(80, 10, top(feed(0, 60)))),
            ("No VM, 200 columns", capture(200, 8, top(feed(0, 60)))),
            ("The second of three VMs is selected, and opened", capture(80, 12, top(feed(3, 60)), ["Down", "Enter"])),
            (
                "It has gone while it was selected; what Enter then opens",
                capture(80, 12, top(feed(3, 60, gone=(0,), gone_after=4)), ["Down", WAIT, "Enter"]),
            ),
            ("Its keys", capture(80, 24, many, ["h"])),
            ("Not root", capture(80, 6, f"{NOBODY} {shlex.quote(str(COHORT))} top")),
            ("A kernel without BTF", capture(80, 6, f"{without('/sys/kernel/btf')} {shlex.quote(str(COHORT))} top")),
            ("KVM is not loaded", capture(80, 6, f"{without('/sys/module')} {shlex.quote(str(COHORT))} top")),
            (
                "Root, on the machine where this page was made",
                capture(80, 6, f"{shlex.quote(str(COHORT))} top", wait_s=9),
            ),
        ):
            print(f"\n## {title}\n\n```\n{shown}\n```")


if __name__ == "__main__":
    sys.exit(main())

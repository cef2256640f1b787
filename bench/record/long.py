# SPDX-License-Identifier: GPL-2.0-only
"""A long recording of the lab's host while both of its VMs work: how many events, and whether all are there.

    build/venv/bin/python bench/record/long.py [SECONDS]    600, and 3 minutes more

hackbench runs in one VM and tlb-flush in the other, over and over. Prints what the recorder said, and a Markdown table
of what is in the file.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from alone import number, refuse

from cohortlab import scenario as scenarios
from cohortlab.lab import programs
from cohortlab.lab.agent import Job
from cohortlab.lab.place import LabPlace
from cohortlab.recorded import recording
from cohortlab.scenario import Scenario

WORK = {"a": "hackbench", "b": "tlb-flush"}
FILE = "/tmp/long.rec"
# Beyond what is recorded: the probe is loaded, the end is written, the file is brought here; all on a busy host.
PATIENCE_S = 600


def scenario() -> Scenario:
    vms = [{"name": vm, "vcpus": 2, "memory_mb": 384, "programs": [program]} for vm, program in WORK.items()]
    data = {"name": "long", "host": {"pcpus": 2}, "guest": {"tlb": "ipi", "ple": True}, "vm": vms}
    return scenarios.of_data(data, Path("long.toml"))


@contextmanager
def busy(place: LabPlace) -> Iterator[None]:
    """Let each VM run its program again and again."""
    jobs: list[Job] = []
    try:
        for vm, program in WORK.items():
            known = place.scenario.workloads[program]
            line = programs.command(known, known.command or "")
            jobs.append(place.guests[vm].machine.spawn("busy", f"while {{ {line}; }} >/dev/null; do :; done"))
        yield
        for job in jobs:
            if (rc := job.wait(0)) is not None:
                raise SystemExit(f"{job.machine.name}: its program ended with {rc}: {job.output('stderr')[0].strip()}")
    finally:
        for job in jobs:
            job.signal(signal.SIGKILL)
            job.wait(PATIENCE_S, PATIENCE_S)


def main(seconds: int) -> None:
    with LabPlace(scenario(), probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        host = place.emulator.host
        with busy(place):
            job = host.spawn("record", f"exec cohort record --seconds {seconds} --out {FILE}")
            rc = job.wait(seconds + PATIENCE_S, PATIENCE_S)
        said = job.output("stderr")[0].strip()
        print(said, flush=True)
        if rc != 0:
            raise SystemExit(f"cohort record ended with {rc}")
        with tempfile.NamedTemporaryFile(suffix=".rec") as file:
            size = Path(file.name).write_bytes(host.get(FILE, PATIENCE_S))
            about = recording.load(Path(file.name)).about
    length_s, end = about["length_ns"] / 1e9, about["end"]
    cells = [f"{length_s:.0f} s", f"{about['events']:,}", f"{about['events'] / length_s:.0f}"]
    cells += [str(end["dropped"]), str(end["overwritten"]), f"{size / 1e6:.1f} MB"]
    print("\n| recorded | events | events/s | lost | replaced | file |\n|---|---|---|---|---|---|")
    print(f"| {' | '.join(cells)} |")
    print("\n| event | count |\n|---|---|")
    for kind, count in sorted(about["counts"].items(), key=lambda of: -of[1]):
        print(f"| {kind} | {count:,} |")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [SECONDS]")
    main(number((sys.argv[1:2] or ["600"])[0], "SECONDS"))

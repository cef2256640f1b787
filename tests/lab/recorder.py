# SPDX-License-Identifier: GPL-2.0-only
"""``cohort record`` on the lab's host."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ground import ended_after

if TYPE_CHECKING:
    from pathlib import Path

    from cohortlab.lab.agent import Job, Machine

# Loading the probe takes long on a busy machine; who is too slow is no failure.
PATIENCE_S = 300
# An agent knows its jobs by name.
_numbers = itertools.count()


@contextmanager
def recorder(host: Machine, command: str, to: Path) -> Iterator[Job]:
    """Record in the block, by a command like ``cohort record --seconds 10``; bring here what it has written.

    It records when the block begins, and must have been told to end, if it does not by itself, when the block ends.
    """
    name = f"record-{next(_numbers)}"
    there = f"/tmp/{name}.rec"
    job = host.spawn(name, f"exec {command} --out {there}")
    with ended_after([job]):
        deadline = time.monotonic() + PATIENCE_S
        while "recording" not in (said := job.output("stderr")[0]):
            assert job.wait(0.2) is None, f"it ended: {said}"
            assert time.monotonic() < deadline, f"it does not record within {PATIENCE_S} s: {said}"
        yield job
        assert job.wait(PATIENCE_S) == 0, job.output("stderr")[0]
        to.write_bytes(host.get(there))
        host.check(f"rm {there}")

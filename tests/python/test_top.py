# SPDX-License-Identifier: GPL-2.0-only
"""`cohort top` on a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
from pathlib import Path

from cohortlab.lab import binaries


def test_it_ends_with_its_terminal_also_when_no_signal_tells_it(tmp_path: Path) -> None:
    feed = tmp_path / "feed.jsonl"
    feed.write_text('{"clock_ns": 1, "pcpus": 2}\n{"clock_ns": 2000000000, "pcpus": 2}\n')
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    top = subprocess.Popen(
        [binaries.find("cohort"), "top", "--feed", feed],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # of which the terminal is not the controlling one
    )
    os.close(theirs)
    try:
        shown = b""
        while b"cohort" not in shown:
            readable, _, _ = select.select([ours], [], [], 10)
            assert readable, shown
            shown += os.read(ours, 4096)
        os.close(ours)
        assert top.wait(timeout=10) == 0
    finally:
        top.kill()
        top.wait()

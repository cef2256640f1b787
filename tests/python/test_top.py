# SPDX-License-Identifier: GPL-2.0-only
"""`cohort top` on a terminal of its own."""

from __future__ import annotations

import csv
import json
import os
import pty
import select
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest

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


def test_a_file_comes_out_whole_however_fast_it_is_read(tmp_path: Path) -> None:
    feed = tmp_path / "feed.jsonl"
    feed.write_text("".join(json.dumps({"clock_ns": second * 10**9}) + "\n" for second in range(1, 2001)))
    argv = [binaries.find("cohort"), "top", "--batch", "--json", "--feed", feed]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert [json.loads(line)["clock_ns"] // 10**9 for line in done.stdout.splitlines()] == list(range(2, 2001))


def test_lines_of_vcpus_can_be_joined_to_their_vms(tmp_path: Path) -> None:
    feed = tmp_path / "feed.jsonl"
    vcpu = {"vcpu": 1, "tid": 43, "pcpu": 3, "state": "running"}
    vms = [{"name": "a", "pid": 40, "id": 7, "vcpus": [vcpu]}, {"name": "b", "pid": 50, "id": 8, "vcpus": []}]
    feed.write_text("".join(json.dumps({"clock_ns": second * 10**9, "vms": vms}) + "\n" for second in (1, 2)))
    argv = [binaries.find("cohort"), "top", "--batch", "--csv", "--feed", feed]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    wanted = ("vm", "pid", "tid", "vcpu", "vcpus", "pcpu", "state")
    assert [tuple(row[field] for field in wanted) for row in csv.DictReader(done.stdout.splitlines())] == [
        ("a", "40", "", "", "1", "", ""),
        ("a", "40", "43", "1", "1", "3", "running"),
        ("b", "50", "", "", "0", "", ""),
    ]


def test_a_full_disk_is_no_success(tmp_path: Path) -> None:
    feed = tmp_path / "feed.jsonl"
    feed.write_text('{"clock_ns": 1}\n{"clock_ns": 2}\n')
    argv = [binaries.find("cohort"), "top", "--batch", "--json", "--feed", feed]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("cohort: cannot write to stdout: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_wait_for_the_next_line(tmp_path: Path, number: signal.Signals) -> None:
    feed = tmp_path / "feed"
    os.mkfifo(feed)
    argv = [binaries.find("cohort"), "top", "--batch", "--csv", "--feed", feed]
    top = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        with feed.open("w") as lines:
            lines.write('{"clock_ns": 1}\n')
            lines.flush()
            assert top.stdout is not None
            assert top.stdout.readline().startswith("time_s,vm,")
            top.send_signal(number)
            assert top.wait(timeout=10) == 0
    finally:
        top.kill()
        top.wait()


def test_a_hangup_does_not_end_a_service_that_has_just_begun(tmp_path: Path) -> None:
    feed = tmp_path / "feed"
    os.mkfifo(feed)
    argv = [binaries.find("cohort"), "sets", "--matrix", feed]
    # It reads before it listens to signals, and waits here for who writes.
    begun = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        with feed.open("w") as lines:
            begun.send_signal(signal.SIGHUP)
            time.sleep(0.2)
            assert begun.poll() is None
            lines.write("- 5\n5 0\n")
        out, _ = begun.communicate(timeout=60)
        assert (begun.returncode, bool(out)) == (0, True)
    finally:
        begun.kill()
        begun.wait()

# SPDX-License-Identifier: GPL-2.0-only
"""What a saved state of the booted lab would save: a boot beside a restore, and how many restored labs work.

    build/venv/bin/python bench/emulator/snapshot.py [ROUNDS [RESTORES]]

Boots the lab, saves the emulator's state, and restores it some times; all guests work a little after each. A restore
ends when the agents of the host and of all guests answer. Prints a Markdown table, and why a restore was lost.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import work

from cohortlab.lab import emulator
from cohortlab.lab.agent import AgentError
from cohortlab.lab.bringup import Lab, bring_up
from cohortlab.lab.emulator import Emulator
from cohortlab.lab.guest import Guest, GuestConfig
from cohortlab.places import PlaceCrashed
from cohortlab.summary import Spread

GUESTS = [GuestConfig(name, 2, 256, 100, "ipi") for name in ("work", "hog")]
PATIENCE_S = 120
LOST = (AgentError, PlaceCrashed, TimeoutError, OSError)


def main(rounds: int, restores: int) -> int:
    boots_s, saves_s, sizes_mb, restores_s = [], [], [], []
    lost: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        for _ in range(rounds):
            begin = time.monotonic()
            lab, argv, how = _booted()
            boots_s.append(time.monotonic() - begin)
            try:
                saves_s.append(_save(lab.emulator.folder, state))
                sizes_mb.append(state.stat().st_size / 1e6)
                initrd = (lab.emulator.folder / "initrd").read_bytes()
            finally:
                lab.emulator.close()
            for number in range(restores):
                try:
                    restores_s.append(_restored(argv, how, initrd, state, lab.guests))
                except LOST as error:
                    lost.append(str(error))
                    print(f"lost: {error}", file=sys.stderr)
                print(f"restore {number + 1} of {restores}: {len(lost)} lost", file=sys.stderr)
    print("| what | median [range] |\n|---|---|")
    for what, values in (
        ("a boot, s", boots_s),
        ("to save it, s", saves_s),
        ("its size, MB", sizes_mb),
        ("a restore, s", restores_s),
    ):
        print(f"| {what} | {Spread.of(values) if values else '–'} |")
    print(f"\n{len(lost)} of {rounds * restores} restored labs were lost.")
    return 1 if lost else 0


def _booted() -> tuple[Lab, list[str], dict[str, Any]]:
    """Return a lab whose emulator takes commands, and what it was started with."""
    real: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
    seen: list[tuple[list[str], dict[str, Any]]] = []

    def popen(argv: list[str], **how: Any) -> subprocess.Popen[bytes]:
        if "-kernel" in argv:
            argv = [*argv, "-qmp", "unix:qmp.sock,server=on,wait=off"]
            seen.append((argv, how))
        return real(argv, **how)

    with mock.patch.object(emulator.subprocess, "Popen", popen):
        lab = bring_up(GUESTS, pcpus=2, ple=True, accel="tcg")
    return lab, *seen[0]


class _Qmp:
    """The emulator's own control."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(folder / "qmp.sock"))
        self._lines = self._socket.makefile("r")
        self._lines.readline()
        self("qmp_capabilities")

    def __call__(self, command: str, **arguments: Any) -> Any:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while True:
            answer = json.loads(self._lines.readline())
            if "error" in answer:
                raise PlaceCrashed(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def wait(self, command: str, wanted: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while (status := self(command).get("status")) != wanted:
            if status in ("failed", "cancelled") or time.monotonic() > end:
                raise PlaceCrashed(f"{command} says {status} instead of {wanted}")
            time.sleep(0.02)


def _save(folder: Path, state: Path) -> float:
    begin = time.monotonic()
    qmp = _Qmp(folder)
    qmp("stop")
    qmp("migrate-set-parameters", **{"max-bandwidth": 10**11})
    qmp("migrate", uri=f"exec:cat >{state}")
    qmp.wait("query-migrate", "completed")
    return time.monotonic() - begin


def _restored(argv: list[str], how: dict[str, Any], initrd: bytes, state: Path, guests: list[Guest]) -> float:
    folder = Path(tempfile.mkdtemp())
    (folder / "initrd").write_bytes(initrd)
    (folder / "console.log").touch()
    begin = time.monotonic()
    with (folder / "emulator.err").open("wb") as err:
        same = {name: value for name, value in how.items() if name not in ("cwd", "stdout", "stderr", "pass_fds")}
        process = subprocess.Popen(
            [*argv, "-incoming", f"exec:cat {state}"], cwd=folder, stdout=err, stderr=err, **same
        )
    (folder / "pid").write_text(f"{process.pid}\n")
    again = None
    try:
        while not (folder / "qmp.sock").exists():
            if process.poll() is not None:
                raise PlaceCrashed((folder / "emulator.err").read_text().strip())
            time.sleep(0.01)
        qmp = _Qmp(folder)
        qmp.wait("query-status", "paused")
        qmp("cont")
        again = Emulator.attach(folder)
        again.host.ping(PATIENCE_S)
        there = [Guest(again.host, guest.config, guest.job) for guest in guests]
        for guest in there:
            guest.machine.ping(PATIENCE_S)
        took_s = time.monotonic() - begin
        work.do(again, there)
        return took_s
    except LOST as error:
        errors = (folder / "emulator.err").read_text(errors="replace").strip().splitlines()[-2:]
        console = (folder / "console.log").read_text(errors="replace").strip().splitlines()[-2:]
        raise PlaceCrashed(f"{error}; {errors}; {console}") from error
    finally:
        if again is not None:
            again.close()
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*given, *(3, 5)[len(given) :]))

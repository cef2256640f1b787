# SPDX-License-Identifier: GPL-2.0-only
"""Saved states of the lab: what one is good for, and that a lab which does not come up from one boots."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cohortlab.lab import bringup, command, emulator, state
from cohortlab.lab.agent import Answer, Machine
from cohortlab.lab.bringup import Lab, bring_up
from cohortlab.lab.command import Boot, Command
from cohortlab.lab.guest import GuestConfig
from cohortlab.lab.image import Image
from cohortlab.lab.kernels import Kernel
from cohortlab.lab.qemu import Qemu
from cohortlab.lab.sampling import PS_PER_PAUSE
from cohortlab.places import PlaceCrashed, PlaceError

QEMU = Qemu("patched", "10.0.13", "9a9dc759", ("qemu",), {})
COMMAND = Command(QEMU, ("qemu", "-m", "1024M"), b"initrd")
BOOT = Boot(
    Image(Path("/disk"), Path("/root")), Kernel("7.3", Path("/k"), Path("/m")), Path("/agent"), 2, 1024, "tcg", True
)
CONFIGS = [GuestConfig("a", 2, 256, 100, "ipi")]


@pytest.fixture(autouse=True)
def cache_of_its_own(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("lab") is None:
        monkeypatch.setenv("COHORT_CACHE", str(tmp_path))
        monkeypatch.delenv(state.VARIABLE, raising=False)


def name(command: Command = COMMAND, boot: Boot = BOOT, configs: list[GuestConfig] = CONFIGS) -> str:
    saved = state.of(command, boot, configs)
    assert saved is not None
    return saved.name


def test_a_state_is_good_for_the_same_machine_alone(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_text("1")
    with_disk = dataclasses.replace(COMMAND, files=(disk,))
    seen = [
        name(),
        name(command=dataclasses.replace(COMMAND, argv=("qemu", "-m", "2048M"))),
        name(command=dataclasses.replace(COMMAND, initrd=b"another")),
        name(command=dataclasses.replace(COMMAND, qemu=dataclasses.replace(QEMU, build="0"))),
        name(configs=[dataclasses.replace(CONFIGS[0], weight=200)]),
        name(configs=[]),
        name(command=with_disk),
    ]
    disk.write_text("22")
    seen.append(name(command=with_disk))
    with mock.patch.object(Path, "read_text", return_value="0123456789\n"):
        seen.append(name())
    with mock.patch.object(Path, "read_bytes", return_value=b"other code"):
        seen.append(name())
    assert len(set(seen)) == len(seen)
    assert name() == seen[0]
    # Whoever waits for whom, and who ends with whom, is the same machine.
    assert name(boot=dataclasses.replace(BOOT, keep=True, share=True)) == seen[0]


@pytest.mark.parametrize(
    ("command", "boot"),
    [
        (COMMAND, dataclasses.replace(BOOT, accel="kvm")),
        (dataclasses.replace(COMMAND, qemu=dataclasses.replace(QEMU, kind="stock")), BOOT),
    ],
)
def test_where_it_was_not_tried_the_lab_boots(command: Command, boot: Boot) -> None:
    assert state.of(command, boot, CONFIGS) is None


def test_off_is_off_and_nothing_else_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state.VARIABLE, "off")
    assert state.of(COMMAND, BOOT, CONFIGS) is None
    monkeypatch.setenv(state.VARIABLE, "no")
    with pytest.raises(PlaceError, match='COHORT_LAB_STATE: "no" is not allowed: must be off, or not set'):
        state.of(COMMAND, BOOT, CONFIGS)


def test_the_last_used_are_kept_and_none_of_an_earlier_boot(tmp_path: Path) -> None:
    ours = name().rpartition("-")[0]
    made = [f"{ours}-{number}" for number in range(state.KEPT + 2)]
    for age_s, folder in enumerate(made):
        (tmp_path / folder).mkdir()
        os.utime(tmp_path / folder, (time.time() - age_s,) * 2)
    others = ["state-00000000-1", f".building-{ours}-9~x", "root-trixie-1", ".lock-root-trixie-1", f".lock-{ours}-9"]
    for other in others:
        (tmp_path / other).mkdir()
        os.utime(tmp_path / other, (0, 0))
    (tmp_path / f".building-{ours}-1~y").mkdir()
    state.tidy()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*made[: state.KEPT], "root-trixie-1", ".lock-root-trixie-1", f".building-{ours}-1~y"}


def test_a_damaged_folder_is_no_state(tmp_path: Path) -> None:
    saved = state.State("state-x")
    for damage in (saved.folder.mkdir, lambda: saved.folder.write_text("")):
        saved.remove()
        damage()
        with pytest.raises(PlaceCrashed, match="cannot be read"):
            saved.restore(COMMAND, dataclasses.replace(BOOT, share=True, memory_mb=0), lambda *_: None)
        saved.remove()
        assert not saved.folder.exists()


def test_a_state_is_written_and_found_whatever_the_path_of_the_cache_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def save(folder: Path, file: str) -> None:
        told.append(file)
        (folder / file).write_text("as it was")

    monkeypatch.setattr(emulator.control, "save", save)
    # Of that QEMU would take the end for where in a file to begin.
    saved, folder = tmp_path / ",offset=7" / "state-1", tmp_path / "lab"
    saved.mkdir(parents=True)
    folder.mkdir()
    (folder / "console.log").write_text("up")
    lab = object.__new__(emulator.Emulator)
    lab.folder, lab.console = folder, folder / "console.log"
    lab.save(saved)
    # As a QEMU, started in the lab's folder, which has its own console.
    script = 'printf %s "$2" >told; cat "${2#file:}" >read; : >agent.sock; exec sleep 1000'
    own_turn = os.open(tmp_path / "turn", os.O_RDWR | os.O_CREAT)
    started = dataclasses.replace(COMMAND, argv=("sh", "-c", script, "sh"))
    process = emulator._launch(started, folder, own_turn, keep=True, state=saved)
    os.close(own_turn)
    process.kill()
    process.wait()
    assert (folder / "read").read_text() == "as it was"
    assert "," not in "".join([*told, (folder / "told").read_text()])
    # Who ends a lab removes its folder, and not what it came from.
    shutil.rmtree(folder)
    assert {path.name for path in saved.iterdir()} == {"memory", "console.log"}


class Host:
    """Answers what a host does whose pause filter lets 1,000 PAUSEs pass."""

    def __init__(self, then_ps: int | None, now_ps: int, count: int = 1000) -> None:
        self.then_ps, self.now_ps, self.count = then_ps, now_ps, count
        self.written: dict[str, str] = {}

    def call(self, op: dict[str, Any], sample: object = (), timeout_s: float = 60) -> Answer:
        if written := op.get("write_file"):
            self.written[written["path"]] = written["text"]
            return Answer({})
        sh, out = op["exec"]["sh"], ""
        if sh.startswith("cat"):
            out = f"{self.count}\n{self.then_ps}\n" if self.then_ps else f"{self.count}\n"
        elif sh == "cohort-lab-agent ps-per-pause 1000":
            out = f"{self.now_ps}\n"
        return Answer({"rc": 0, "stdout": out, "stderr": "", "wall_ns": 1, "timed_out": False})


def test_a_pause_filter_must_still_fit_the_processors_speed() -> None:
    near, slower, untimed, few = Host(14_000, 14_900), Host(14_000, 28_000), Host(None, 0), Host(14_000, 0, 100)
    state.check_pause_filter(Machine("host", near))
    assert near.written == {PS_PER_PAUSE: "14900\n"}  # so that results say what it is now
    with pytest.raises(PlaceCrashed, match="a PAUSE takes 28 ns, it took 14 ns"):
        state.check_pause_filter(Machine("host", slower))
    for host in (untimed, few):
        state.check_pause_filter(Machine("host", host))


class Saved:
    """A saved state that fails as told."""

    def __init__(self, folder: Path, fails: str) -> None:
        self.folder, self.fails = folder, fails
        self.did: list[str] = []

    def restore(self, *_: object) -> None:
        self._do("restore")

    def save(self, *_: object) -> None:
        self._do("save")

    def remove(self) -> None:
        self._do("remove")

    def _do(self, what: str) -> None:
        self.did.append(what)
        if what == self.fails:
            raise PlaceCrashed("no luck")


@pytest.mark.parametrize(
    ("fails", "did", "told"),
    [
        ("restore", ["restore", "remove", "save"], "the saved state does not do: no luck"),
        ("save", ["save"], "the next lab boots as well: no luck"),
    ],
)
def test_a_lab_that_cannot_be_restored_or_saved_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, did: list[str], told: str
) -> None:
    saved, said = Saved(tmp_path if fails == "restore" else tmp_path / "none", fails), []
    monkeypatch.setattr(command, "of", lambda _: COMMAND)
    monkeypatch.setattr(state, "of", lambda *_: saved)
    monkeypatch.setattr(bringup, "_booted", lambda _configs, boot, *_: Lab(mock.Mock(), [], boot))
    lab = bringup.up(CONFIGS, BOOT, lambda text, _: said.append(text))
    assert not lab.restored
    assert saved.did == did
    assert said[-1] == told


def test_states_of_an_earlier_boot_go_also_where_none_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state-00000000-1").mkdir()
    monkeypatch.setenv(state.VARIABLE, "off")
    monkeypatch.setattr(command, "of", lambda _: COMMAND)
    monkeypatch.setattr(bringup, "_booted", lambda _configs, boot, *_: Lab(mock.Mock(), [], boot))
    assert bringup.up(CONFIGS, BOOT, lambda *_: None).state is None
    assert not list(tmp_path.glob("state-*"))


# On the lab itself


@pytest.mark.lab
@pytest.mark.long
def test_the_next_lab_goes_on_where_the_first_was(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This machine may change its speed meanwhile, and a lab whose pause filter no longer fits is booted.
    monkeypatch.setattr(state, "_PAUSE_SLACK", 1000)
    # A lab that nobody else boots, nor an earlier run of this.
    makings = f"lab.test={time.time_ns()}"
    configs = [GuestConfig(name, 2, 192, 100, "ipi") for name in ("a", "b")]
    ids: list[list[str]] = []
    said: list[str] = []
    saved = None
    for number in range(5):
        if saved is not None and number == 3:  # damaged: it boots, and saves another
            memory = saved.folder / "memory"
            os.truncate(memory, memory.stat().st_size // 2)
        lab = bring_up(
            configs, pcpus=2, ple=True, accel="tcg", extra_cmdline=makings, progress=lambda text, _: said.append(text)
        )
        try:
            saved = lab.state
            if saved is None:
                pytest.skip("labs are not saved here: COHORT_LAB_STATE, or another emulator")
            if number == 0:
                request.addfinalizer(saved.remove)
            machines = [lab.emulator.host, *(guest.machine for guest in lab.guests)]
            # To the microsecond: no two boots have this alike.
            ids.append([machine.check("dmesg | grep -m 1 'as init process'") for machine in machines])
            for machine in machines:
                assert abs(float(machine.check("date +%s.%N")) - time.time()) < 5, machine.name
            for guest in lab.guests:
                assert guest.job.wait(0) is None
                assert guest.machine.check("hackbench -g 1 -l 100 -f 5", 120)
            assert not [line for line in lab.emulator.new_complaints() if "lab.test" not in line]
        finally:
            lab.emulator.close()
        assert lab.restored == (number in (1, 2, 4)), said
    assert ids[0] == ids[1] == ids[2] != ids[3] == ids[4]
    assert len({one for boot in ids for one in boot}) == 6
    assert any(re.match(r"the saved state does not do: .*(truncated|load|EOF|end of)", text) for text in said), said

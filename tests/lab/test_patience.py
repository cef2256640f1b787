# SPDX-License-Identifier: GPL-2.0-only
"""When the lab gives a machine up that boots, and what it then says of it; nothing boots here."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import again
import pytest
import slow

import conftest
from cohortlab.lab import agent, bringup, control, emulator, guest, lastwords, patience
from cohortlab.lab.agent import AgentError, Answer, Machine
from cohortlab.lab.guest import Guest, GuestConfig
from cohortlab.lab.lastwords import Vmm
from cohortlab.lab.patience import BootTimes, OwnTime, Patience
from cohortlab.places import PlaceCrashed

CONFIG = GuestConfig("a", 2, 512, 100, "kvm-pv")
LOG = "[    0.1] KVM setup pv remote TLB flush\n"


class Clock:
    """Time passes when somebody waits."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def gives_up_at(usual_s: float | None, prints_at: tuple[float, ...]) -> float:
    """Return when a machine is given up that prints at these times."""
    clock = Clock()
    waiting = Patience(usual_s, clock)
    for clock.now in itertools.count(0, 0.5):
        if waiting.lost(sum(at <= clock.now for at in prints_at)):
            return clock.now
    raise AssertionError


@pytest.mark.parametrize(
    ("usual_s", "prints_at", "until_s"),
    [
        # Three times as long as usual, but half a minute whatever is usual.
        (20, (), 60),
        (20, (1, 2, 3), 60),
        (4, (), 30),
        # It is late but prints: it may go on for as long as it does, a while after each line, but not for ever.
        (20, (1, 50, 65), 85),
        (4, tuple(range(0, 1000, 10)), 90),
        # Nothing is known: 90 s without a word, or 180 s in all.
        (None, (), 90),
        (None, (1, 80, 160), 180),
        (None, (1, 80, 170), 185),
        (None, tuple(range(0, 1000, 10)), 540),
    ],
)
def test_a_machine_without_progress_is_given_up(
    usual_s: float | None, prints_at: tuple[float, ...], until_s: float
) -> None:
    assert gives_up_at(usual_s, prints_at) == pytest.approx(until_s, abs=1)


def test_the_reason_says_how_long_and_what_is_usual() -> None:
    clock = Clock()
    known, unknown = Patience(20, clock), Patience(None, clock)
    clock.now = 5
    known.lost(100)
    clock.now = 200
    reason = "is not up after 200 s and has printed nothing for 195 s; it usually takes 20 s"
    assert known.lost(100) == reason
    assert str(unknown.lost(0)).endswith("printed nothing for 200 s; such a boot was not timed here yet")


def test_boot_times_are_kept_by_what_was_booted(tmp_path: Path) -> None:
    file = tmp_path / "boot-times.json"
    assert BootTimes(file).usual_s("host") is None
    for took_s in (50, 10, 11, 12.04, 900, 9, 10, 11):
        BootTimes(file).add("host", took_s)
    BootTimes(file).add("guests", 30)
    assert json.loads(file.read_text()) == {"host": [10, 11, 12.0, 900, 9, 10, 11], "guests": [30]}
    assert (BootTimes(file).usual_s("host"), BootTimes(file).usual_s("guests")) == (11, 30)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": 5}', '{"host": ["x"]}', "\0"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "boot-times.json"
    file.write_text(text)
    assert BootTimes(file).usual_s("host") is None
    BootTimes(file).add("host", 5)
    assert BootTimes(file).usual_s("host") == 5


def test_boot_times_that_cannot_be_kept_are_no_failure(tmp_path: Path) -> None:
    BootTimes(tmp_path / "not" / "there.json").add("host", 5)


def test_time_passes_as_fast_as_a_process_gets_its_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, spent = Clock(), [(0, 0)]
    monkeypatch.setattr(OwnTime, "_spent", lambda _: spent[-1])
    own = OwnTime(7, clock)

    def passes(seconds: float, ran_s: float, waited_s: float) -> float:
        clock.now += seconds
        spent.append((spent[-1][0] + int(ran_s * 1e9), spent[-1][1] + int(waited_s * 1e9)))
        return own()

    assert passes(10, 20, 0) == 10  # two threads, a CPU each
    assert passes(10, 5, 15) == 12.5  # four times as many want the CPUs
    assert passes(10, 0, 0) == 22.5  # it sleeps: a hang, maybe
    assert own.ran_s == 25
    assert passes(10, -20, 0) == 32.5  # threads have ended, and their times with them


def test_the_time_of_a_process_that_is_not_there_is_everybodys() -> None:
    clock = Clock()
    own = OwnTime(None, clock)
    clock.now = 5
    assert own() == 5


# Last words


@pytest.mark.parametrize(
    ("vmm", "console", "words"),
    [
        (
            Vmm(None, 31.26),
            "",
            "its QEMU runs and has used 31.3 s of CPU time; "
            "it had printed nothing: its firmware was at work, or the kernel's very first steps",
        ),
        (Vmm(None, None), "Linux version 7\n", "its QEMU runs; its kernel was booting; console: Linux version 7"),
        (
            Vmm(1, 0.5, "\nqemu: bad\nreally\n"),
            "lab init: the kernel is up\n",
            "its QEMU ended with 1, having used 0.5 s of CPU time; its init was at work; "
            "console: lab init: the kernel is up; its QEMU printed: qemu: bad | really",
        ),
        (
            Vmm(-9, None),
            "lab init: the kernel is up\nlab init: the root is mounted\n",
            "its QEMU was killed by signal 9; its agent was starting; "
            "console: lab init: the kernel is up | lab init: the root is mounted",
        ),
    ],
)
def test_last_words(vmm: Vmm, console: str, words: str) -> None:
    assert lastwords.of(vmm, console) == words


def test_last_words_begin_with_the_line_of_death() -> None:
    lines = [*(f"before {n}" for n in range(9)), "Oops: int3", *(f"after {n}" for n in range(99))]
    said = lastwords.of(Vmm(None, None), "\n".join(lines)).partition("console: ")[2].split(" | ")
    assert said == ["Oops: int3", *(f"after {n}" for n in range(11))]


def test_the_cpu_time_of_a_process() -> None:
    assert lastwords.cpu_s(1) is not None
    assert lastwords.cpu_s(0) is None


# Answers


def test_an_answer_of_the_emulator_that_came_while_we_were_stopped_is_read(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(control, "_ANSWER_S", 0.1)
    monkeypatch.setattr(control, "_CHECK_S", 0.01)

    async def execute(command: str, arguments: object) -> str:
        await asyncio.sleep(0)
        # The loop stands still as it does in a process that is stopped; then it takes some turns to read the answer.
        time.sleep(0.3)
        clock.now += 3600
        for _ in range(9):
            await asyncio.sleep(0.01)
        return f"{command} is done"

    assert asyncio.run(control._ask(cast("Any", SimpleNamespace(execute=execute)), "stop")) == "stop is done"


def test_an_emulator_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, ended = itertools.count(), []
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: float(next(looks))))
    monkeypatch.setattr(control, "_CHECK_S", 0)

    async def execute(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(next(looks))

    with pytest.raises(TimeoutError):
        asyncio.run(control._ask(cast("Any", SimpleNamespace(execute=execute)), "stop"))
    assert len(ended) == 1, "nobody waits for it any more"
    assert control._ANSWER_S < ended[0] < control._ANSWER_S + 5


# Guests


class FakeHost:
    """A host with one guest, as its agent would tell of it.

    Attributes:
        up_at: when the guest's agent answers; None is never.
        code: what its QEMU has ended with.
        files: those of the host that can be read.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.up_at: float | None = None
        self.code: int | None = None
        self.dead = False
        place = guest.folder("a")
        self.files = {f"{place}/console.log": "", f"{guest.PAYLOAD}/jobs/vm-a.err": ""}

    def call(self, op: dict[str, Any], sample: Any = (), timeout_s: float = 60) -> Answer:
        if self.dead:
            raise TimeoutError("no answer within 1 s")
        ((name, values),) = op.items()
        if name == "wait":
            return Answer({"rc": self.code})
        if name == "read_file":
            if values["path"] not in self.files:
                raise AgentError("No such file or directory")
            return Answer({"text": self.files[values["path"]]})
        assert name == "forward"
        if self.up_at is None or self.clock.now < self.up_at:
            self.clock.now += timeout_s
            raise TimeoutError("no answer within 2 s")
        done = {"rc": 0, "stdout": LOG, "stderr": "", "wall_ns": 1, "timed_out": False}
        return Answer({"ok": done if "exec" in values["op"] else {}})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def host(clock: Clock) -> FakeHost:
    return FakeHost(clock)


def a_guest(host: FakeHost) -> Guest:
    machine = Machine("host", host)
    return Guest(machine, CONFIG, agent.Job(machine, "vm-a", 7))


def test_a_guest_that_comes_up(host: FakeHost, clock: Clock) -> None:
    host.up_at = 40
    assert a_guest(host).wait_until_up(20, clock) == pytest.approx(40, abs=2)


def test_a_guest_that_hangs_is_given_up_with_its_state(host: FakeHost, clock: Clock) -> None:
    host.files[f"{guest.folder('a')}/console.log"] = "lab init: the kernel is up\n"
    host.files[f"{guest.SLICE}/a.scope/cpu.stat"] = "usage_usec 61500000\n"
    with pytest.raises(PlaceCrashed) as crash:
        a_guest(host).wait_until_up(20, clock)
    assert 60 <= clock.now < 66
    assert re.fullmatch(
        r"a is not up after 6\d s and has printed nothing for 6\d s; it usually takes 20 s; "
        r"its QEMU runs and has used 61.5 s of CPU time; its init was at work; console: lab init: the kernel is up",
        str(crash.value),
    )


def test_a_guest_whose_qemu_ends_is_given_up_at_once(host: FakeHost, clock: Clock) -> None:
    host.code = 1
    host.files[f"{guest.PAYLOAD}/jobs/vm-a.err"] = "KVM internal error. Suberror: 3\nRAX=0 RBX=0\n"
    with pytest.raises(PlaceCrashed) as crash:
        a_guest(host).wait_until_up(None, clock)
    assert clock.now < 5
    assert str(crash.value).startswith("a ended with 1 while it booted; its QEMU ended with 1; it had printed nothing")
    assert str(crash.value).endswith("its QEMU printed: KVM internal error. Suberror: 3")


def test_of_a_guest_whose_host_hangs_nothing_is_known_and_that_is_said(host: FakeHost) -> None:
    host.dead = True
    assert a_guest(host).last_words() == "nothing more is known of it, its host does not say: no answer within 1 s"


def test_a_guest_that_dies_ends_the_wait_for_the_others(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    class Booting:
        config = CONFIG

        def wait_until_up(self, usual_s: float | None, clock: Any) -> float:
            raise PlaceCrashed("a is not up")

    monkeypatch.setattr(bringup, "boot_times", lambda: BootTimes(Path("nowhere.json")))
    with pytest.raises(PlaceCrashed, match="a is not up"):
        bringup.wait_for([Booting(), Booting()], lambda: OwnTime(None), "tcg")


# The host


def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, command: str) -> emulator.Emulator:
    """Return a host whose emulator is a shell command and whose agent never answers."""

    class Deaf:
        last_heard = 0.0

        def __init__(self, path: Path, check: Any) -> None:
            self.check = check

        def call(self, op: Any, sample: Any = (), timeout_s: float = 60) -> Answer:
            clock.now += timeout_s
            self.check()
            raise TimeoutError

        def close(self) -> None: ...

    monkeypatch.setattr(emulator, "Connection", Deaf)
    monkeypatch.setattr(emulator, "Patience", lambda usual_s, _: Patience(usual_s, clock))
    (tmp_path / "console.log").write_text("[    0.0] Linux version 7\n")
    with (tmp_path / "emulator.err").open("wb") as err:
        process = subprocess.Popen(["sh", "-c", command], stderr=err)
    if "exec" not in command:
        process.wait()
    return emulator.Emulator(tmp_path, process)


def test_a_host_that_hangs_is_given_up_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    lost = started(tmp_path, monkeypatch, clock, "echo a warning >&2; exec sleep 1000")
    while not (tmp_path / "emulator.err").read_text():
        pass
    times = BootTimes(tmp_path / "times.json")
    times.add("it", 10)
    with pytest.raises(PlaceCrashed) as crash:
        lost.wait_until_up(times, "it")
    lost.close()
    assert 30 <= clock.now < 36
    assert re.fullmatch(
        r"the lab's host is not up after 3\d s and has printed nothing for 3\d s; it usually takes 10 s; "
        r"its QEMU runs and has used \d\.\d s of CPU time; its kernel was booting; "
        r"console: \[    0.0\] Linux version 7; its QEMU printed: a warning",
        str(crash.value),
    )


def test_a_host_whose_emulator_ends_says_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    lost = started(tmp_path, monkeypatch, clock, "echo 'cannot allocate' >&2; exit 3")
    with pytest.raises(PlaceCrashed) as crash:
        lost.wait_until_up(BootTimes(tmp_path / "times.json"), "it")
    lost.close()
    assert str(crash.value).startswith("the lab's emulator ended; its QEMU ended with 3")
    assert str(crash.value).endswith("its QEMU printed: cannot allocate")


# Limits of tests


@pytest.mark.parametrize(("boot_s", "times"), [(None, 1), (slow.BOOT_S / 2, 1), (slow.BOOT_S, 1), (slow.BOOT_S * 3, 3)])
def test_tests_wait_as_many_boots_as_they_take_elsewhere(
    monkeypatch: pytest.MonkeyPatch, boot_s: float | None, times: int, clock: Clock
) -> None:
    lab = cast("emulator.Emulator", SimpleNamespace(boot_s=boot_s, clock=lambda: clock))
    assert slow.patience_s(lab, 30) == 30 * times
    monkeypatch.setattr(slow, "LOOK_S", 0)

    def looks() -> bool:
        clock.now += 1
        return False

    with pytest.raises(AssertionError, match=f"not within {30 * times} s: it is there"):
        slow.until(lab, looks, "it is there", 30)
    assert 30 * times <= clock.now < 30 * times + 3


def failing(times: int, failure: type[AssertionError] = AssertionError) -> tuple[list[int], pytest.Function]:
    """Return a test of the lab, with no lab of its own, that fails so often at first, and when it was run."""
    ran: list[int] = []

    def obj() -> None:
        ran.append(len(ran))
        if len(ran) <= times:
            raise failure("as measured")

    return ran, cast(
        "pytest.Function",
        SimpleNamespace(
            name=f"fails {times}",
            nodeid=f"fails {times}",
            obj=obj,
            funcargs={},
            get_closest_marker=lambda name: name == "lab",
            _fixtureinfo=SimpleNamespace(argnames=()),
            config=SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda name: None)),
        ),
    )


def test_two_tests_of_a_session_may_fail_once_and_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "chances", 2)
    monkeypatch.setattr(again, "_failed", set())
    monkeypatch.setattr(again, "_died", set())
    monkeypatch.setattr(conftest, "repeat", (repeated := []).append)
    ran, test = failing(2)
    with pytest.raises(AssertionError, match="as measured"):
        conftest.pytest_pyfunc_call(test)
    assert len(ran) == 2
    ran, test = failing(1)
    assert conftest.pytest_pyfunc_call(test)
    assert len(ran) == 2
    assert repeated == ["fails 2 has failed once: as measured", "fails 1 has failed once: as measured"]
    # The third is one too many.
    ran, test = failing(3)
    with pytest.raises(AssertionError, match="as measured"):
        conftest.pytest_pyfunc_call(test)
    assert len(ran) == 1


def test_on_a_busy_machine_a_few_tests_are_void_and_the_next_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "voids", 1)
    monkeypatch.setattr(again, "_void", set())
    monkeypatch.setattr(conftest, "repeat", lambda _: None)
    ran, test = failing(again.ATTEMPTS - 1, again.Elsewhere)
    assert conftest.pytest_pyfunc_call(test)
    assert len(ran) == again.ATTEMPTS
    ran, test = failing(1, again.Elsewhere)
    with pytest.raises(again.Elsewhere, match="as measured"):
        conftest.pytest_pyfunc_call(test)
    assert len(ran) == 1

# SPDX-License-Identifier: GPL-2.0-only
"""What is run again, and how often: a scheduler that kills its host now and then must not pass for bad luck."""

import again
import pytest


@pytest.fixture(autouse=True)
def _a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "chances", again.CHANCES_MIN)
    monkeypatch.setattr(again, "voids", again.VOIDS_MIN)
    monkeypatch.setattr(again, "_void", set())
    monkeypatch.setattr(again, "_failed", set())
    monkeypatch.setattr(again, "_died", set())
    monkeypatch.setattr(again, "_lost", [])


def test_a_test_may_fail_once_and_two_of_a_session() -> None:
    assert again.second_chance("a")
    assert not again.second_chance("a"), "twice"
    assert again.second_chance("b")
    assert not again.second_chance("c"), "a third one"


@pytest.mark.parametrize(("tests", "may_fail"), [(1, 2), (149, 2), (150, 3), (230, 4)])
def test_one_in_fifty_may_fail_once_where_there_are_many(tests: int, may_fail: int) -> None:
    again.set_chances(tests)
    assert sum(again.second_chance(str(test)) for test in range(tests)) == min(tests, may_fail)


@pytest.mark.parametrize(("tests", "may_be"), [(1, 4), (19, 4), (200, 50)])
def test_no_more_than_a_quarter_of_a_session_may_be_void_for_a_busy_machine(tests: int, may_be: int) -> None:
    again.set_chances(tests)
    assert [again.may_be_void(str(test)) for test in range(may_be + 1)] == [True] * may_be + [False]
    assert again.may_be_void("0"), "it is one of those"
    assert f"{may_be} were void since this machine was busy, {may_be} may be" in again.spent()


def test_however_many_tests_there_are_no_more_than_two_may_kill_their_host() -> None:
    again.set_chances(1000)
    assert [again.may_be_lost(test, "Oops: int3") for test in "abc"] == [True, True, False]
    assert not again.second_chance("a"), "it has had one"
    assert again.second_chance("c"), "those who fail are counted by themselves"


def test_two_machines_may_be_lost_for_no_reason() -> None:
    assert [again.may_be_lost(test, "lab: silence 1") for test in "abc"] == [True, True, False]


@pytest.mark.parametrize(
    "words",
    [
        "sched_ext: cohort: BPF scheduler disabled (runnable task stall)",
        "watchdog: BUG: soft lockup - CPU#1 stuck for 26s!",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks",
        "Kernel panic - not syncing: Fatal exception",
        "INFO: task cohort:77 blocked for more than 120 seconds.",
    ],
)
def test_one_whose_kernel_says_why_it_died_has_failed(words: str) -> None:
    # With what follows, registers and a call trace, and what is said of every scheduler that ends well.
    trace = "\n".join(f" ? function_{number}+0x12/0x90" for number in range(40))
    console = f'sched_ext: BPF scheduler "cohort" enabled\n{words}\n{trace}\n'
    assert again.may_be_lost("a", console)
    assert not again.may_be_lost("a", console)
    # What has failed is not counted as lost.
    well = 'sched_ext: BPF scheduler "cohort" disabled (unregistered from user space)'
    assert [again.may_be_lost(test, well) for test in "bcd"] == [True, True, False]

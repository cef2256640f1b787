# SPDX-License-Identifier: GPL-2.0-only
"""What is run again, and how often: a scheduler that kills its host now and then must not pass for bad luck."""

import again
import pytest


@pytest.fixture(autouse=True)
def _a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "_failed", set())
    monkeypatch.setattr(again, "_lost", [])


def test_a_test_may_fail_once_and_two_of_a_session() -> None:
    assert again.second_chance("a")
    assert not again.second_chance("a"), "twice"
    assert again.second_chance("b")
    assert not again.second_chance("c"), "a third one"


def test_two_machines_may_be_lost_for_no_reason() -> None:
    assert [again.may_be_lost(test, "the emulator ended with -11") for test in "aabc"] == [True, True, False, False]


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
    assert again.may_be_lost("a", f"the host was lost: {words}")
    assert not again.may_be_lost("a", f"the host was lost: {words}")
    # What has failed is not counted as lost.
    assert again.may_be_lost("b", "the emulator ended with -11")

# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel's version decides, on the simulated host, in KVM and in guests."""

from pathlib import Path

import pytest

from cohortlab import scenario as scenarios
from cohortlab.scenario import Tlb
from cohortlab.sim import policy
from cohortlab.sim.model import Run


@pytest.mark.parametrize(
    ("kernel", "variant", "delay_dequeue", "pick_buddy"),
    [
        ("2.6.34", "cfs", None, None),
        ("6.5.13-1-amd64", "cfs", None, None),
        ("6.6", "eevdf", False, False),
        ("6.12.48+deb13", "eevdf", True, False),
        ("6.18.15+deb13-cloud-amd64", "eevdf", True, True),
        ("6.19", "eevdf-forfeit", True, True),
        ("7.2.12", "eevdf-forfeit", True, True),
        ("7.3.4", "eevdf-flat", True, True),
    ],
)
def test_a_kernel_has_its_form_of_the_fair_class(
    kernel: str, variant: str, delay_dequeue: bool | None, pick_buddy: bool | None
) -> None:
    found = policy.host_class("eevdf", (), kernel)
    assert (found["class"], found["variant"]) == ("fair", variant)
    assert (found.get("delay_dequeue"), found.get("pick_buddy")) == (delay_dequeue, pick_buddy)
    assert found.get("lazy_preemption") == (None if variant == "cfs" else kernel.startswith("7."))
    assert found.get("buddy_hints") == (kernel != "2.6.34" if variant == "cfs" else None)


@pytest.mark.parametrize(
    ("kernel", "busy_balance", "imbalance_percent"),
    [("3.15.10", "fixed", 125), ("3.16", "seldom", None), ("5.9.16", "seldom", None), ("5.10", None, None)],
)
def test_busy_pcpus_balance_as_often_as_in_the_kernel(
    kernel: str, busy_balance: str | None, imbalance_percent: int | None
) -> None:
    found = policy.host_class("eevdf", (), kernel)
    assert (found.get("busy_balance"), found.get("imbalance_percent")) == (busy_balance, imbalance_percent)


@pytest.mark.parametrize(
    ("kernel", "bug"),
    [
        ("6.12.48+deb13", False),
        ("6.13", True),
        ("6.17.13", True),
        ("6.18.2", True),
        ("6.18.3", False),
        ("6.18.15+deb13-cloud-amd64", False),
        ("6.19", False),
    ],
)
def test_only_some_kernels_forget_whom_they_have_boosted(kernel: str, bug: bool) -> None:
    assert policy.kvm_of(kernel)["on_spin_bug"] == bug


@pytest.mark.parametrize(
    ("kernel", "yields_to_woken", "shrink"),
    [("2.6.39", False, 0), ("5.2.21", False, 0), ("5.3", True, 0), ("6.10.14", True, 0), ("6.11", True, 2)],
)
def test_yields_and_polling_are_those_of_the_kernel(kernel: str, yields_to_woken: bool, shrink: int) -> None:
    found = policy.kvm_of(kernel)
    assert (found["yields_to_woken"], found["halt_poll"]["shrink"]) == (yields_to_woken, shrink)


@pytest.mark.parametrize(
    ("kernel", "kick_yields", "since_5_13"),
    [("5.3.18", False, False), ("5.4", True, False), ("5.12.19", True, False), ("5.13", True, True)],
)
def test_yields_by_hypercall_and_interrupts_are_those_of_the_kernel(
    kernel: str, kick_yields: bool, since_5_13: bool
) -> None:
    assert policy.guest_of(kernel, 2)["send_ipi"] == ("shorthand" if kick_yields else "each")
    found = policy.kvm_of(kernel)
    assert (found["kick_yields"], found["lone_yields_not"]) == (kick_yields, since_5_13)
    assert found["asks_interrupted"] == since_5_13


@pytest.mark.parametrize(
    ("kernel", "vcpus", "slice_ns", "hrtick"),
    [
        ("2.6.34", 4, 3_000_000, False),
        ("2.6.36.4", 1, 2_000_000, False),
        ("6.5.13", 4, 2_250_000, False),
        ("6.6", 1, 750_000, False),
        ("6.12.48+deb13", 2, 1_400_000, False),
        ("7.2.12", 3, 1_400_000, False),
        ("7.3.4", 2, 1_400_000, True),
        ("7.3.4", 4, 2_100_000, True),
        ("7.3.4", 24, 2_800_000, True),
    ],
)
def test_a_guests_tasks_have_slices_by_its_kernel_and_its_vcpus(
    kernel: str, vcpus: int, slice_ns: int, hrtick: bool
) -> None:
    found = policy.guest_of(kernel, vcpus)
    assert (found["slice_ns"], found["hrtick"]) == (slice_ns, hrtick)


@pytest.mark.parametrize(
    ("kernel", "vcpus", "latency_ns", "wakeup_gran_ns"),
    [
        ("2.6.34", 4, 15_000_000, 3_000_000),
        ("2.6.35", 1, 6_000_000, 1_000_000),
        ("4.15", 12, 24_000_000, 4_000_000),
        ("6.6", 4, None, None),
    ],
)
def test_cfs_turns_in_a_guest_are_those_of_its_kernel(
    kernel: str, vcpus: int, latency_ns: int | None, wakeup_gran_ns: int | None
) -> None:
    found = policy.guest_of(kernel, vcpus)
    assert (found.get("latency_ns"), found.get("wakeup_gran_ns")) == (latency_ns, wakeup_gran_ns)


@pytest.mark.parametrize(
    ("kernel", "wakelist"),
    [("2.6.39", "none"), ("3.0", "others"), ("3.2.102", "others"), ("3.3", "none"), ("5.19", "none"), ("6.0", "idle")],
)
def test_who_is_left_a_wake_up_is_by_kernel(kernel: str, wakelist: str) -> None:
    assert policy.guest_of(kernel, 2)["wakelist"] == wakelist


@pytest.mark.parametrize(
    ("kernel", "newidle"),
    [("5.15.9", "migration-cost"), ("5.16", "cost"), ("6.18", "cost"), ("6.19", "random"), ("7.1", "rate")],
)
def test_who_goes_idle_looks_for_a_task_as_its_kernel_has_it(kernel: str, newidle: str) -> None:
    assert policy.guest_of(kernel, 2)["newidle"] == policy.fair_class(kernel)["newidle"] == newidle


def test_cfs_turns_are_no_longer_than_the_latency_since_6_3() -> None:
    found = [policy.fair_class(kernel)["limits_turns"] for kernel in ("6.1.140", "6.2.16", "6.3", "6.5.13")]
    assert found == [False, False, True, True]


@pytest.mark.parametrize(("kernel", "weigh"), [("4.15", False), ("5.6.19", False), ("5.7", None), ("7.3", None)])
def test_sleepers_are_load_since_5_7(kernel: str, weigh: bool | None) -> None:
    assert policy.fair_class(kernel).get("sleepers_weigh") is weigh


@pytest.mark.parametrize(
    ("kernel", "asks_kernel_only", "lazy_tlb"),
    [
        ("4.13.16", False, "asked"),
        ("4.14", True, "left"),
        ("4.19.300", True, "left"),
        ("4.20", True, "spared"),
        ("6.13.12", True, "spared"),
        ("6.14", True, "late"),
    ],
)
def test_who_is_asked_to_run_or_to_flush_is_by_kernel(kernel: str, asks_kernel_only: bool, lazy_tlb: str) -> None:
    found = (policy.kvm_of(kernel)["asks_kernel_only"], policy.guest_of(kernel, 2)["lazy_tlb"])
    assert found == (asks_kernel_only, lazy_tlb)


@pytest.mark.parametrize(
    ("kernel", "counts", "grows"),
    [("3.17.8", False, False), ("3.18", False, True), ("4.16.18", True, False), ("4.17", True, True)],
)
def test_windows_grow_since_the_kernel_has_them_grow(kernel: str, counts: bool, grows: bool) -> None:
    assert policy.window_grows(kernel, counts=counts) == grows


@pytest.mark.parametrize(
    ("kernel", "scheduler", "lazy"),
    [
        ("2.6.34", "cfs", False),
        ("6.5.13", "cfs", False),
        ("6.6", "eevdf", False),
        ("6.11.11", "eevdf", False),
        ("6.12", "eevdf-delay", False),
        ("6.18.2", "eevdf-delay", False),
        ("7.3.4", "eevdf-delay", True),
    ],
)
def test_a_guests_tasks_compete_as_its_kernel_has_it(kernel: str, scheduler: str, lazy: bool) -> None:
    found = policy.guest_of(kernel, 2)
    assert (found["scheduler"], found["lazy_preemption"], found["retains_tick"]) == (scheduler, lazy, lazy)


@pytest.mark.parametrize(
    ("kernel", "half_first_slice", "full_weights", "normalized_slice_ns"),
    [
        ("6.6", False, False, 750_000),
        ("6.6.92", False, False, 750_000),
        ("6.6.93", False, False, 700_000),
        ("6.11.11", False, False, 750_000),
        ("6.12.30", True, False, 750_000),
        ("6.12.48+deb13", True, False, 700_000),
        ("6.14.8", True, False, 750_000),
        ("6.14.9", True, False, 700_000),
        ("6.15", True, False, 700_000),
        ("7.0.3", True, False, 700_000),
        ("7.1", True, True, 700_000),
        ("7.3.4", True, True, 700_000),
    ],
)
def test_a_kernel_has_its_slices_and_its_precision(
    kernel: str, half_first_slice: bool, full_weights: bool, normalized_slice_ns: int
) -> None:
    found = policy.host_class("eevdf", (), kernel)
    assert (found["place_deadline_initial"], found["full_weights"]) == (half_first_slice, full_weights)
    assert (found["slice_ns"], found["normalized_slice_ns"]) == (0, normalized_slice_ns)


@pytest.mark.parametrize(
    ("kernel", "newidle", "idle_search"),
    [
        ("4.15", "migration-cost", "target"),
        ("5.12", "migration-cost", "target"),
        ("5.13", "migration-cost", "core"),
        ("5.15", "migration-cost", "recent"),
        ("6.1.159", "cost", "recent"),
        ("6.1.160", "random", "recent"),
        ("6.6.120", "random", "recent"),
        ("6.12.64", "cost", "recent"),
        ("6.12.65+deb13", "random", "recent"),
        ("6.17.13", "cost", "recent"),
        ("6.18.4", "cost", "recent"),
        ("6.18.5", "random", "recent"),
        ("6.19", "random", "recent"),
        ("7.0", "random", "recent"),
        ("7.1", "rate", "recent"),
        ("7.3", "rate", "recent"),
    ],
)
def test_a_kernel_looks_for_idle_pcpus_and_for_tasks_as_it_did(kernel: str, newidle: str, idle_search: str) -> None:
    found = policy.host_class("eevdf", (), kernel)
    assert (found["newidle"], found["idle_search"]) == (newidle, idle_search)


@pytest.mark.parametrize(
    ("kernel", "lag_by_tick", "paid_leave"), [("6.18", False, False), ("7.0", True, False), ("7.1", True, True)]
)
def test_lag_is_limited_and_sleepers_leave_as_the_kernel_has_it(
    kernel: str, lag_by_tick: bool, paid_leave: bool
) -> None:
    for found in (policy.host_class("eevdf", (), kernel), policy.guest_of(kernel, 2)):
        assert (found["lag_by_tick"], found["paid_leave"]) == (lag_by_tick, paid_leave)


@pytest.mark.parametrize(
    ("kernel", "tells", "heeds", "polls_us", "forfeits"),
    [
        ("4.2", False, "nothing", 0, False),
        ("4.3", False, "nothing", 400, False),
        ("4.9", False, "nothing", 400, False),
        ("4.10", True, "owners", 400, False),
        ("4.12", True, "owners", 200, False),
        ("4.18", True, "all", 200, False),
        ("6.19", True, "all", 200, True),
    ],
)
def test_kvm_and_guests_know_preempted_vcpus_and_poll_as_their_kernels_do(
    kernel: str, tells: bool, heeds: str, polls_us: int, forfeits: bool
) -> None:
    kvm, guest = policy.kvm_of(kernel), policy.guest_of(kernel, 4)
    # What is not said is the simulator's own.
    assert (kvm["tells_preempted"], kvm["halt_poll"].get("max_ns", 200_000)) == (tells, 1_000 * polls_us)
    assert (guest["heeds_preempted"], guest["yield_forfeits"]) == (heeds, forfeits)


@pytest.mark.parametrize(
    ("kernel", "forfeits"),
    [
        ("6.6.119", False),
        ("6.6.120", True),
        ("6.12.62", False),
        ("6.12.63+deb13", True),
        ("6.14.11", False),
        ("6.17.13", True),
        ("6.18.1", False),
        ("6.18.15+deb13-cloud-amd64", True),
        ("6.19", True),
        ("7.3.4", True),
    ],
)
def test_who_yields_forfeits_in_stable_kernels_too(kernel: str, forfeits: bool) -> None:
    assert policy.guest_of(kernel, 2)["yield_forfeits"] == policy.fair_class(kernel)["yield_forfeits"] == forfeits


def test_waiters_of_pv_locks_halt_behind_preempted_ones_from_4_11_to_5_3() -> None:
    kernels = ("4.10", "4.11", "4.14.148", "4.14.149", "4.15", "4.19.79", "5.3.5", "5.3.6", "5.4", "7.3")
    found = [kernel for kernel in kernels if policy.guest_of(kernel, 2)["halts_behind_preempted"]]
    assert found == ["4.11", "4.14.148", "4.15", "5.3.5"]


def test_who_halts_seems_to_be_preempted_until_5_18() -> None:
    told = [policy.kvm_of(kernel)["tells_always"] for kernel in ("4.15", "5.18.19", "5.19", "7.3")]
    assert told == [True, True, False, False]


def test_a_kvm_that_flushes_tells_who_is_preempted_whatever_its_version() -> None:
    chosen = scenarios.load(Path(__file__).parents[2] / "scenarios/smp-2x2.toml")

    def tells(tlb: Tlb, kernel: str) -> bool:
        run = Run(chosen.with_tlb(tlb), {"work": "tlb-flush"}, kernel=kernel)
        return bool(run.as_dict()["vms"][0]["kvm"]["tells_preempted"])

    assert [tells(tlb, "3.16") for tlb in ("ipi", "kvm-pv")] == [False, True]
    assert tells("ipi", "4.10")

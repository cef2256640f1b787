# SPDX-License-Identifier: GPL-2.0-only
"""The ideal, by hand-computed cases and by the laws that any case must obey."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohortlab import scenario
from cohortlab.ideal import Claim, due, entitlements, full_demand, ideal_slowdown

CASES = {
    "equal weights, both want all": (2, [Claim(100, 2), Claim(100, 2)], [1, 1]),
    "weights 3 : 1": (2, [Claim(300, 2), Claim(100, 2)], [1.5, 0.5]),
    "one busy vCPU beside a hog": (2, [Claim(100, 1), Claim(100, 2)], [1, 1]),
    "what one cannot use goes to the other": (2, [Claim(100, 0.25), Claim(100, 2)], [0.25, 1.75]),
    "enough for all": (4, [Claim(1, 1), Claim(10000, 2)], [1, 2]),
    "an idle VM takes nothing": (2, [Claim(100, 0), Claim(100, 2)], [0, 2]),
    # 6 pCPUs by weights 1 : 2 : 3 are 1 : 2 : 3; the second uses 1, the rest of 5 goes 1 : 3.
    "the left-over is shared by weight": (6, [Claim(1, 6), Claim(2, 1), Claim(3, 6)], [1.25, 1, 3.75]),
    # Weights 1 : 4 of 2 pCPUs would be 0.4 and 1.6, but the second VM has one pCPU only.
    "a pinned VM gets no more than its pCPU": (
        2,
        [Claim(100, 2), Claim(400, 2, frozenset({0}))],
        [1, 1],
    ),
    # Both pinned VMs share pCPU 0, although the third leaves half of pCPU 1 idle.
    "pinned together": (
        2,
        [Claim(100, 2, frozenset({0})), Claim(300, 2, frozenset({0})), Claim(100, 0.5, frozenset({1}))],
        [0.25, 0.75, 0.5],
    ),
    # {0,1} holds the first two at 1 each; the third has pCPU 2 for itself.
    "overlapping sets": (
        3,
        [Claim(1, 2, frozenset({0, 1})), Claim(1, 2, frozenset({0, 1})), Claim(1, 3, frozenset({1, 2}))],
        [1, 1, 1],
    ),
    # The middle one shares pCPU 0 with the first and pCPU 1 with the last: two thirds for each of the three.
    "a chain of sets": (
        2,
        [Claim(1, 1, frozenset({0})), Claim(1, 2, frozenset({0, 1})), Claim(1, 1, frozenset({1}))],
        [2 / 3, 2 / 3, 2 / 3],
    ),
}


def on(*cpus: int) -> tuple[frozenset[int], ...]:
    return tuple(frozenset({cpu}) for cpu in cpus)


CASES |= {
    "pinned 1:1, both busy": (2, [Claim(100, 2, vcpus=on(0, 1)), Claim(100, 2, vcpus=on(0, 1))], [1, 1]),
    # The first has two vCPUs on pCPU 0, and no more than that pCPU, whatever it weighs.
    "stacked by the user": (2, [Claim(900, 2, vcpus=on(0, 0)), Claim(100, 2, vcpus=on(0, 1))], [1, 1]),
    "stacked, and of little weight": (2, [Claim(100, 2, vcpus=on(0, 0)), Claim(300, 2, vcpus=on(0, 1))], [0.5, 1.5]),
    # Both want pCPU 0; the second's other vCPU has pCPU 1, which is more than its half already.
    "fair by VM, not by pCPU": (2, [Claim(100, 1, vcpus=on(0)), Claim(100, 2, vcpus=on(0, 1))], [1, 1]),
    "a pinned VM beside one that may go anywhere": (4, [Claim(100, 2, vcpus=on(0, 1)), Claim(100, 4)], [2, 2]),
}


@pytest.mark.parametrize(("pcpus", "claims", "expected"), CASES.values(), ids=CASES.keys())
def test_entitlements(pcpus: int, claims: list[Claim], expected: list[float]) -> None:
    assert entitlements(claims, pcpus) == pytest.approx(expected)


Load = Callable[..., Path]


@pytest.mark.parametrize(
    ("demand", "slowdown", "hog_due"),
    [
        (2.0, 2.0, 0.5),
        (1.5, 1.5, 0.5),
        # The case of the definition: one busy vCPU of two is entitled to a whole pCPU.
        (1.0, 1.0, 0.5),
        (0.5, 1.0, 0.75),
        (0.0, 1.0, 1.0),
        # A VMM's threads can push the measured demand over the vCPUs: there are still only 2 pCPUs.
        (2.1, 2.0, 0.5),
    ],
)
def test_ideal_of_two_equal_vms(write_scenario: Load, demand: float, slowdown: float, hog_due: float) -> None:
    two = scenario.load(write_scenario())
    assert ideal_slowdown(two, demand) == pytest.approx(slowdown)
    assert due(two, demand) == pytest.approx({"work": 1 - hog_due, "hog": hog_due})


def test_ideal_knows_the_affinity_of_the_program_vm(write_scenario: Load, scenario_text: str) -> None:
    pinned = scenario_text.replace('programs = ["spin", "serve"]', 'programs = ["spin"]\naffinity = [1]')
    found = scenario.load(write_scenario(pinned))
    # The hog has pCPU 0 for itself: equal weights then leave pCPU 1 to the pinned VM.
    assert ideal_slowdown(found, 1.0) == pytest.approx(1)
    assert due(found, 1.0) == pytest.approx({"work": 0.5, "hog": 0.5})


def test_ideal_when_both_are_pinned_to_one_pcpu(write_scenario: Load, scenario_text: str) -> None:
    text = scenario_text.replace("memory_mb = 256\n", "memory_mb = 256\naffinity = [1]\n")
    found = scenario.load(write_scenario(text))
    assert ideal_slowdown(found, 1.0) == pytest.approx(2)
    # More than the one pCPU that it may use cannot be its demand.
    assert ideal_slowdown(found, 1.2) == pytest.approx(2)
    assert due(found, 1.0) == pytest.approx({"work": 0.25, "hog": 0.25})


@pytest.mark.parametrize(
    ("demand", "work", "hog"),
    [
        (2.0, 0.4, 0.4),
        # It still has the half pCPU that it wants; the host's work is at the cost of who wants more than its share.
        (0.5, 0.25, 0.55),
    ],
)
def test_due_of_what_the_host_leaves(write_scenario: Load, demand: float, work: float, hog: float) -> None:
    found = due(scenario.load(write_scenario()), demand, left=0.8)
    assert found == pytest.approx({"work": work, "hog": hog})


def test_full_demand(write_scenario: Load, scenario_text: str) -> None:
    work, hog = scenario.load(write_scenario(scenario_text.replace('load = "burn"', 'load = "burn"\naffinity=[0]'))).vms
    assert full_demand(work, 2) == 2
    assert full_demand(work, 1) == 1
    assert full_demand(work, 8) == 2
    assert full_demand(hog, 2) == 1


SEVERAL = """
name = "several"
[host]
pcpus = 2
[[vm]]
name = "a"
vcpus = 2
memory_mb = 256
programs = ["spin"]
[[vm]]
name = "b"
vcpus = 2
memory_mb = 256
programs = ["serve"]
"""


def test_each_of_several_programs_has_an_ideal(write_scenario: Load) -> None:
    found = scenario.load(write_scenario(SEVERAL))
    demands = {"a": 2.0, "b": 0.5}
    assert due(found, demands) == pytest.approx({"a": 0.75, "b": 0.25})
    assert ideal_slowdown(found, demands, "a") == pytest.approx(2 / 1.5)
    assert ideal_slowdown(found, demands, "b") == pytest.approx(1)


def test_a_cap_is_all_that_there_is(write_scenario: Load, scenario_text: str) -> None:
    text = scenario_text.replace('load = "burn"', 'load = "burn"\ncap_pcpus = 0.25')
    found = scenario.load(write_scenario(text))
    assert due(found, 2.0) == pytest.approx({"work": 0.875, "hog": 0.125})


def test_who_sleeps_leaves_it_to_the_others_meanwhile(write_scenario: Load, scenario_text: str) -> None:
    text = scenario_text.replace('load = "burn"', 'load = "burn"\nrun_s = 1\nsleep_s = 3')
    found = scenario.load(write_scenario(text))
    # A quarter of the time at half of the host, the rest at all of it.
    assert ideal_slowdown(found, 2.0) == pytest.approx(2 / (0.25 * 1 + 0.75 * 2))
    assert due(found, 2.0)["hog"] == pytest.approx(0.25 * 0.5)


def test_two_rhythms_meet_as_chance_has_it(write_scenario: Load, scenario_text: str) -> None:
    sleeper = 'vcpus = 2\nmemory_mb = 256\nload = "burn"\nsleep_s = 1\n'
    text = scenario_text.replace('vcpus = 2\nmemory_mb = 256\nload = "burn"', f"run_s = 1\n{sleeper}")
    other = '[[vm]]\nname = "other"\nrun_s = 3\n' + sleeper
    found = scenario.load(write_scenario(text + other))
    both, hog, one, none = 2 / 3, 1.0, 1.0, 2.0
    rate = 0.5 * 0.75 * both + 0.5 * 0.25 * hog + 0.5 * 0.75 * one + 0.5 * 0.25 * none
    assert ideal_slowdown(found, 2.0) == pytest.approx(2 / rate)


def test_who_arrives_later_takes_nothing_before(write_scenario: Load, scenario_text: str) -> None:
    text = scenario_text.replace('load = "burn"', 'load = "burn"\nstart_s = 3')
    found = scenario.load(write_scenario(text))
    assert ideal_slowdown(found, 2.0, alone_s=2) == pytest.approx(1)
    # 3 s alone, and the work of the fourth in 2 s.
    assert ideal_slowdown(found, 2.0, alone_s=4) == pytest.approx(5 / 4)
    assert due(found, 2.0, window_s=(0, 5))["hog"] == pytest.approx(0.5 * 2 / 5)


def test_a_program_of_a_fixed_time_does_less_in_it(write_scenario: Load, scenario_text: str) -> None:
    text = scenario_text.replace('load = "burn"', 'load = "burn"\nstart_s = 1')
    found = scenario.load(write_scenario(text))
    # Of 2 s it has both pCPUs for one, and one pCPU for the other; work of 2 s takes it 3 s.
    assert ideal_slowdown(found, 2.0, alone_s=2, timed=True) == pytest.approx(4 / 3)
    assert ideal_slowdown(found, 2.0, alone_s=2) == pytest.approx(3 / 2)
    # It is over before the other comes.
    assert ideal_slowdown(found, 2.0, alone_s=1, timed=True) == pytest.approx(1)
    # Where nobody is late both are the same.
    assert ideal_slowdown(scenario.load(write_scenario()), 2.0, alone_s=2, timed=True) == pytest.approx(2)


PCPUS = st.integers(1, 8)
TOLERANCE = 1e-6


def _each_vcpu(claim: Claim) -> Claim:
    return claim if claim.cpus is None else Claim(claim.weight, claim.demand, claim.cpus, (claim.cpus,) * 8)


@st.composite
def hosts(draw: st.DrawFn, *, pinned: bool = True) -> tuple[int, list[Claim]]:
    pcpus = draw(PCPUS)
    cpus = st.frozensets(st.integers(0, pcpus - 1), min_size=1)
    claims = st.builds(
        Claim,
        st.integers(1, 10000),
        st.floats(0, 10, allow_subnormal=False),
        st.none() | cpus if pinned else st.none(),
    )
    if pinned:  # a VM each of whose vCPUs has the same pCPUs can have what the VM as a whole has of them
        claims = claims.map(_each_vcpu) | claims
    return pcpus, draw(st.lists(claims, min_size=1, max_size=6))


def allowed(claim: Claim, pcpus: int) -> frozenset[int]:
    return claim.cpus if claim.cpus is not None else frozenset(range(pcpus))


@given(hosts())
def test_nobody_gets_more_than_it_can_use(host: tuple[int, list[Claim]]) -> None:
    pcpus, claims = host
    for claim, share in zip(claims, entitlements(claims, pcpus), strict=True):
        assert 0 <= share <= min(claim.demand, len(allowed(claim, pcpus))) + TOLERANCE


@given(hosts())
def test_no_set_of_pcpus_gives_more_than_it_has(host: tuple[int, list[Claim]]) -> None:
    pcpus, claims = host
    shares = entitlements(claims, pcpus)
    for mask in range(1, 1 << pcpus):
        cpus = frozenset(cpu for cpu in range(pcpus) if mask >> cpu & 1)
        inside = sum(s for c, s in zip(claims, shares, strict=True) if allowed(c, pcpus) <= cpus)
        assert inside <= len(cpus) + TOLERANCE


@given(hosts())
def test_nothing_is_left_that_somebody_could_use(host: tuple[int, list[Claim]]) -> None:
    """A claim below its demand may only use pCPUs of a set that is full of claims at least as well off as can be."""
    pcpus, claims = host
    shares = entitlements(claims, pcpus)
    full = set()
    for mask in range(1, 1 << pcpus):
        cpus = frozenset(cpu for cpu in range(pcpus) if mask >> cpu & 1)
        inside = sum(s for c, s in zip(claims, shares, strict=True) if allowed(c, pcpus) <= cpus)
        if inside >= len(cpus) - TOLERANCE:
            full.add(cpus)
    for claim, share in zip(claims, shares, strict=True):
        hungry = share < min(claim.demand, len(allowed(claim, pcpus))) - TOLERANCE
        assert not hungry or any(allowed(claim, pcpus) <= cpus for cpus in full)


@given(hosts(pinned=False))
def test_two_hungry_vms_get_the_same_for_their_weight(host: tuple[int, list[Claim]]) -> None:
    pcpus, claims = host
    shares = entitlements(claims, pcpus)
    hungry = [s / c.weight for c, s in zip(claims, shares, strict=True) if s < min(c.demand, pcpus) - TOLERANCE]
    assert not hungry or max(hungry) == pytest.approx(min(hungry))
    for claim, share in zip(claims, shares, strict=True):  # nor does a sated one get more for its weight
        assert not hungry or share / claim.weight <= max(hungry) * (1 + TOLERANCE) + TOLERANCE / claim.weight


@given(hosts(pinned=False), st.data())
def test_more_weight_never_means_less(host: tuple[int, list[Claim]], data: st.DataObject) -> None:
    pcpus, claims = host
    chosen = data.draw(st.integers(0, len(claims) - 1))
    old = claims[chosen]
    heavier = [*claims]
    heavier[chosen] = Claim(data.draw(st.integers(int(old.weight), 20000)), old.demand, old.cpus)
    assert entitlements(heavier, pcpus)[chosen] >= entitlements(claims, pcpus)[chosen] - TOLERANCE


@given(hosts(pinned=False), st.floats(0.1, 1))
def test_less_to_share_is_shared_as_on_a_smaller_host(host: tuple[int, list[Claim]], left: float) -> None:
    pcpus, claims = host
    shares = entitlements(claims, pcpus, left)
    assert sum(shares) == pytest.approx(min(pcpus * left, sum(min(c.demand, pcpus * left) for c in claims)))
    bigger = [Claim(claim.weight, claim.demand / left) for claim in claims]
    assert shares == pytest.approx([share * left for share in entitlements(bigger, pcpus)], abs=TOLERANCE)


@given(hosts(), st.integers(1, 100))
def test_only_the_ratio_of_weights_counts(host: tuple[int, list[Claim]], factor: int) -> None:
    pcpus, claims = host
    scaled = [Claim(claim.weight * factor, claim.demand, claim.cpus) for claim in claims]
    assert entitlements(scaled, pcpus) == pytest.approx(entitlements(claims, pcpus), abs=TOLERANCE)

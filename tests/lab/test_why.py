# SPDX-License-Identifier: GPL-2.0-only
"""What `compare` says of why: counted in a measurement's window, whatever schedules; without the probe, nothing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from again import booted, say
from probe import spent_ns

from cohortlab import scenario as scenarios
from cohortlab import why
from cohortlab.lab.place import LabPlace
from cohortlab.sim.place import SimPlace

if TYPE_CHECKING:
    from conftest import Boot

pytestmark = pytest.mark.lab
S = 1_000_000_000
EXACT = 0.02
SHARES = ("run", "ready", "costop", "stacked", "halted")
TRIES = 3
# So much of the pCPUs' time may the probe's programs take: 0.4 to 0.9 % were seen (docs/lab-measurements.md). The
# kernel's own measuring is in it, dear on an emulated processor; another processor has another ratio.
PART_MAX = 0.02


@pytest.mark.parametrize("policy", ["eevdf", "cohort"])
def test_every_vcpus_time_is_told_beside_the_figure(place: LabPlace, policy: str) -> None:
    assert place.description["probe"] == "on"
    with place.policy(policy), place.background("pv", "cpu-hog"):
        measured = place.measure("work", "hackbench")
    assert set(measured.why) == set(place.guests)
    for name, counters in measured.why.items():
        told = sum(counters[counter] for counter in ("run_ns", "ready_ns", "halted_ns", "blocked_ns"))
        whole = counters["vcpus"] * counters["window_ns"]
        print(name, why.of(counters), why.mostly(why.of(counters)))
        assert counters["vcpus"] == place.guests[name].config.vcpus
        assert told == pytest.approx(whole, rel=0.01)
        # The VMM's own threads are in the cgroup as well; and the probe is read outside of the cgroups' window.
        assert (
            counters["run_ns"] / S <= measured.cpu_s[name] + 2 * (counters["window_ns"] / S - measured.window_s) + 0.05
        )
    assert measured.why["work"]["window_ns"] / S >= measured.window_s
    assert why.of(measured.why["pv"])["run"] > 0.2
    assert why.of(measured.why["work"])["ready"] > 0.1
    assert measured.why["work"]["preemptions_kernel"] > 0


@pytest.mark.long
def test_the_probe_takes_little_of_what_is_measured(place: LabPlace) -> None:
    """Its programs' time of the pCPUs' time, as the host counts both. It is read outside of the program's window."""
    knob, run = "/proc/sys/kernel/bpf_stats_enabled", place._probe
    assert run is not None

    def own_ns() -> int:
        return int(place.host.read(f"/proc/{run.pid}/schedstat").split()[0])

    place.host.check(f"echo 1 >{knob}")
    try:
        parts, reads_ms = [], []
        # This machine may be busy with other things, which can only make it dearer.
        for _ in range(TRIES):
            with place.policy("eevdf"), place.background("pv", "cpu-hog"):
                before_ns, own_before_ns = spent_ns(place.host, run.pid), own_ns()
                measured = place.measure("work", "hackbench")
                took_ns = spent_ns(place.host, run.pid) - before_ns
                parts.append(took_ns / (measured.why["work"]["window_ns"] * place.pcpus))
                reads_ms.append((own_ns() - own_before_ns) / 2e6)
    finally:
        place.host.check(f"echo 0 >{knob}")
    print("ms to read it:", *(f"{ms:.0f}" for ms in reads_ms))
    print("the probe's part of the pCPUs' time:", *(f"{part:.2%}" for part in parts))
    assert 0 < min(parts) < PART_MAX


def wrong_by(counted: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return how far figures are from what must hold on pCPU 0, whoever has how much of it."""
    pair, single = (why.of(counted[name]) for name in ("pair", "single"))
    of_pair, of_single = counted["pair"], counted["single"]
    return {
        # Of the pair at most one runs, and then the other waits.
        "pair co-stop": pair["costop"] - pair["run"],
        "pair stacked": pair["stacked"] - 1 / 2,
        "pair time": pair["run"] + pair["ready"] - 1,
        "single co-stop": single["costop"],
        "single stacked": single["stacked"],
        "single time": single["run"] + single["ready"] - 1,
        # Nobody sleeps.
        "pair asleep": pair["halted"] + pair.get("blocked", 0.0),
        # Who never sleeps gets a pCPU as often as it loses one.
        "pair switches": of_pair["switches"] / of_pair["preemptions"] - 1,
        "single switches": of_single["switches"] / of_single["preemptions"] - 1,
        "single asleep": single["halted"] + single.get("blocked", 0.0),
        # All of them are always busy; the host itself needs a little.
        "pCPU 0": min(0.0, 2 * pair["run"] + single["run"] - 0.95) + max(0.0, 2 * pair["run"] + single["run"] - 1),
    }


@pytest.mark.long
def test_simulator_and_probe_count_the_same_where_the_truth_is_known() -> None:
    """By what must hold in each place; and the one's shares beside the other's. test_side_by_side.py has more of it."""
    found = []
    scenario = scenarios.load(Path(__file__).with_name("pinned.toml"))
    with ExitStack() as stack:
        real = booted(stack, lambda: LabPlace(scenario, progress=say))
        for place in (stack.enter_context(SimPlace(scenario)), real):
            stack.enter_context(place.policy("eevdf", ("--cgroup-mode", "smp")))
            with place.background("pair", "cpu-hog"), place.background("single", "cpu-hog"):
                if place is real:
                    for name, guest in real.guests.items():
                        # On a busy machine a load takes seconds to begin.
                        workers = 0 if name == "work" else guest.config.vcpus
                        look = f"until [ $(pgrep -c stress-ng-cpu) -ge {workers} ]; do sleep 0.2; done; sleep 2"
                        guest.machine.check(look, 300)
                counted = place.measure("work", "user-spin").why
            wrong = wrong_by(counted)
            print({name: round(value, 4) for name, value in wrong.items()})
            assert max(map(abs, wrong.values())) < EXACT
            found.append({(vm, share): why.of(counted[vm])[share] for vm in ("pair", "single") for share in SHARES})
    simulated, in_the_lab = found
    print({of: (round(value, 4), round(in_the_lab[of], 4)) for of, value in simulated.items()})
    assert in_the_lab == {of: pytest.approx(value, abs=EXACT) for of, value in simulated.items()}


@pytest.mark.long
def test_without_the_probe_figures_come_without_a_why(boot: Boot) -> None:
    with boot() as place:
        assert place.description["probe"] == "off"
        measured = place.measure("work", "hackbench")
        assert measured.value > 0
        assert measured.why == {}
        assert "cohort" not in place.emulator.host.check("ps -e -o comm").split()

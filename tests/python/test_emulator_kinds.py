# SPDX-License-Identifier: GPL-2.0-only
"""What each kind of emulator costs: told in one way, as it was measured; and the names that results have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cohortlab import compare
from cohortlab.compare import Plan
from cohortlab.lab import kinds
from cohortlab.lab.kinds import Kind
from cohortlab.lab.qemu import KINDS, Qemu
from cohortlab.policies import parse_policies
from cohortlab.progress import Progress
from cohortlab.scenario import Scenario

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_has_the_same_words(kind: Kind) -> None:
    rows = [line.split("|") for line in (DOCS / "lab.md").read_text().splitlines() if line.startswith(f"| `{kind}` |")]
    assert [row[3].strip() for row in rows] == [kinds.COSTS[kind] or "–"]


def test_an_exit_costs_as_much_more_as_was_measured() -> None:
    said = re.search(r"^\| a VM exit \(CPUID\), µs \|(.*)\|$", (DOCS / "lab-measurements.md").read_text(), re.M)
    assert said is not None
    patched, *others = (float(cell.split()[0]) for cell in said[1].split("|"))
    assert len(others) == len(KINDS) - 1
    assert all(8 <= round(other / patched) <= 9 for other in others), kinds.COSTS["cured"]


@pytest.mark.parametrize("kind", [*KINDS, "own"])
@pytest.mark.parametrize("build", ["", "f5a5fc624a4e"])
def test_a_name_is_found_again(kind: Kind, build: str) -> None:
    name = Qemu(kind, "10.0.13", build, (), {}, "it is not built").name
    place = {"accelerator": "tcg", "emulator": name}
    assert kinds.named_in(f"cohortlab compare\n{name}; PLE off. Once more: {name}.") == (name,)
    assert (kinds.of_place(place), kinds.cost(place)) == ((name,), kinds.COSTS[kind])
    assert (kinds.kind_of(name), kinds.emulated(place)) == (kind, (kind,))
    # Under KVM the processor is real, whatever QEMU has it.
    assert (kinds.cost(place | {"accelerator": "kvm"}), kinds.emulated(place | {"accelerator": "kvm"})) == ("", ())


def test_the_line_while_a_lab_runs_has_the_same_words() -> None:
    for kind in ("cured", "stock"):
        remark = Qemu(kind, "10.0.13", "", (), {}, "it is not built").remark
        assert remark == f"the lab's emulator is QEMU 10.0.13 {kind}: {kinds.COSTS[kind]}; it is not built"


def test_several_after_a_crash_are_several() -> None:
    place = {"accelerator": "tcg", "emulator": "unknown, later QEMU 1.2 cured, later QEMU 1.2 stock"}
    assert kinds.of_place(place) == ("QEMU 1.2 cured", "QEMU 1.2 stock")
    assert kinds.cost(place) == f"{kinds.COSTS['cured']}; {kinds.COSTS['stock']}"
    assert kinds.emulated(place) == ("cured", "stock")
    assert kinds.named_in("no QEMU at all") == kinds.of_place({}) == kinds.emulated({}) == ()
    assert kinds.kind_of("QEMU 9.2.0") is None


def test_a_comparison_ends_when_another_emulator_comes(place: Any, two: Scenario) -> None:
    """As when one is built while the first TLB mode is measured."""
    names = iter(["QEMU 1 cured", "QEMU 1 patched"])
    real = place.open

    def opens(*args: Any, **options: Any) -> Any:
        place.description = {**place.description, "emulator": next(names)}
        return real(*args, **options)

    modes = {mode: two.with_tlb(mode) for mode in ("ipi", "kvm-pv")}
    plan = Plan(policies=parse_policies("eevdf,cohort", ()), rounds=1, modes=modes, warm_up=False)
    results = plan.results("cohortlab compare")
    compare.run(plan, opens, Progress(), results)
    assert results.stopped is not None
    assert "was QEMU 1 cured and is now QEMU 1 patched" in results.stopped
    assert {row.tlb for row in results.rows} == set(results.places) == {"ipi"}

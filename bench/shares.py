# SPDX-License-Identifier: GPL-2.0-only
"""How far the VMs' shares are from their due in the lab, under every policy: a Markdown table.

    build/venv/bin/python bench/shares.py [SECONDS] [SCENARIO...]     10 s, three shapes; with 5 s 13 minutes

All VMs of a scenario compute, on all of their vCPUs. What each has used after so many seconds is compared with its part
by weight of what all have used. The table has the VM that is furthest off: in per cent of its due. A row with an
error instead of a figure is a policy that ended.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

from alone import number

from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.ideal import claim, entitlements, full_demand
from cohortlab.lab.agent import AgentError
from cohortlab.lab.place import LabPlace
from cohortlab.places import PlaceCrashed, PlaceError
from cohortlab.policies import KERNEL, KNOWN
from cohortlab.scenario import Scenario

SHAPES = ("smp-2x2", "smp-2x4", "three-on-two")
LOAD = "cpu-hog"
SLICE = "/sys/fs/cgroup/machine.slice"
# What happened when the policy started is made up for then.
SETTLE_S = 2


def used(place: LabPlace, vms: list[str], seconds: int) -> list[float]:
    """Return the CPU time, in s, that each VM has used in ``seconds`` from now on."""
    look = "; ".join(f"awk '/^usage_usec/{{print $2}}' {SLICE}/{vm}.scope/cpu.stat" for vm in vms)
    told = place.host.check(f"{look}; sleep {seconds}; {look}", timeout_s=seconds + 60)
    found = [int(word) / 1e6 for word in told.split()]
    return [after - before for before, after in zip(found[: len(vms)], found[len(vms) :], strict=True)]


def furthest(scenario: Scenario, found: list[float]) -> float:
    """Return the error of the VM that is furthest from its due: a part of that, 0 if all have it."""
    pcpus = scenario.host.pcpus
    due = entitlements([claim(vm, full_demand(vm, pcpus)) for vm in scenario.vms], pcpus)
    return max((got / sum(found) * sum(due) / part - 1 for got, part in zip(found, due, strict=True)), key=abs)


def shape(name: str, seconds: int) -> dict[str, str]:
    scenario = scenarios.load(scenarios.SHIPPED / f"{name}.toml")
    vms = [vm.name for vm in scenario.vms]
    errors = {}
    with LabPlace(scenario, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        for policy in KNOWN:
            print(f"{name}: {policy}", file=sys.stderr)
            try:
                with place.policy(policy, ("--cgroup-mode", "smp") if policy == KERNEL else ()), ExitStack() as loads:
                    for vm in vms:
                        loads.enter_context(place.background(vm, LOAD))
                    time.sleep(SETTLE_S)
                    errors[policy] = f"{100 * furthest(scenario, used(place, vms, seconds)):+.2f} %"
            except PlaceError as error:
                errors[policy] = str(error).splitlines()[0]
            except (PlaceCrashed, AgentError) as error:
                # The policies that follow have no lab any more.
                errors[policy] = f"the lab ended: {str(error).splitlines()[0]}"
                break
    return errors


def main(seconds: int, shapes: tuple[str, ...]) -> None:
    found = {name: shape(name, seconds) for name in shapes}
    print(f"| policy | {' | '.join(f'`{name}`' for name in shapes)} |\n|{'---|' * (len(shapes) + 1)}")
    for policy in KNOWN:
        label = "EEVDF, `smp`" if policy == KERNEL else f"`{policy}`"
        print(f"| {label} | {' | '.join(found[name].get(policy, '–') for name in shapes)} |")


if __name__ == "__main__":
    seconds, *shapes = sys.argv[1:] or ["10"]
    try:
        main(number(seconds, "SECONDS"), tuple(shapes) or SHAPES)
    except (BadInput, PlaceError) as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, BadInput) else 1)

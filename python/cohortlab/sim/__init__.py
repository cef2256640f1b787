# SPDX-License-Identifier: GPL-2.0-only
"""The simulator: the same scenario files, answers in a second, for hosts that nobody has to own.

from cohortlab.sim import Scenario, run

scenario = Scenario.load("scenarios/smp-2x2.toml")
result = run(scenario, program="hackbench", policy="cohort")
result.measurement("work").value    # seconds, or a rate: the figure of the VM's program
result.vms.to_pandas()              # or result.vcpus, .distributions, .histograms, .timeline: Arrow tables
result.fingerprint                  # the same for the same scenario, policy and seed, everywhere
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from cohortlab.places import Place, ProgressFn
from cohortlab.policies import Policy
from cohortlab.scenario import Scenario

if TYPE_CHECKING:
    from cohortlab.sim.result import Result, Traces

__all__ = ["Scenario", "open_sim", "run"]


def open_sim(
    scenario: Scenario,
    *,
    kernel: str | None,
    progress: ProgressFn,
    hardware: str | None = None,
    policies: Sequence[Policy] = (),
    rounds: int = 0,
) -> AbstractContextManager[Place]:
    """Return the place where ``scenario`` is simulated, for a comparison of ``policies`` in so many ``rounds``."""
    from cohortlab.sim import hardware as hardwares
    from cohortlab.sim.place import SimPlace

    chosen = hardwares.of(scenario, hardware)
    return SimPlace(scenario, kernel=kernel, hardware=chosen, policies=policies, rounds=rounds)


def run(
    scenario: Scenario | Path | str,
    program: str | None = None,
    policy: str = "cohort",
    args: Sequence[str] = (),
    *,
    alone: bool = False,
    seed: int = 1,
    kernel: str | None = None,
    hardware: str | None = None,
    traces: Traces | None = None,
) -> Result:
    """Simulate one run of one program.

    Args:
        program: one of the scenario's programs, or its label where several VMs have programs, which then run beside it;
            the first if not given.
        policy: ``eevdf`` or a preset of ``cohort run --policy``; ``args`` are more of its arguments.
        alone: without the neighbours' load.
        kernel: version of the host's kernel, for ``eevdf``: before 6.6 its scheduler is CFS. Default: the scenario's.
        hardware: the name of a file in ``hardware/``, or a path to one. Default: the scenario's.

    Raises:
        BadInput: something of this is wrong; one line says what and what is allowed.
        PlaceError: the run did not come to its end.
    """
    from cohortlab.errors import BadInput
    from cohortlab.scenario import load
    from cohortlab.sim import hardware as hardwares
    from cohortlab.sim.model import Run, check
    from cohortlab.sim.policy import KERNEL_DEFAULT
    from cohortlab.sim.result import Result, Traces

    chosen = scenario if isinstance(scenario, Scenario) else load(Path(scenario))
    check(chosen)
    labels = chosen.labels
    wanted = program if program is not None else labels[0]
    turn = chosen.turn_of(wanted)
    if turn is None:
        raise BadInput(f'program: "{wanted}" is not allowed: must be one of {", ".join(labels)}')
    running = {vm: name for vm, name in turn if not alone or chosen.label(turn, vm) == wanted}
    if not alone:
        running |= {vm.name: vm.load for vm in chosen.neighbours if vm.load is not None}
    described = Run(
        chosen,
        running,
        policy,
        tuple(args),
        seed,
        kernel or chosen.defaults.kernel or KERNEL_DEFAULT,
        hardwares.of(chosen, hardware),
    )
    return Result.of(described, traces or Traces())

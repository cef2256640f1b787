# SPDX-License-Identifier: GPL-2.0-only
"""The subcommands: options in, one library call, results out."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console

from cohortlab import compare as comparison
from cohortlab import scenario as scenarios
from cohortlab.compare import INTERRUPTED, OpenPlace, Plan
from cohortlab.errors import EXIT_FAILED, EXIT_INTERRUPTED, BadInput
from cohortlab.folders import folder_for
from cohortlab.lab import binaries
from cohortlab.options import Name
from cohortlab.places import PlaceError
from cohortlab.policies import (
    ALL,
    BINARY,
    KERNEL,
    KNOWN,
    Policy,
    kernel_settings,
    parse_policies,
    read_sets,
    sets_file,
    split_binary,
    without_talk,
)
from cohortlab.progress import Bar, Forecast, Lines, Progress
from cohortlab.results import Results, write_parquet
from cohortlab.scenario import TLB_MODES, Scenario
from cohortlab.scenario_check import fetch
from cohortlab.summary import Figure, figures, for_machines
from cohortlab.table import print_results, remarks, stdout

WriteHtml = Callable[[Results, Scenario, Sequence[Figure], Path, Path | None], None]

PLACES = ("lab", "host", "sim")
# A simulated round takes a fraction of a second, but its figures vary little: seeds are their only difference.
ROUNDS = {"lab": 5, "host": 5, "sim": 2}
# What the lab says that it does before it can measure, and seconds of it.
BEFORE_LAB_S = {
    "the lab's image": 90.0,
    "the lab's kernel": 15.0,
    "booting the host": 15.0,
    "booting": 25.0,
}
BUILT_ONCE = frozenset(name for name in BEFORE_LAB_S if name.startswith("the lab's"))
# How many times what saving the rounds so far took must pass before they are saved again.
KEEP_EVERY = 20
DEFAULT_POLICIES = ("eevdf", "cohort")
POLICIES = f"With commas, of {', '.join(KNOWN)}; or {ALL}. NAME@VARIANT is NAME once more, with other --policy-args."


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--on", "where", default="lab", show_default=True, help="Where to run: lab, host (this one) or sim.")
@click.option("--policies", help=f"{POLICIES} Default: the scenario's, or {','.join(DEFAULT_POLICIES)}.")
@click.option(
    "--policy-args",
    multiple=True,
    metavar="LABEL=ARGS",
    help="More arguments of `cohort run`, and on real kernels --binary FILE, another cohort; for eevdf --cgroup-mode, "
    "--base-slice-us; simulated --vm-cgroups no, --boost; for a simulated CFS --latency-us, --min-granularity-us.",
)
@click.option("--rounds", type=click.IntRange(1, 1000), help="How often to measure. Default: 5; simulated, 2.")
@click.option("--programs", help="These programs, with commas, in place of the scenario's; also rt-app's FILE.json.")
@click.option("--tlb", help="TLB modes in turn, with commas: ipi, kvm-pv, hypercall. Default: the scenario's.")
@click.option(
    "--ple", metavar="off|US", help="Catch no spinning vCPU, or after US microseconds. Default: the scenario's."
)
@click.option(
    "--kernel", type=Name(), help="Kernel of the host under test, as the place understands it. Default: the scenario's."
)
@click.option(
    "--guest-kernel", type=Name(), help="Kernel of the guests, likewise. Default: the scenario's, or the host's."
)
@click.option(
    "--hardware",
    type=Name(),
    help="The simulated host: a name in hardware/, or a file. Default: the scenario's, or lab.",
)
@click.option("--crashes", type=click.IntRange(0, 100), default=10, show_default=True, help="Crashes to bear.")
@click.option("--warm-up/--no-warm-up", default=True, show_default=True, help="Run each program once first.")
@click.option("--probe/--no-probe", default=True, help="Count what vCPUs' time goes to, in real kernels. Default: yes.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the results.")
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), help="A picture of `explain`, for the report."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else, on standard output.")
def compare(
    scenario: Path,
    where: str,
    policies: str | None,
    policy_args: tuple[str, ...],
    rounds: int | None,
    programs: str | None,
    tlb: str | None,
    ple: str | None,
    kernel: str | None,
    guest_kernel: str | None,
    hardware: str | None,
    crashes: int,
    warm_up: bool,
    probe: bool,
    out: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Compare policies on a scenario's programs.

    SCENARIO is a file, or the name of one that comes with cohortlab, such as smp-2x2.

    Each program of SCENARIO runs alone, then under each policy with the host loaded, round by round. Results go to a
    folder of their own: every measurement (measurements.parquet) and a report (report.html).

    Exit code: 0 all was measured; 1 something failed, what is complete is reported; 2 wrong input; 130 interrupted.
    """
    # Everything that can be wrong with the input is found before anything boots or is written.
    open_place = place_named(where, probe=probe)
    chosen = with_ple(ple, scenarios.load(scenario))
    if guest_kernel is not None:
        chosen = chosen.with_guest_kernel(_kernel("--guest-kernel", guest_kernel))
    if programs is not None:
        chosen = with_programs(programs, chosen)
    wanted = kernel or chosen.defaults.kernel
    plan = Plan(
        policies=policies_of(chosen, policies, policy_args),
        rounds=rounds or ROUNDS[where],
        modes=tlb_modes(tlb, chosen),
        kernel=_kernel(_kernel_from(chosen, wanted), wanted) if wanted else None,
        # Nothing is cold in a simulated host.
        warm_up=warm_up and where != "sim",
        crashes_max=crashes,
    )
    cohorts: dict[str, dict[str, str]] = {}
    if where == "sim":
        open_place = _simulator(chosen, plan, hardware)
    elif hardware is not None:
        raise BadInput("--hardware: only a simulated host can be chosen: --on sim")
    else:
        cohorts = _check_arguments(plan)
    remark = _on_this_host(plan) if where == "host" else ""
    _check_picture(picture)
    folder = folder_for(out, chosen.name)
    results = plan.results(shlex.join(["cohortlab", *sys.argv[1:]]))
    results.binaries = cohorts
    # Only now: what draws and writes takes half a second to load, which a wrong option should not have to wait for. But
    # before anything is measured, so that it cannot fail when all is done; a simulation is done before that, and runs
    # meanwhile.
    loading = threading.Thread(target=_load, daemon=True)
    loading.start()
    if where != "sim":
        loading.join()
        _load()

    progress = _progress(forecast(where, plan))
    progress.watch()
    if remark:
        progress.note(remark)
    try:
        comparison.run(plan, open_place, progress, results, keeper(results, folder))
    finally:
        progress.stop()
    _hand_out(results, chosen, folder, _write_html(), picture, as_json=as_json)


def _load() -> None:
    """Load what the results are handed out with."""
    import pyarrow.parquet

    # The first array has it look for pandas, and load that where it is.
    pyarrow.array([0])
    _write_html()


def _write_html() -> WriteHtml:
    from cohortlab.report import write_html

    return write_html


def tlb_modes(text: str | None, scenario: Scenario) -> dict[str, Scenario]:
    """Return the scenario in each TLB mode of ``--tlb``; as it stands, under its programs' mode, without."""
    if text is None:
        return {scenario.program_vm.tlb: scenario}
    wanted = _split("--tlb", text, TLB_MODES)
    return {mode: scenario.with_tlb(mode) for mode in TLB_MODES if mode in wanted}


def with_ple(text: str | None, scenario: Scenario) -> Scenario:
    """Return the scenario with the pause filter that ``--ple`` wants; as it stands, without."""
    if text is None:
        return scenario
    if text == "off":
        return scenario.with_ple(None)
    if not re.fullmatch(r"[1-9][0-9]{0,3}|10000", text):
        raise BadInput(f'--ple: "{text}" is not allowed: must be off, or microseconds from 1 to 10000')
    return scenario.with_ple(int(text))


def with_programs(text: str, scenario: Scenario) -> Scenario:
    """Return the scenario with the programs that ``--programs`` names, which need not be its own."""
    names = _names("--programs", text)
    try:
        return scenario.with_programs(names, lambda name: fetch(scenario.path, name, Path.cwd()))
    except BadInput as error:
        raise BadInput(f"--programs: {error}") from None


def policies_of(scenario: Scenario, text: str | None, args: tuple[str, ...]) -> tuple[Policy, ...]:
    """Return the policies to compare: those of the options, else the scenario's."""
    own = scenario.defaults
    if text is not None:
        return parse_policies(text, args)
    listed = ",".join(own.policies or DEFAULT_POLICIES)
    try:
        of_file = parse_policies(listed, own.policy_args)
    except BadInput as error:
        if not (own.policies or own.policy_args):
            raise
        raise BadInput(f"{scenario.path}: defaults: {error}") from None
    # Those of the options take the place of the file's, label by label.
    named = parse_policies(listed, args)
    given = {text.partition("=")[0].strip() for text in args}
    return tuple(ours if ours.label in given else theirs for ours, theirs in zip(named, of_file, strict=True))


def place_named(name: str, *, probe: bool = True) -> OpenPlace:
    """Return what opens the place ``--on`` names; ``probe``: with it, where kernels are real."""
    if name not in PLACES:
        raise BadInput(f'--on: "{name}" does not exist in this version: must be one of {", ".join(PLACES)}')
    if name == "sim":
        if not probe:
            raise BadInput("--no-probe: the simulator counts without one: must be left out with --on sim")
        from cohortlab.sim import open_sim

        return open_sim
    if name == "host":
        from cohortlab.host import open_host

        return functools.partial(open_host, probe=probe)
    from cohortlab.lab import open_lab

    return functools.partial(open_lab, probe=probe)


def _check_arguments(plan: Plan) -> dict[str, dict[str, str]]:
    """Return which `cohort` each label has, for the results.

    Raises:
        BadInput: one refuses its arguments, which a real kernel would tell only after its boot.
    """
    from cohortlab.sim.policy import knobs

    cohorts: dict[str, dict[str, str]] = {}
    for policy in plan.policies:
        if policy.name == KERNEL:
            if why := kernel_settings(policy.args).only_simulated:
                raise BadInput(f"{policy.label}: {why}")
            continue
        binary, args = split_binary(policy.args)
        try:
            if binary is None:
                knobs(policy.name, without_talk(args))
                # Where there is none, the place says what to do.
                with suppress(PlaceError):
                    cohorts[policy.label] = binaries.build(binaries.find("cohort")).about
            else:
                cohorts[policy.label] = _other(binary, policy.name, args).about
            if file := sets_file(args):
                read_sets(file)
        except PlaceError as error:
            raise BadInput(f"{policy.label}: {error}") from None
    return cohorts


def _other(binary: str, name: str, args: Sequence[str]) -> binaries.Build:
    """Return the `cohort` of ``--binary``; raise PlaceError if it is none, or cannot be run so: that it says itself."""
    from cohortlab.lab.policy import words_of

    try:
        build = binaries.build(Path(binary))
        build.check_arguments(words_of(name, args))
    except PlaceError as error:
        raise PlaceError(f"{BINARY}: {error}") from None
    return build


def _on_this_host(plan: Plan) -> str:
    """Return what this host cannot compare, in words; raise BadInput for what it cannot do at all."""
    from cohortlab.host import checks

    if plan.kernel is not None:
        scenario = next(iter(plan.modes.values()))
        where = _kernel_from(scenario, plan.kernel)
        raise BadInput(f"{where}: this host runs the kernel that it runs: must be left out with --on host")
    remark = checks.policies(plan.policies)
    try:
        for scenario in plan.modes.values():
            checks.can_measure(scenario)
    except PlaceError as error:
        raise BadInput(str(error)) from None
    return remark


def _simulator(scenario: Scenario, plan: Plan, hardware: str | None) -> OpenPlace:
    """Return what opens the simulator; raise BadInput for what it does not know."""
    from cohortlab.sim import hardware as hardwares
    from cohortlab.sim import open_sim
    from cohortlab.sim.place import check_policy
    from cohortlab.sim.policy import KERNEL_DEFAULT

    hardwares.of(scenario, hardware)
    for policy in plan.policies:
        try:
            check_policy(scenario, policy.name, policy.args, plan.kernel or KERNEL_DEFAULT)
        except PlaceError as error:
            raise BadInput(f"{policy.label}: {error}") from None
    return functools.partial(open_sim, hardware=hardware, policies=plan.policies, rounds=plan.rounds)


def _split(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the comma-separated names in ``text``, each of them allowed and named once."""
    for name in (names := _names(option, text)):
        if name not in allowed:
            raise BadInput(f'{option}: "{name}" is not allowed: must be of {", ".join(allowed)}')
    return names


def _names(option: str, text: str) -> tuple[str, ...]:
    """Return the comma-separated names in ``text``, each of them named once."""
    names = tuple(name.strip() for name in text.split(","))
    for position, name in enumerate(names):
        if name in names[:position]:
            raise BadInput(f'{option}: "{name}" is named twice')
    return names


def _kernel_from(scenario: Scenario, wanted: str) -> str:
    """Return where it is said which kernel is wanted."""
    return f"{scenario.path}: defaults.kernel" if wanted == scenario.defaults.kernel else "--kernel"


def _kernel(option: str, text: str) -> str:
    """Check a kernel given as a path; any other name is the place's to understand."""
    if os.sep in text:
        try:
            with Path(text).open("rb"):
                pass
        except OSError as error:
            raise BadInput(f"{option}: {text}: cannot be read: {error.strerror}") from None
    return text


def _check_picture(path: Path | None) -> None:
    """Check that the report can show the picture."""
    if path is None:
        return
    if path.suffix not in (".png", ".svg"):
        raise BadInput(f"--picture: {path}: its ending must be .png or .svg")
    try:
        path.open("rb").close()
    except OSError as error:
        raise BadInput(f"--picture: {path}: cannot be read: {error.strerror}") from None


def forecast(where: str, plan: Plan) -> Forecast:
    """Return what is expected of a place, on a machine of 2 cores, until it has been seen."""
    if where == "sim":
        return Forecast(step_s=0.3)
    warm_ups = {f"warming up: {name}": 4.0 for name in plan.tasks.values() if plan.warm_up}
    return Forecast(step_s=6.0, phases=BEFORE_LAB_S | warm_ups, once=BUILT_ONCE)


def _progress(expected: Forecast) -> Progress:
    console = Console(stderr=True)
    return Bar(console, expected) if console.is_terminal else Lines(sys.stderr, expected)


def keeper(results: Results, folder: Path, clock: Callable[[], float] = time.monotonic) -> Callable[[], None]:
    """Return what saves the rounds so far, so that not even a power cut takes them.

    Each time the file is written as a whole: of very many simulated rounds, not after each.
    """
    ended_s, took_s = -math.inf, 0.0

    def keep() -> None:
        nonlocal ended_s, took_s
        began_s = clock()
        if began_s - ended_s < KEEP_EVERY * took_s:
            return
        _keep(results, folder)
        ended_s = clock()
        took_s = ended_s - began_s

    return keep


def _keep(results: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(results, folder / "measurements.parquet")


def _hand_out(
    results: Results, scenario: Scenario, folder: Path, write_html: WriteHtml, picture: Path | None, *, as_json: bool
) -> None:
    """Report what was measured and end with the exit code that says whether all of it was."""
    found = figures(results, scenario)
    try:
        _tell(results, found, as_json=as_json)
    finally:
        # A full disk does not cost what can be read, nor does a reader that has gone cost the files.
        if found:
            _keep(results, folder)
            write_html(results, scenario, found, folder / "report.html", picture)
    if found:
        print(f"results: {folder / 'report.html'}, {folder / 'measurements.parquet'}", file=sys.stderr)
    if results.stopped:
        rounds = "" if found else ": no round was complete"
        print(f"cohortlab: {results.stopped}{rounds}", file=sys.stderr)
        raise click.exceptions.Exit(EXIT_INTERRUPTED if results.stopped == INTERRUPTED else EXIT_FAILED)
    if results.failed:
        raise click.exceptions.Exit(EXIT_FAILED)


def _tell(results: Results, found: Sequence[Figure], *, as_json: bool) -> None:
    """Print the figures, and what must be said beside them."""
    if as_json:
        print(json.dumps(for_machines(results, found), indent=2))
        for line in remarks(results, found) if found else ():
            print(line, file=sys.stderr)
    elif found:
        print_results(stdout(), results, found)

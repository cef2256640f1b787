# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab explain`` and ``cohortlab fidelity``: simulated runs seen closely; the simulator beside the lab."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cohortlab import scenario as scenarios
from cohortlab import sim
from cohortlab.errors import BadInput
from cohortlab.folders import writable
from cohortlab.models import RT_APP
from cohortlab.options import FiniteRange, Name
from cohortlab.places import PlaceError
from cohortlab.results import is_device, write_atomically
from cohortlab.scenario_check import fetch
from cohortlab.table import stdout

if TYPE_CHECKING:
    from cohortlab.sim.result import Result

FORMATS = (".png", ".svg", ".pdf")


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--program", help="A program, the scenario's or another, or rt-app's FILE.json. Default: the first.")
@click.option("--policy", default="cohort", show_default=True, help="eevdf, or a preset of `cohort run --policy`.")
@click.option("--policy-args", default="", metavar="ARGS", help="More arguments of `cohort run`.")
@click.option(
    "--beside",
    multiple=True,
    metavar='"POLICY [ARGS]"',
    help="Run it under this policy, too, and draw that below on the same time axis. May be repeated.",
)
@click.option("--alone", is_flag=True, help="Without the neighbours' load.")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), default=1, show_default=True, help="Which run.")
@click.option("--kernel", type=Name(), help="Version of the simulated host's kernel and KVM. Default: the scenario's.")
@click.option("--hardware", type=Name(), help="A name in hardware/, or a file. Default: the scenario's, or lab.")
@click.option("--from-ms", type=FiniteRange(0), help="Where the picture begins. Default: where most is spun.")
@click.option("--ms", type=FiniteRange(0.001, 1e6), default=60.0, show_default=True, help="How much it shows.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("explain.png"), show_default=True, help="Picture.")
@click.option("--perfetto", type=click.Path(path_type=Path), help="Write a trace for ui.perfetto.dev, too.")
@click.option("--ftrace", type=click.Path(path_type=Path), help="Write sched_switch events as text, too.")
@click.option("--tables", type=click.Path(path_type=Path, file_okay=False), help="Write Parquet tables there, too.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON, nothing else, on standard output.")
def explain(
    scenario: Path,
    program: str | None,
    policy: str,
    policy_args: str,
    beside: tuple[str, ...],
    alone: bool,
    seed: int,
    kernel: str | None,
    hardware: str | None,
    from_ms: float | None,
    ms: float,
    out: Path,
    perfetto: Path | None,
    ftrace: Path | None,
    tables: Path | None,
    as_json: bool,
) -> None:
    """Simulate one run of one program, and draw who ran, waited and spun when.

    SCENARIO is a file, or the name of one that comes with cohortlab, such as smp-2x2.
    """
    from cohortlab.sim.result import TIMELINE_ROWS_MAX, TRACE_BYTES_MAX, RunEnded, Traces

    if out.suffix not in FORMATS:
        raise BadInput(f"--out: {out}: its ending must be one of {', '.join(FORMATS)}")
    outputs: dict[Path, str] = {}
    for option, path in (("--out", out), ("--perfetto", perfetto), ("--ftrace", ftrace), ("--tables", tables)):
        if path is None:
            continue
        if beside and option != "--out":
            raise BadInput(f"{option}: is not allowed with --beside: a trace is of one run")
        _check_output(option, path, is_folder=option == "--tables")
        if path.resolve() in outputs and not is_device(path):
            raise BadInput(f"{option}: {path}: is that of {outputs[path.resolve()]} as well: must be another")
        outputs[path.resolve()] = option
    policies = [(policy, _words("--policy-args", policy_args)), *(_named("--beside", text) for text in beside)]
    traces = Traces(
        perfetto_bytes_max=TRACE_BYTES_MAX if perfetto else 0,
        ftrace_bytes_max=TRACE_BYTES_MAX if ftrace else 0,
        timeline_rows_max=TIMELINE_ROWS_MAX,
    )
    chosen = scenarios.load(scenario)
    # An rt-app file by its bare name is that of the present folder, also where the scenario has one that is called so.
    own = [label for label in chosen.labels if label not in chosen.workloads or not label.endswith(RT_APP)]
    if program is not None and program not in own:
        try:
            chosen = chosen.with_programs((program,), lambda name: fetch(chosen.path, name, Path.cwd()))
        except BadInput as error:
            raise BadInput(f"--program: {error}") from None
        program = None
    vm = None if program is None else chosen.vm_of(program)

    def simulate(under: tuple[str, list[str]]) -> Result:
        return sim.run(chosen, program, *under, alone=alone, seed=seed, kernel=kernel, hardware=hardware, traces=traces)

    try:
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(simulate, policies))
    except RunEnded:
        raise
    except PlaceError as error:
        raise BadInput(str(error)) from None

    # Only now: it takes as long to load as a run takes, and wrong input should not have to wait for it.
    from cohortlab.sim import picture, words

    length_ns = int(ms * picture.NS_PER_MS)
    end_ns = picture.shared_ns(results)
    # Compared first: of what is too great for a float there is no integer.
    if from_ms is not None and from_ms * picture.NS_PER_MS >= end_ns:
        raise BadInput(f"--from-ms: {from_ms:g} is not allowed: the run ends at {end_ns / 1e6:.3f} ms")
    start_ns = None if from_ms is None else int(from_ms * picture.NS_PER_MS)
    window = (
        picture.busiest(results, length_ns)
        if start_ns is None
        else picture.Window(start_ns, min(start_ns + length_ns, end_ns))
    )
    picture.draw(results, window, [words.title(result, vm) for result in results], out)
    if perfetto:
        write_atomically(perfetto, results[0].perfetto)
    if ftrace:
        write_atomically(ftrace, results[0].ftrace.encode())
    if tables:
        with _of_option("--tables"):
            results[0].write_tables(tables)
    if as_json:
        print(json.dumps([result.about for result in results] if beside else results[0].about, indent=2))
    else:
        for result in results:
            words.tell(stdout(), result, vm)
    written = [str(path) for path in (out, perfetto, ftrace, tables) if path is not None]
    cut = "; the traces end before the run does, at their greatest size" if any(r.is_truncated for r in results) else ""
    click.echo(f"written: {', '.join(written)}{cut}", err=True)


def _named(option: str, text: str) -> tuple[str, list[str]]:
    """Return the policy that ``text`` begins with, and the arguments behind it."""
    words = _words(option, text)
    if not words:
        raise BadInput(f'{option}: "{text}" is not allowed: must be a policy, and its arguments if it has any')
    return words[0], words[1:]


def _check_output(option: str, path: Path, *, is_folder: bool) -> None:
    """Raise BadInput for what cannot be written when the run is over."""
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{option}: {path}: its folder does not exist")
    if path.is_dir() and not is_folder:
        raise BadInput(f"{option}: {path}: is a folder: must be a file")
    if is_device(path) and not is_folder:
        # Nothing is made in its folder.
        return
    with _of_option(option):
        writable(path if is_folder else path.parent)


@contextlib.contextmanager
def _of_option(option: str) -> Iterator[None]:
    """Have what is wrong with a folder, which elsewhere is that of ``--out``, name ``option``."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{option}{str(error).removeprefix('--out')}") from None


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadInput(f'{option}: "{text}" is not allowed: {str(error).lower()}') from None


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--lab", "lab_file", type=click.Path(path_type=Path), required=True, help="measurements.parquet of a lab's run."
)
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Simulated rounds.")
@click.option("--kernel", type=Name(), help="Version of the simulated host's kernel. Default: the lab's.")
@click.option("--hardware", type=Name(), help="A name in hardware/, or a file. Default: the scenario's, or lab.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else, on standard output.")
def fidelity(
    scenario: Path, lab_file: Path, rounds: int, kernel: str | None, hardware: str | None, as_json: bool
) -> None:
    """Simulate what the lab has measured, and show both side by side with the relative error."""
    from cohortlab import fidelity as comparing

    fits = comparing.compare(
        scenarios.load(scenario),
        lab_file,
        rounds=rounds,
        kernel=kernel,
        hardware=hardware,
        say=lambda text: click.echo(text, err=True),
    )
    if as_json:
        print(json.dumps([fit.for_machines() for fit in fits], indent=2))
        return
    comparing.show(stdout(), fits)

# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab import`` and ``cohortlab advise``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.folders import filled_at_once, writable
from cohortlab.options import FiniteRange, Name
from cohortlab.results import write_atomically

NS_PER_S = 1_000_000_000


@click.command("import")
@click.argument("recording", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder. Default: the file's name.")
@click.option("--from-s", type=FiniteRange(0), default=0.0, show_default=True, help="The scenario begins there.")
@click.option("--for-s", type=FiniteRange(0.01, 3600), default=10.0, show_default=True, help="How much of it.")
@click.option(
    "--hardware", type=Name(), default="server", show_default=True, help="What things cost there: a name, or a file."
)
@click.option("--kernel", type=Name(), help="Version of the host's kernel. Default: as recorded.")
@click.option("--json", "as_json", is_flag=True, help="Print what was recorded as JSON, nothing else.")
def import_recording(
    recording: tuple[Path, ...],
    out: Path | None,
    from_s: float,
    for_s: float,
    hardware: str,
    kernel: str | None,
    as_json: bool,
) -> None:
    """Turn a recording into a Perfetto trace, tables, and a scenario to simulate.

    RECORDING is a file of `cohort record`, of `trace-cmd record`, or the text of `trace-cmd report`. Several files of
    `trace-cmd record` are the host's, which comes first, and its guests'.

    The folder then has trace.perfetto for ui.perfetto.dev, tables/*.parquet, and recorded.toml with its workloads.
    """
    from cohortlab.recorded import recording as recordings
    from cohortlab.recorded import scenario as makes
    from cohortlab.sim import hardware as hardwares
    from cohortlab.sim.result import TIMELINE_ROWS_MAX, TRACE_BYTES_MAX, Traces

    hardwares.load(hardware)
    version = None if kernel is None else makes.version_of_option(kernel)
    first, *guests = recording
    read = recordings.load(first, *guests)
    # Compared first: of what is too great for a float there is no integer.
    if from_s * NS_PER_S >= read.length_ns:
        raise BadInput(f"--from-s: {from_s:g} is not allowed: the recording has {read.length_ns / NS_PER_S:.3f} s")
    from_ns = int(from_s * NS_PER_S)
    part = makes.Part(from_ns, min(from_ns + int(for_s * NS_PER_S), read.length_ns))
    folder = out or first.with_suffix("")
    if folder == first:
        raise BadInput(f"--out: {folder}: is a file: must be a folder")
    writable(folder)
    figures = read.figures(Traces(perfetto_bytes_max=TRACE_BYTES_MAX, timeline_rows_max=TIMELINE_ROWS_MAX))
    vms = [machine for machine in figures.about["figures"]["vms"] if machine["vcpus"]]
    import pyarrow.parquet as pq

    with filled_at_once(folder) as made:
        written = makes.write(read, made, part, hardware, version)
        write_atomically(made / "trace.perfetto", figures.perfetto)
        figures.write_tables(made / "tables")
        pq.write_table(read.events, made / "tables" / "events.parquet", compression="zstd")
    written = dataclasses.replace(written, path=folder / written.path.name)
    if as_json:
        print(json.dumps(_for_machines(read.about, figures.about, written), indent=2))
        return
    _tell(read.about, vms, part.length_s, written, figures.about)
    click.echo(f"written: {folder}", err=True)


def _for_machines(about: dict[str, Any], figures: dict[str, Any], written: Any) -> dict[str, Any]:
    return {
        "recording": about,
        "figures": figures["figures"],
        "unknown": figures["unknown"],
        "truncated": figures["truncated"],
        "scenario": str(written.path),
        "measured": list(written.measured),
        "remarks": list(written.remarks),
    }


def _notes_at_end(end: dict[str, Any]) -> list[str]:
    """Return what the probe said of its counters when the recording ended; what it said at the begin is there again."""
    counted = end.get("counted")
    notes = counted.get("notes") if isinstance(counted, dict) else None
    # Of this part, the file's format says no more than that it is JSON.
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


def _tell(
    about: dict[str, Any], vms: list[dict[str, Any]], part_s: float, written: Any, figures: dict[str, Any]
) -> None:
    end, kernel = about["end"], about["header"]["kernel"]
    lost = f"{end['dropped']} lost, {end['overwritten']} replaced by newer ones"
    length_s = about["length_ns"] / NS_PER_S
    click.echo(f"{length_s:.1f} s, {about['events']} events, {lost}; Linux {kernel}, {end['scheduler']}")
    for vm in vms:
        shares = {name: vm[f"{name}_ns"] / about["length_ns"] for name in ("run", "ready", "costop")}
        counted = {"ple": "pause-loop exits", "ipis_sent": "interrupts to siblings"}
        told = ", ".join(f"{vm[name]} {what}" for name, what in counted.items() if name in vm)
        click.echo(
            f"  {vm['name']}: {len(vm['vcpus'])} vCPUs, ran {shares['run']:.2f} pCPUs, ready {shares['ready']:.2f},"
            f" of it co-stop {shares['costop']:.2f}" + (f"; {told}" if told else "")
        )
    remarks = list(dict.fromkeys([*about["header"]["notes"], *_notes_at_end(end), *written.remarks]))
    if figures["unknown"]:
        remarks.append(f"{figures['unknown']} events are of vCPUs that nobody knows")
    if figures["truncated"]:
        remarks.append("trace.perfetto or tables/timeline.parquet ends before the recording does, at its greatest size")
    for remark in remarks:
        click.echo(f"  {remark}")
    click.echo(f"scenario: {part_s:.1f} s of it; measured is what {', '.join(written.measured)} did: {written.path}")


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--policies", default="all", show_default=True, help="To choose from, with commas.")
@click.option("--rounds", type=click.IntRange(2, 100), default=5, show_default=True, help="Simulated runs of each.")
@click.option("--kernel", type=Name(), help="Version of the host's kernel. Default: the scenario's.")
@click.option("--hardware", type=Name(), help="A name in hardware/, or a file. Default: the scenario's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else, on standard output.")
def advise(scenario: Path, policies: str, rounds: int, kernel: str | None, hardware: str | None, as_json: bool) -> None:
    """Say in three sentences which policy would do best for a host, and how sure that is.

    SCENARIO is what `cohortlab import` has written, or any other: each VM's work is simulated under each policy.
    """
    from cohortlab.recorded import advice

    found = advice.advise(scenarios.load(scenario), policies, rounds, kernel, hardware)
    if as_json:
        print(json.dumps(found.for_machines(), indent=2))
    else:
        for sentence in found.sentences():
            click.echo(sentence)
    for policy, why in found.failed.items():
        click.echo(f"failed: {policy}: {why}", err=True)

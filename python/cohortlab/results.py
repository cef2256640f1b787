# SPDX-License-Identifier: GPL-2.0-only
"""The raw measurements of a comparison, and their Parquet file: one row per measurement."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Loading it takes as long as simulating a program: only who reads or writes a file does.
    import pyarrow as pa

ALONE = "alone"  # the policy column of a measurement without load on the host

MAPS = ("cpu_s", "stats", "guest", "host")
METADATA_KEY = b"cohortlab"


def _schema() -> pa.Schema:
    import pyarrow as pa

    doubles = pa.map_(pa.string(), pa.float64())
    return pa.schema(
        [
            ("scenario", pa.string()),
            ("tlb", pa.string()),
            ("round", pa.int32()),
            ("attempt", pa.int32()),
            ("order", pa.int32()),
            ("policy", pa.string()),
            ("scheduler", pa.string()),
            ("policy_args", pa.list_(pa.string())),
            ("program", pa.string()),
            ("vm", pa.string()),
            ("value", pa.float64()),
            ("unit", pa.string()),
            ("rate", pa.bool_()),
            ("wall_s", pa.float64()),
            ("window_s", pa.float64()),
            ("cpu_s", doubles),
            ("stats", doubles),
            ("guest", doubles),
            ("host", doubles),
            ("ended", pa.timestamp("us", tz="UTC")),
            ("kernel", pa.string()),
            ("why", pa.map_(pa.string(), doubles)),
        ]
    )


def as_seconds(value: float, *, rate: bool) -> float:
    """Return a figure as seconds: of the run, or of one unit of work where the figure is a rate.

    A median is taken of the figures themselves, and then as seconds: of an even number of rates, it is another than the
    median of their seconds.
    """
    return 1 / value if rate else value


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        round: from 1; rounds that the host under test did not survive are not kept.
        attempt: from 1; 2 means that the round's first attempt was void.
        order: position of the measurement within its round, from 0.
        policy: the label it is reported under ("alone" for the host without load).
        scheduler: the policy that ran, without its arguments.
        rate: True when more is better.
    """

    scenario: str
    tlb: str
    round: int
    attempt: int
    order: int
    policy: str
    scheduler: str
    policy_args: tuple[str, ...]
    program: str
    vm: str
    value: float
    unit: str
    rate: bool
    wall_s: float
    window_s: float
    cpu_s: Mapping[str, float]
    stats: Mapping[str, float]
    guest: Mapping[str, float]
    host: Mapping[str, float]
    ended: datetime
    kernel: str
    # Each VM's counters (cohortlab.why); none in files of older versions, and where nothing counts them.
    why: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The figure as seconds (see ``as_seconds``)."""
        return as_seconds(self.value, rate=self.rate)

    def used(self, vm: str) -> float:
        """Return the pCPUs that ``vm`` used."""
        return self.cpu_s.get(vm, 0.0) / self.window_s

    def busy(self, pcpus: int) -> float:
        """Return the part of the pCPUs' capacity, 0..1, that all VMs together used."""
        return sum(self.cpu_s.values()) / (self.window_s * pcpus)

    def left(self, pcpus: int) -> float:
        """Return the part of the capacity that the host's own work left to the VMs: used by them, or idle.

        All of it where the place does not tell how long its pCPUs were idle.
        """
        if "idle_s" not in self.host:
            return 1.0
        return min(1.0, self.busy(pcpus) + self.host["idle_s"] / (self.window_s * pcpus))


@dataclass(frozen=True)
class Crash:
    """A round that the host under test did not survive."""

    tlb: str
    round: int
    attempt: int
    doing: str
    reason: str


@dataclass
class Results:
    """A comparison's measurements and what is worth knowing about how they came about.

    Attributes:
        places: the description of each place, by TLB mode.
        failed: why a program under a policy was taken out of the comparison, by (TLB mode, label, program).
        files: see ``Scenario.own_files``; None in files of older versions.
        stopped: why the comparison ended before all its rounds were complete; None when it did not.
        binaries: on real kernels, which `cohort` each label has: file, version, sha256. Older files do not say.
    """

    scenario: str
    scenario_text: str
    pcpus: int
    command: str
    version: str
    policies: tuple[str, ...]
    programs: tuple[str, ...]
    tlb_modes: tuple[str, ...]
    rounds: int
    rows: list[Row] = field(default_factory=list)
    places: dict[str, dict[str, str]] = field(default_factory=dict)
    crashes: list[Crash] = field(default_factory=list)
    failed: dict[tuple[str, str, str], str] = field(default_factory=dict)
    files: dict[str, tuple[str, str]] | None = None
    stopped: str | None = None
    binaries: dict[str, dict[str, str]] = field(default_factory=dict)


def write_parquet(results: Results, path: Path) -> None:
    """Write every measurement to ``path``, all or nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{f.name: getattr(row, f.name) for f in fields(Row)} for row in results.rows]
    for row in rows:
        row.update({name: list(row[name].items()) for name in MAPS})
        row["why"] = [(vm, list(counters.items())) for vm, counters in row["why"].items()]
    table = pa.Table.from_pylist(rows, schema=_schema().with_metadata({METADATA_KEY: json.dumps(_metadata(results))}))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomically(path, sink.getvalue().to_pybytes())


def read_parquet(path: Path) -> Results:
    """Return what ``write_parquet`` wrote."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[METADATA_KEY])
    files = about.get("files")
    rows = []
    for row in table.to_pylist():
        row.update({name: dict(row[name]) for name in MAPS})
        row["why"] = {vm: dict(counters) for vm, counters in row.get("why") or ()}
        rows.append(Row(**{**row, "policy_args": tuple(row["policy_args"])}))
    return Results(
        scenario=about["scenario"],
        scenario_text=about["scenario_text"],
        pcpus=about["pcpus"],
        command=about["command"],
        version=about["version"],
        policies=tuple(about["policies"]),
        programs=tuple(about["programs"]),
        tlb_modes=tuple(about["tlb_modes"]),
        rounds=about["rounds"],
        rows=rows,
        places=about["places"],
        crashes=[Crash(**crash) for crash in about["crashes"]],
        failed={(tlb, label, program): why for tlb, label, program, why in about["failed"]},
        files=None if files is None else {name: (file, sha256) for name, (file, sha256) in files.items()},
        stopped=about["stopped"],
        binaries=about.get("binaries", {}),
    )


def _metadata(results: Results) -> dict[str, Any]:
    about = {f.name: getattr(results, f.name) for f in fields(Results) if f.name != "rows"}
    about["crashes"] = [asdict(crash) for crash in results.crashes]
    about["failed"] = [(*key, why) for key, why in results.failed.items()]
    return about


def is_device(path: Path) -> bool:
    """Return whether that is a device or a pipe, to which one writes."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` so that a reader sees the old file or the new one, never half of it.

    A device or a pipe, as /dev/stdout, is written to; a link stays one.
    """
    # Before the link is followed: that of a pipe leads to no name.
    if is_device(path):
        path.write_bytes(content)
        return
    path = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            # Before the name: after a power cut the file would be there, and empty.
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp's 0600 would keep a result of `sudo` from its reader
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            # Of a file that is open, the system names none: a full disk, say.
            error.filename = str(path)
        raise

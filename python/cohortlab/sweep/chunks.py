# SPDX-License-Identifier: GPL-2.0-only
"""Points that are simulated and kept together. Each chunk has a file; when all are there, they become one.

Which points make a chunk depends on the plan alone, and a chunk's rows on its points alone. So the file at the end is
the same for any number of workers, in whatever order they worked, and however often they were stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cohortlab.errors import BadInput, one_line
from cohortlab.places import PlaceError
from cohortlab.results import MAPS, write_atomically
from cohortlab.sim.result import MEASURED, Result
from cohortlab.sweep.axes import Axis
from cohortlab.sweep.plan import Plan, Point

METADATA_KEY = b"cohortlab sweep"
# Fields of a row that are the sweep's own; an axis of such a name would hide one.
_DOUBLES = pa.map_(pa.string(), pa.float64())
_COLUMNS = [
    ("point", pa.int64()),
    ("name", pa.string()),
    ("vm", pa.string()),
    ("ran", pa.string()),
    ("scheduler", pa.string()),
    ("scheduler_args", pa.list_(pa.string())),
    ("value", pa.float64()),
    ("unit", pa.string()),
    ("rate", pa.bool_()),
    ("wall_s", pa.float64()),
    ("window_s", pa.float64()),
    *((name, _DOUBLES) for name in MAPS),
    ("fingerprint", pa.string()),
    ("error", pa.string()),
]
_ROW_GROUP = 1 << 16
# What a Parquet file ends with.
_MAGIC = b"PAR1"
# Rows of other sweeps' points, without what is the sweep's own, by the points' names.
Known = Mapping[str, Sequence[Mapping[str, Any]]]
NOTHING: Known = {}
# Told how many more files are read; and what is told, for so many.
Tell = Callable[[int], None]
Meter = Callable[[int], contextlib.AbstractContextManager[Tell]]


def unseen(total: int) -> contextlib.AbstractContextManager[Tell]:
    """Show nothing."""
    return contextlib.nullcontext(lambda done: None)


def schema(plan: Plan) -> pa.Schema:
    """Return the columns: a point's number and name, the axes as ``axis FIELD``, and what came of it."""
    axes = [(f"axis {axis.field}", _kind(axis)) for axis in plan.axes]
    about = {"axes": [[axis.field, len(axis.values)] for axis in plan.axes], "sweep": plan.key, "points": plan.points}
    about |= {"scenario": plan.scenario, "simulator": plan.simulator}
    text = json.dumps(about, sort_keys=True, default=str)
    return pa.schema([*_COLUMNS[:2], *axes, *_COLUMNS[2:]]).with_metadata({METADATA_KEY: text})


def _kind(axis: Axis) -> pa.DataType:
    if axis.kinds == {bool}:
        return pa.bool_()
    if axis.is_of_integers:
        return pa.int64()
    return pa.float64() if axis.kinds <= {int, float} else pa.string()


def _cell(value: Any, kind: pa.DataType) -> Any:
    if kind == pa.float64():
        return float(value)
    return value if kind != pa.string() or isinstance(value, str) else json.dumps(value, default=str)


def count(plan: Plan, size: int) -> int:
    return -(-plan.points // size)


def simulate(plan: Plan, chunk: int, size: int, known: Known = NOTHING, ended: Event | None = None) -> bytes:
    """Simulate a chunk, but for what is known of it, and return its file.

    Raises:
        CancelledError: ``ended`` was set before the chunk's last run.
    """
    rows = []
    for number in numbers(plan, chunk, size):
        if ended is not None and ended.is_set():
            raise CancelledError
        rows += simulate_point(plan, number, known)
    table = pa.Table.from_pylist(rows, schema=schema(plan))
    return _bytes([table])


def numbers(plan: Plan, chunk: int, size: int) -> range:
    """Return which points a chunk has."""
    return range(chunk * size, min((chunk + 1) * size, plan.points))


def simulate_point(plan: Plan, number: int, known: Known = NOTHING) -> list[dict[str, Any]]:
    """Return a point's rows: one for each of its programs, or one that says why there is none."""
    try:
        point = plan.point(number)
    except (BadInput, PlaceError) as error:
        return [_row(plan, number, "", error=one_line(str(error)))]
    if point.name in known:
        # Who wrote them may have given the policy another name, or its arguments in other words.
        own = {"scheduler": point.run.policy, "scheduler_args": list(point.run.args)}
        return [_row(plan, number, point.name, **{**row, **own}) for row in known[point.name]]
    try:
        result = Result.of_dict(point.run, point.described, MEASURED)
        return [_measured(plan, point, vm.name, result) for vm in _measured_vms(point)]
    except (BadInput, PlaceError) as error:
        return [_row(plan, number, point.name, error=one_line(str(error)))]


def _measured_vms(point: Point) -> list[Any]:
    return [vm for vm in point.run.scenario.program_vms if vm.name in point.run.running]


def _measured(plan: Plan, point: Point, vm: str, result: Result) -> dict[str, Any]:
    run = point.run
    workload = run.scenario.workloads[run.running[vm]]
    measured = result.measurement(vm)
    return _row(
        plan,
        point.number,
        point.name,
        vm=vm,
        ran=run.running[vm],
        scheduler=run.policy,
        scheduler_args=list(run.args),
        value=measured.value,
        unit=workload.unit,
        rate=workload.is_rate,
        wall_s=measured.wall_s,
        window_s=measured.window_s,
        fingerprint=result.fingerprint,
        **{name: sorted(getattr(measured, name).items()) for name in MAPS},
    )


def _row(plan: Plan, number: int, name: str, **more: Any) -> dict[str, Any]:
    values = zip(plan.axes, plan.values(number), strict=True)
    axes = {f"axis {axis.field}": _cell(value, _kind(axis)) for axis, value in values}
    return {"point": number, "name": name} | axes | more


def known_of(plan: Plan, chunk: int, size: int, known: Known) -> Known:
    """Return what is known of a chunk's points: what is sent with it."""
    found: Known = {}
    for number in numbers(plan, chunk, size):
        # What is wrong with a point, its worker says.
        with contextlib.suppress(BadInput, PlaceError):
            name = plan.point(number).name
            found = {**found, name: known[name]} if name in known else found
    return found


def read_known(files: Sequence[Path]) -> Known:
    """Return the rows of other sweeps' files, by what they came from.

    Raises:
        BadInput: a file is none of a sweep.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        try:
            table = pq.read_table(file)
            rows = table.select([name for name, _ in _COLUMNS]).to_pylist()
        except OSError as error:
            raise BadInput(f"--known: {file}: cannot be read: {error.strerror or one_line(str(error))}") from None
        except (pa.ArrowInvalid, KeyError):
            raise BadInput(f"--known: {file}: is not allowed: must be a sweep.parquet of this version") from None
        of_file: dict[str, list[dict[str, Any]]] = {}
        points: dict[str, int] = {}
        for row in rows:
            name, failed = row["name"], row.pop("error")
            # What failed may have failed for a reason that is gone. Several points may be the same run: one is enough.
            if failed is None and points.setdefault(name, row["point"]) == row["point"]:
                of_file.setdefault(name, []).append({key: row[key] for key in row if key not in ("point", "name")})
        found |= of_file
    return found


class Store:
    """The folder of a sweep: a file for each chunk, until ``sweep.parquet`` has them all."""

    def __init__(self, folder: Path, plan: Plan, size: int) -> None:
        self.folder = folder
        self.plan = plan
        self.size = size
        self.file = folder / "sweep.parquet"
        self._parts = folder / "parts"
        self._about = folder / "sweep.json"

    def open(self) -> None:
        """Make the folder, or go on with what is there; raise BadInput if that is another sweep's."""
        about = {"sweep": self.plan.key, "chunk": self.size, "points": self.plan.points}
        ours = f"{json.dumps(about)}\n".encode()
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
            if not self._about.exists():
                write_atomically(self._about, ours)
            found = self._about.read_bytes()
        except OSError as error:
            raise BadInput(f"--out: {self.folder}: cannot be written to: {error.strerror}") from None
        if found != ours:
            wrong = "has another sweep, or this one with another --chunk or of another version"
            raise BadInput(f"--out: {self.folder}: {wrong}: must be removed, or --out another folder")

    def missing(self, meter: Meter = unseen) -> list[int]:
        """Return the chunks that are still to be simulated.

        Raises:
            BadInput: the folder has a file that is not this sweep's, as a copy of several shards' may have.
        """
        for path in self._parts.glob("*.parquet"):
            # A file manager calls the second of two with one name "00000001 (1).parquet".
            if not path.stem.isdecimal() or path != self._part(int(path.stem)):
                raise BadInput(f"--out: {path}: is no part of a sweep: must be removed")
        done = {int(path.stem) for path in self._parts.glob("*.parquet") if _is_whole(path)}
        with meter(len(done)) as tell:
            for chunk in sorted(done):
                self._check(self._part(chunk), numbers(self.plan, chunk, self.size))
                tell(1)
        # Only now: another shard may be making the file, and removes the parts when it has made it.
        if self.file.exists():
            self._check(self.file, range(self.plan.points))
            return []
        return [chunk for chunk in range(count(self.plan, self.size)) if chunk not in done]

    def _check(self, file: Path, points: range) -> None:
        """Raise BadInput if a file has not these points of this sweep, in their order."""
        try:
            found = pq.read_schema(file)
            told = None if found.metadata is None else found.metadata.get(METADATA_KEY)
            is_ours = told == schema(self.plan).metadata[METADATA_KEY]
            is_ours = is_ours and list(dict.fromkeys(pq.read_table(file, columns=["point"])["point"].to_pylist())) == [
                *points
            ]
        except FileNotFoundError:
            # Another shard has made the file of all, and removed the parts.
            return
        except (OSError, pa.ArrowInvalid):
            is_ours = False
        if not is_ours:
            wrong = "is of another sweep, or of this one with another --chunk or another version"
            raise BadInput(f"--out: {file}: {wrong}: must be removed, or --out another folder")

    def points_of(self, chunk: int) -> int:
        return min(self.size, self.plan.points - chunk * self.size)

    def failures(self) -> int:
        """Return how many rows of the file say why they have no figures."""
        return _failures(self.file)

    def failures_of(self, shard: int, shards: int) -> int:
        """Return the same of a shard's chunks, whoever simulated them, while there is no file of all."""
        failed = 0
        for path in self._parts.glob("*.parquet"):
            # Removed meanwhile: another shard has made the file, and tells.
            with contextlib.suppress(FileNotFoundError):
                if int(path.stem) % shards == shard - 1:
                    failed += _failures(path)
        return failed

    def keep(self, chunk: int, part: bytes) -> None:
        write_atomically(self._part(chunk), part)

    def finish(self, meter: Meter = unseen) -> Path:
        """Make one file of all chunks' and return it."""
        if not self.file.exists():
            chunks = range(count(self.plan, self.size))
            tables: list[pa.Table] = []
            try:
                with meter(len(chunks)) as tell:
                    for chunk in chunks:
                        tables.append(pq.read_table(self._part(chunk), schema=schema(self.plan)))
                        tell(1)
            except FileNotFoundError:
                # Another shard that ended at the same time has made the file, and removed the parts.
                if not self.file.exists():
                    raise
            else:
                write_atomically(self.file, _bytes(tables))
        for path in self._parts.glob("*.parquet"):
            path.unlink(missing_ok=True)
        return self.file

    def _part(self, chunk: int) -> Path:
        return self._parts / f"{chunk:08}.parquet"


def _failures(file: Path) -> int:
    errors = pq.read_table(file, columns=["error"])["error"]
    return int(len(errors) - errors.null_count)


def _is_whole(part: Path) -> bool:
    """Whether a chunk's file has its end: a copy of the folder may have been interrupted."""
    try:
        with part.open("rb") as file:
            file.seek(-len(_MAGIC), os.SEEK_END)
            return file.read() == _MAGIC
    except OSError:
        # Too short; or another shard has made the file of all and removed the parts.
        return False


def _bytes(tables: Sequence[pa.Table]) -> bytes:
    sink = pa.BufferOutputStream()
    # One chunk of memory for each column: how the rows came together must not show.
    whole = pa.concat_tables(tables).combine_chunks()
    pq.write_table(whole, sink, compression="zstd", row_group_size=_ROW_GROUP)
    return bytes(sink.getvalue().to_pybytes())

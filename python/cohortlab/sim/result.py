# SPDX-License-Identifier: GPL-2.0-only
"""What came of a simulated run: figures, tables, traces."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohortlab.errors import BadInput, one_line
from cohortlab.native import native
from cohortlab.places import Measurement, PlaceError
from cohortlab.sim import identity
from cohortlab.sim.model import NS_PER_S, Run
from cohortlab.workloads import WorkloadError

if TYPE_CHECKING:
    # Loading it takes as long as a simulation: only who wants tables does.
    import pyarrow as pa

# The guest's interrupts that are TLB flushes (vector::TLB of the simulator).
_TLB_VECTOR = "1"
# In the order of the simulator's numbers.
TIMELINE_KINDS = ("run", "wait", "spin", "shootdown", "ple", "yield")
SPINS = ("lock", "ipi-answer", "shootdown", "barrier", "user")
# How often the host's threads moved: to another pCPU; of these to another last-level cache; of these to another socket.
_MIGRATIONS = ("migrations", "migrations_llc", "migrations_node")
# The distributions of a VM; docs/metrics.md defines each.
DISTRIBUTIONS = (
    "wait_after_wakeup",
    "wait_after_preemption",
    "wait_in_kernel",
    "wait_as_holder",
    "skew",
    "shootdown",
    "ipi",
    "lock_wait",
    "lock_hold",
)
_SUMMARY = ("count", "mean_ns", "min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")
# About what a browser can still show.
TRACE_BYTES_MAX = 512 << 20
TIMELINE_ROWS_MAX = 4_000_000


class RunEnded(PlaceError):
    """A run did not come to its end: the host's scheduler was put out, say."""


class RunEndless(RunEnded, WorkloadError):
    """A run would not end by itself: a program does nothing for ever, or more happens than the simulator bears."""


@dataclass(frozen=True)
class Traces:
    """Which traces to record, and how large each may grow; 0: none.

    Attributes:
        figures: without, there is no fingerprint, no table but the timeline, and no program is measured.
        histograms: without, distributions have quantiles alone: their buckets are most of what is kept of a run.
    """

    perfetto_bytes_max: int = 0
    ftrace_bytes_max: int = 0
    timeline_rows_max: int = 0
    recording: bool = False
    figures: bool = True
    histograms: bool = True


# What a program's measurement needs.
MEASURED = Traces(histograms=False)


# Of a result that is pickled.
_KEPT = ("run", "traces", "name", "simulator", "_done")


class Result:
    """One simulated run. It can be pickled.

    Attributes:
        name: of what it came from: see cohortlab.sim.identity.
        simulator: which one this was.
    """

    def __init__(self, run: Run, done: Any, traces: Traces, name: str) -> None:
        self.run = run
        self.traces = traces
        self.name = name
        self.simulator = identity.simulator()
        self._done = done

    def __getstate__(self) -> dict[str, Any]:
        """Return what cannot be made again: tables can."""
        return {name: value for name, value in vars(self).items() if name in _KEPT}

    @classmethod
    def of(cls, run: Run, traces: Traces = Traces()) -> Result:
        """Simulate.

        Raises:
            BadInput: the simulator refuses the run's description.
            RunEndless: a program would not end.
            RunEnded: the run did not come to its end for another reason.
        """
        return cls.of_dict(run, run.as_dict(), traces)

    @classmethod
    def of_dict(cls, run: Run, described: dict[str, Any], traces: Traces = Traces()) -> Result:
        """Simulate ``described``: ``run.as_dict()``, changed by who knows the simulator's own fields."""
        module = native()
        text = json.dumps(described, sort_keys=True)
        try:
            done = module.run(
                text,
                figures=traces.figures,
                buckets=traces.histograms,
                perfetto_bytes_max=traces.perfetto_bytes_max,
                ftrace_bytes_max=traces.ftrace_bytes_max,
                timeline_rows_max=traces.timeline_rows_max,
                recording=traces.recording,
            )
        except module.ConfigError as error:
            raise BadInput(f"{run.scenario.path} on {run.hardware.path}: {one_line(str(error))}") from None
        except module.LimitError as error:
            # A load that does nothing for ever is no program's fault.
            programs = {vm.name for vm in run.scenario.program_vms}
            kind = RunEndless if error.vm is None or error.vm in programs else RunEnded
            raise kind(f"{run.scenario.path}: {one_line(str(error))}") from None
        except module.RunError as error:
            raise RunEnded(f"{run.scenario.path}: {one_line(str(error))}") from None
        return cls(run, done, traces, identity.name(run, text))

    @cached_property
    def about(self) -> dict[str, Any]:
        """Everything that is known but the traces; of a simulated run also its ``name`` and ``simulator``."""
        about: dict[str, Any] = json.loads(self._done.json)
        return self._origin() | about

    def _origin(self) -> dict[str, Any]:
        return {"name": self.name, "simulator": self.simulator}

    @property
    def figures(self) -> dict[str, Any]:
        """``host`` and ``vms``, docs/metrics.md; raise ValueError if they were not wanted."""
        if not self.traces.figures:
            raise ValueError("the run was simulated without figures: must have Traces(figures=True)")
        figures: dict[str, Any] = self.about["figures"]
        return figures

    @property
    def fingerprint(self) -> str:
        """One number for all that happened: 16 hexadecimal digits. Raise ValueError if figures were not wanted."""
        if not self.traces.figures:
            raise ValueError("the run was simulated without a fingerprint: must have Traces(figures=True)")
        return str(self.about["fingerprint"])

    @property
    def end_ns(self) -> int:
        return int(self.about["outcome"]["end_ns"])

    @property
    def perfetto(self) -> bytes:
        """The trace for ui.perfetto.dev; empty if none was recorded."""
        return bytes(self._done.perfetto)

    @property
    def ftrace(self) -> str:
        """``sched_switch`` and its like as text; empty if none was recorded."""
        return str(self._done.ftrace)

    @property
    def recording(self) -> bytes:
        """What ``cohort record`` would have written; empty if it was not asked for."""
        return bytes(self._done.recording)

    @property
    def is_truncated(self) -> bool:
        """Whether a trace has reached its size before the run's end."""
        return bool(self.about["truncated"])

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The host's threads by number: ``name``, the ``vm`` to which it belongs and its ``vcpu``, numbers or None."""
        return list(self.about["tasks"])

    def task_of(self, vm: str, vcpu: int) -> int:
        """Return the number of a vCPU's thread."""
        index = [machine.name for machine in self.run.scenario.vms].index(vm)
        return next(i for i, task in enumerate(self.tasks) if (task["vm"], task["vcpu"]) == (index, vcpu))

    def measurement(self, vm: str) -> Measurement:
        """Return the figure of the program in ``vm``, and what was used and counted from its start to its end.

        Raises:
            WorkloadError: it did not end.
        """
        index = [machine.name for machine in self.run.scenario.vms].index(vm)
        workload = self.run.scenario.workloads[self.run.running[vm]]
        if not self.traces.figures:
            raise ValueError("the run was simulated without figures: must have Traces(figures=True)")
        program = next((program for program in self.about["programs"] if program["vm"] == index), None)
        late = WorkloadError(f"{workload.name} in {vm} did not end in {workload.timeout_s} s")
        if program is None or program["end_ns"] is None:
            raise late
        wall_s = (program["end_ns"] - program["start_ns"]) / NS_PER_S
        if wall_s > workload.timeout_s:
            # The run went on for another program.
            raise late
        value = program["units"] * program["unit_value"] / wall_s if workload.is_rate and wall_s else wall_s
        if value <= 0:
            raise WorkloadError(f"{workload.name} in {vm}: the figure {value} is not a number above 0")
        window = program["window"] or self._whole(index)
        names = [machine.name for machine in self.run.scenario.vms]
        return Measurement(
            value=value,
            wall_s=wall_s,
            window_s=window["length_ns"] / NS_PER_S,
            cpu_s={name: ns / NS_PER_S for name, ns in zip(names, window["cpu_ns"], strict=True)},
            stats={name: float(value) for name, value in program["stats"].items()},
            guest={
                "tlb_shootdowns": float(window["ipis_taken"].get(_TLB_VECTOR, 0)),
                "steal_s": window["ready_ns"] / NS_PER_S,
            },
            host={"idle_s": window["idle_ns"] / NS_PER_S} | {name: float(window[name]) for name in _MIGRATIONS},
            why={
                names[int(number)]: {name: float(value) for name, value in grown.items()}
                | {"window_ns": float(window["length_ns"])}
                for number, grown in window["vms"].items()
            },
        )

    def _whole(self, index: int) -> dict[str, Any]:
        """Return the whole run as a window: of a program that has none, because very many had theirs before it."""
        host, vms = self.figures["host"], self.figures["vms"]
        of_host = {name: host[name] for name in ("idle_ns", *_MIGRATIONS)}
        of_vm = {name: vms[index][name] for name in ("ready_ns", "ipis_taken")}
        cpu_ns = [vm["cpu_ns"] for vm in vms]
        return of_host | of_vm | {"length_ns": self.end_ns, "cpu_ns": cpu_ns, "vms": {}}

    @cached_property
    def vms(self) -> pa.Table:
        """One row for each VM: its counts and times; docs/metrics.md."""
        import pyarrow as pa

        rows = []
        for vm in self.figures["vms"]:
            plain = {key: value for key, value in vm.items() if not isinstance(value, dict | list)}
            rows.append(plain)
        table = pa.Table.from_pylist(rows)
        for at, field in enumerate(table.schema):
            # Not defined for any VM, as lag where one is pinned: of the same type as in other runs, to go with these.
            if pa.types.is_null(field.type):
                table = table.set_column(at, field.name, pa.nulls(len(table), pa.int64()))
        return table

    @cached_property
    def vcpus(self) -> pa.Table:
        """One row for each vCPU."""
        import pyarrow as pa

        vms = self.figures["vms"]
        return pa.Table.from_pylist(
            [{"vm": vm["name"], "vcpu": number} | vcpu for vm in vms for number, vcpu in enumerate(vm["vcpus"])]
        )

    @cached_property
    def distributions(self) -> pa.Table:
        """One row for each distribution of each VM: count, mean, extremes, quantiles."""
        import pyarrow as pa

        return pa.Table.from_pylist(
            [
                {"vm": vm, "what": what} | {key: summary[key] for key in _SUMMARY}
                for vm, what, summary in self._summaries()
            ]
        )

    @cached_property
    def histograms(self) -> pa.Table:
        """One row for each bucket that holds something: its upper end, and how many it holds.

        Raises:
            ValueError: they were not wanted.
        """
        import pyarrow as pa

        if not self.traces.histograms:
            raise ValueError("the run was simulated without histograms: must have Traces(histograms=True)")
        return pa.Table.from_pylist(
            [
                {"vm": vm, "what": what, "up_to_ns": up_to, "count": count}
                for vm, what, summary in self._summaries()
                for up_to, count in summary["buckets"]
            ]
        )

    def write_tables(self, folder: Path) -> None:
        """Write every table as a Parquet file of its name into ``folder``, all or none; it is made if not there."""
        import pyarrow.parquet as pq

        from cohortlab.folders import filled_at_once

        with filled_at_once(folder) as part:
            for name in ("vms", "vcpus", "distributions", "histograms", "timeline"):
                pq.write_table(getattr(self, name), part / f"{name}.parquet", compression="zstd")

    def _summaries(self) -> list[tuple[str, str, dict[str, Any]]]:
        found = []
        for vm in self.figures["vms"]:
            found += [(vm["name"], what, vm[what]) for what in DISTRIBUTIONS if what in vm]
            found += [(vm["name"], f"spin: {why}", summary) for why, summary in vm.get("spins", {}).items()]
            found += [(vm["name"], f"progress: {kind}", summary) for kind, summary in vm.get("progress", {}).items()]
        return found

    @cached_property
    def timeline(self) -> pa.Table:
        """One row for each interval or instant; ``kind`` is the place in TIMELINE_KINDS, and says what ``lane`` is."""
        import pyarrow as pa

        columns = self._done.timeline()
        types = {
            "kind": pa.uint8(),
            "lane": pa.uint32(),
            "who": pa.uint32(),
            "start_ns": pa.uint64(),
            "end_ns": pa.uint64(),
        }
        if not columns:
            return pa.table({name: pa.array([], kind) for name, kind in types.items()})
        rows = len(columns["kind"])
        arrays = {
            name: pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(columns[name])]) for name, kind in types.items()
        }
        return pa.table(arrays)

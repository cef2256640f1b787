# SPDX-License-Identifier: GPL-2.0-only
"""A recording, read from the file of ``cohort record`` or of ``trace-cmd``."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohortlab.errors import BadInput, one_line
from cohortlab.native import native
from cohortlab.places import PlaceError
from cohortlab.sim.result import Result, Traces

if TYPE_CHECKING:
    import pyarrow as pa

_NO_TRACES = Traces()
# How a file begins, by which it is known.
_MAGIC = b"cohort\r\n"
_TRACE_DAT = b"\x17\x08\x44tracing"
# An event's VM or vCPU that nobody knows.
_NOBODY = 0xFFFF_FFFF
KINDS = (
    "run",
    "preempted",
    "woken",
    "halted",
    "blocked",
    "moved",
    "gone",
    "joined",
    "ple",
    "yield",
    "ipi",
    "hypercall",
    "tlb-hypercall",
    "tlb-deferred",
)


# Figures of VMs that only a simulated run has: what a guest or its VMM does by itself.
_UNSEEN = frozenset(
    {
        *("cpu_ns", "exits", "exit_ns", "guest_switches", "kicks", "progress"),
        *("spin_ns", "spins", "shootdown", "shootdown_targets", "tlb_flushes"),
        *("lock_wait", "lock_hold", "preemptions_holder", "wait_as_holder"),
    }
)
# Figures by the counters that a kernel may lack, where they have other names.
_MISSING_TOO = {
    "wait_kernel_ns": ("wait_in_kernel",),
    "ple": ("ple_chain_lengths", "ple_streaks", "ple_streak_max", "ple_streak_p50", "ple_streak_exits_p50"),
    "ipis_sent": ("ipi",),
}


class Figures(Result):
    """The figures and traces of a recording, by the same names as those of a simulated run.

    What nobody saw is absent: it is not 0.
    """

    def __init__(self, done: Any, missing: Sequence[str]) -> None:
        self.traces = _NO_TRACES
        self._done = done
        self._unknown = _UNSEEN | set(missing) | {too for name in missing for too in _MISSING_TOO.get(name, ())}

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_unknown": self._unknown}

    @cached_property
    def about(self) -> dict[str, Any]:
        """All that is no table, as a simulated run has it."""
        about: dict[str, Any] = super().about
        for vm in about["figures"]["vms"]:
            for name in self._unknown & vm.keys():
                del vm[name]
        return about

    def _origin(self) -> dict[str, Any]:
        return {}


class Recording:
    """What happened to a host's VMs."""

    def __init__(self, path: Path, native_recording: Any) -> None:
        self.path = path
        self._native = native_recording

    @cached_property
    def about(self) -> dict[str, Any]:
        """``header`` and ``end`` as they are in the file, ``counts`` of events by kind, ``names`` of VMs."""
        about: dict[str, Any] = json.loads(self._native.json)
        return about

    @property
    def length_ns(self) -> int:
        return int(self.about["length_ns"])

    @property
    def lost(self) -> int:
        """Events that are not in it: there was no room for them, or newer ones have replaced them."""
        return int(self.about["end"]["dropped"]) + int(self.about["end"]["overwritten"])

    def figures(self, traces: Traces = _NO_TRACES) -> Figures:
        """Return figures, and the traces that are asked for."""
        try:
            done = self._native.import_all(traces.perfetto_bytes_max, traces.timeline_rows_max)
            return Figures(done, self.about["header"]["missing"])
        except native().ConfigError as error:
            raise BadInput(f"{self.path}: {one_line(str(error))}") from None

    def replays(self, from_ns: int, to_ns: int, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return for each VM what it did in that part of the recording, as programs with these names."""
        replays: list[dict[str, Any]] = json.loads(self._native.replays(from_ns, to_ns, list(names)))
        return replays

    @cached_property
    def events(self) -> pa.Table:
        """One row for each event: when, of which vCPU (null if nobody knows), what; cpu, a and b by its kind."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = self._native.events()
        kinds = {"time_ns": pa.uint64(), "cpu": pa.uint16(), "slot": pa.uint16(), "vm": pa.uint32()}
        kinds |= {"vcpu": pa.uint32(), "kind": pa.uint8(), "a": pa.uint8(), "b": pa.uint16()}
        rows = len(columns["kind"])
        arrays = {
            name: pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(columns[name])]) for name, kind in kinds.items()
        }
        for name in ("vm", "vcpu"):
            arrays[name] = pc.if_else(pc.equal(arrays[name], _NOBODY), None, arrays[name])
        names = pa.array(["?", *KINDS])
        arrays["kind"] = pa.DictionaryArray.from_arrays(arrays["kind"].cast(pa.int32()), names)
        return pa.table(arrays)


def load(path: Path, *guests: Path) -> Recording:
    """Return the recording in ``path``: of ``cohort record``, of ``trace-cmd record``, or text of ``trace-cmd report``.

    Args:
        guests: files that the same ``trace-cmd record`` has written of guests; ``path`` is then the host's.

    Raises:
        BadInput: it is none, or damaged.
    """
    if guests:
        _check_merge((path, *guests))
    found = None if guests else _content(path)
    content = _report(path, *guests) if found is None else found
    try:
        module = native()
    except PlaceError as error:
        raise BadInput(str(error)) from None
    try:
        if content.startswith(_MAGIC):
            return Recording(path, module.recording(content))
        if b"\0" in content:
            kinds = "`cohort record`, of `trace-cmd record`, or `trace-cmd report`"
            raise BadInput(f"{path}: is no recording: must be a file of {kinds}")
        # A task's name may be any bytes, or a longer one cut in the middle of a character.
        return Recording(path, module.trace_cmd_report(content.decode("utf-8", errors="replace")))
    except module.ConfigError as error:
        raise BadInput(f"{path}: {one_line(str(error))}") from None


def _content(path: Path) -> bytes | None:
    """Return what is in a file; None for one of ``trace-cmd record``, which ``trace-cmd`` alone reads."""
    try:
        with path.open("rb") as file:
            # Opened once, and only looked ahead into: a pipe has no second time.
            return None if file.peek(len(_TRACE_DAT)).startswith(_TRACE_DAT) else file.read()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None


def _check_merge(files: Sequence[Path]) -> None:
    """``trace-cmd report`` tells the lines of several files apart by the files' names, without folders."""
    for at, file in enumerate(files):
        if _content(file) is not None:
            raise BadInput(f"{file}: is no file of `trace-cmd record`: several files must be a host's and its guests'")
        if twins := [other for other in files[:at] if other.name == file.name]:
            raise BadInput(f"{file}: has the same name as {twins[0]}: must have another, by which lines are told apart")


def _report(path: Path, *guests: Path) -> bytes:
    """Return what ``trace-cmd report`` makes of its own files, whose format is its own business."""
    program = shutil.which("trace-cmd")
    if program is None:
        raise BadInput(
            f"{path}: is a file of trace-cmd, which is not installed here: install it (Debian: apt-get install"
            " trace-cmd), or import the text of `trace-cmd report`"
        )
    inputs = [text for file in (path, *guests) for text in ("-i", str(file))]
    done = subprocess.run([program, "report", "-t", *inputs], capture_output=True, check=False)
    if done.returncode:
        told = one_line(done.stderr.decode(errors="replace")) or f"exit code {done.returncode}"
        raise BadInput(f"{path}: trace-cmd cannot read it: {told}")
    # A task's name may be any bytes.
    return done.stdout.decode(errors="replace").encode()

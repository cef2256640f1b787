# SPDX-License-Identifier: GPL-2.0-only
"""Dask's workers simulate: those of a scheduler's address, or jobs of SLURM that this asks for.

A chunk whose worker dies is given to another one. Workers need this version of cohortlab, and no files of this machine.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cohortlab.errors import BadInput, one_line
from cohortlab.places import PlaceError
from cohortlab.sim.identity import simulator
from cohortlab.sweep import chunks
from cohortlab.sweep.chunks import NOTHING, Known
from cohortlab.sweep.local import Done
from cohortlab.sweep.plan import Plan

if TYPE_CHECKING:
    from distributed import Client

_SLURM = re.compile(r"slurm:([1-9]\d{0,4})")
# Chunks that Dask knows of at a time, per thread of its workers.
_AHEAD = 4
_CONNECT_S = 20
# How often a chunk may lose its worker before it is taken for the reason.
_DEATHS = 5


def check(address: str) -> None:
    """Raise BadInput if ``--dask`` says nothing that this understands, or Dask is not installed."""
    if not _SLURM.fullmatch(address) and not re.fullmatch(r"tcp://[^/\s]+:\d+", address):
        allowed = "tcp://HOST:PORT of a scheduler, or slurm:JOBS"
        raise BadInput(f'--dask: "{address}" is not allowed: must be {allowed}')
    try:
        import distributed  # noqa: F401

        if _SLURM.fullmatch(address):
            import dask_jobqueue  # noqa: F401
    except ImportError as error:
        package = str(error.name).replace("_", "-")
        raise BadInput(f"--dask: {error.name} is not installed: run `pip install {package}`") from None


def run(plan: Plan, wanted: Sequence[int], size: int, address: str, known: Known = NOTHING) -> Iterator[Done]:
    """Simulate what is not known of chunks and return each with what came of it, as they end."""
    if not wanted:
        return
    with _client(address) as client:
        if not client.nthreads():
            print(f"waiting for a worker at {address}", file=sys.stderr)
        client.wait_for_workers(1)
        yield from _on(client, plan, wanted, size, known)


@contextlib.contextmanager
def _client(address: str) -> Iterator[Client]:
    import dask
    from distributed import Client

    with contextlib.ExitStack() as stack:
        dask.config.set({"distributed.scheduler.allowed-failures": _DEATHS})
        target: Any = address
        if found := _SLURM.fullmatch(address):
            from dask_jobqueue import SLURMCluster

            # What a job is (queue, cores, memory, time) is in Dask's own configuration, jobqueue.yaml.
            try:
                target = stack.enter_context(SLURMCluster())
            except (ValueError, TypeError) as error:
                raise BadInput(f"--dask: {one_line(str(error))}: see jobqueue.slurm in Dask's configuration") from None
            target.scale(jobs=int(found[1]))
        try:
            client = stack.enter_context(Client(target, timeout=_CONNECT_S, set_as_default=False))
        except (OSError, TimeoutError):
            raise BadInput(f"--dask: {address}: no scheduler answers there") from None
        yield client


def _on(client: Client, plan: Plan, wanted: Sequence[int], size: int, known: Known) -> Iterator[Done]:
    from distributed import as_completed

    todo = iter(wanted)
    numbers: dict[Any, int] = {}

    def more() -> list[Any]:
        threads = sum(client.nthreads().values())
        made = []
        while len(numbers) < _AHEAD * max(threads, 1) and (chunk := next(todo, None)) is not None:
            key = f"sweep-{plan.key}-{size}-{chunk}"
            sent = chunks.known_of(plan, chunk, size, known) if known else NOTHING
            future = client.submit(simulate, plan, chunk, size, sent, key=key, pure=False)
            numbers[future] = chunk
            made.append(future)
        return made

    ended = as_completed(more(), loop=client.loop)
    for future in ended:
        chunk = numbers.pop(future)
        try:
            # Where the worker has died with it, this waits until another one has done it again.
            part = future.result()
        except PlaceError:
            raise
        except Exception as error:  # whatever a worker, or Dask itself, has raised
            what = one_line(f"{type(error).__name__}: {error}")
            raise PlaceError(f"chunk {chunk} failed on Dask's workers: {what}") from None
        yield chunk, part
        future.release()
        ended.update(more())


def simulate(sent: Plan, chunk: int, size: int, known: Known) -> bytes:
    """Simulate a chunk on a worker."""
    here = simulator()
    if here != sent.simulator:
        raise PlaceError(f"the worker has another simulator, {here}, not {sent.simulator}")
    return chunks.simulate(sent, chunk, size, known)

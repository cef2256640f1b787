# SPDX-License-Identifier: GPL-2.0-only
"""Threads of this process simulate: a simulation does not hold Python's lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event

from cohortlab.sweep import chunks
from cohortlab.sweep.chunks import NOTHING, Known
from cohortlab.sweep.plan import Plan

Done = tuple[int, bytes]


def run(plan: Plan, wanted: Sequence[int], size: int, workers: int, known: Known = NOTHING) -> Iterator[Done]:
    """Simulate what is not known of chunks and return each with what came of it, as they end."""
    todo = iter(wanted)
    running: dict[Future[bytes], int] = {}
    ended = Event()
    with ThreadPoolExecutor(workers, thread_name_prefix="sweep") as pool:
        try:
            while True:
                # Enough that nobody waits, and no more in memory than that.
                while len(running) < 2 * workers and (chunk := next(todo, None)) is not None:
                    running[pool.submit(chunks.simulate, plan, chunk, size, known, ended)] = chunk
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        finally:
            # Who is at a chunk that nobody wants any more ends it after the present run.
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)

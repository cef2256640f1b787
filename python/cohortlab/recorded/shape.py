# SPDX-License-Identifier: GPL-2.0-only
"""A host's shape as a hardware file says it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sockets, and what each has; ``cores_per_cache`` is 0 where a socket's cores share one."""

    sockets: int
    cores_per_socket: int
    threads_per_core: int
    cores_per_cache: int = 0

    def into(self, text: str) -> str:
        """Return a hardware file's text, which says nothing of a shape, with this one."""
        fields = f"sockets = {self.sockets}\ncores_per_socket = {self.cores_per_socket}\n"
        fields += f"threads_per_core = {self.threads_per_core}\n"
        if self.cores_per_cache:
            fields += f"cores_per_cache = {self.cores_per_cache}\n"
        known = re.search(r"^\s*\[\s*machine\s*\][^\n]*\n", text, re.MULTILINE)
        if known:
            return text[: known.end()] + fields + text[known.end() :]
        costs = re.search(r"^\[machine\.costs\]", text, re.MULTILINE)
        at = costs.start() if costs else len(text)
        return f"{text[:at]}\n[machine]\n{fields}\n{text[at:]}"


def in_order(pcpus: list[dict[str, int]]) -> dict[int, int]:
    """Return each pCPU's number in a machine of that shape, by its number on the host.

    There a core's threads follow one another, a cache's cores, and a node's caches. On many hosts they do not: pCPUs 0
    and 8 may be one core.
    """
    places = sorted(pcpus, key=lambda pcpu: (pcpu["node"], pcpu["llc"], pcpu["core"], pcpu["cpu"]))
    return {pcpu["cpu"]: index for index, pcpu in enumerate(places)}


def shape(pcpus: list[dict[str, int]]) -> Shape:
    """Return the shape if every node, cache and core is like the others; else one socket of cores."""
    nodes: dict[int, dict[int, int]] = {}
    caches: dict[int, set[int]] = {}
    for pcpu in pcpus:
        cores = nodes.setdefault(pcpu["node"], {})
        cores[pcpu["core"]] = cores.get(pcpu["core"], 0) + 1
        caches.setdefault(pcpu["llc"], set()).add(pcpu["core"])
    cores_each = {len(cores) for cores in nodes.values()}
    threads_each = {count for cores in nodes.values() for count in cores.values()}
    cached = {len(cores) for cores in caches.values()}
    if len(cores_each) > 1 or len(threads_each) > 1:
        return Shape(1, len(pcpus), 1)
    (cores_count,), (threads,) = cores_each, threads_each
    per_cache = cached.pop() if len(cached) == 1 else 0
    is_part = 0 < per_cache < cores_count and cores_count % per_cache == 0
    return Shape(len(nodes), cores_count, threads, per_cache if is_part else 0)

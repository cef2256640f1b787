# SPDX-License-Identifier: GPL-2.0-only
"""From a recording to a scenario: the host's shape, its VMs, and what each of them did as a workload."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.recorded.recording import Recording
from cohortlab.results import write_atomically
from cohortlab.scenario import GUEST_BASE_MB, GUEST_PER_VCPU_MB
from cohortlab.sim import hardware as hardwares

NS_PER_S = 1_000_000_000
# What the simulator takes of one program (sim/src/workload/compile.rs).
STEPS_MAX = 1 << 20
LOAD = "-load"
NAME_MAX = 24
# Fewer than that for each vCPU are a guest's own housekeeping.
MEETS_MIN = 10
ONLY_SIMULATED = "echo 'what was recorded can only be simulated: --on sim' >&2; exit 1"


@dataclass(frozen=True)
class Part:
    """The part of a recording that becomes a scenario."""

    from_ns: int
    to_ns: int

    @property
    def length_s(self) -> float:
        return (self.to_ns - self.from_ns) / NS_PER_S


@dataclass(frozen=True)
class Written:
    """The scenario's file, the VM whose work is measured, and what the scenario does not say, a sentence each."""

    path: Path
    vm: str
    remarks: tuple[str, ...]


def write(
    recording: Recording, figures: list[dict[str, Any]], folder: Path, part: Part, measured: str | None, hardware: str
) -> Written:
    """Write ``recorded.toml`` with its workloads and hardware into ``folder``.

    Args:
        figures: of each VM, as ``Figures.about["figures"]["vms"]`` has them.
        measured: the VM whose work is measured, by its name there; None: the one that lost most time.
        hardware: what things cost on that host: a name in ``hardware/``, or a file.
    """
    about = recording.about
    machines = [vm for vm, count in zip(about["end"]["vms"], about["vcpus"], strict=True) if count]
    if not machines:
        raise BadInput(f"{recording.path}: has no VM: record while VMs run")
    names = _names([name for name, count in zip(about["names"], about["vcpus"], strict=True) if count])
    replays = recording.replays(part.from_ns, part.to_ns)
    seen = {replay["vm"]: replay["seen"] for replay in replays}
    chosen = _measured(names, measured, figures, about, seen)
    pcpus = {pcpu["cpu"]: index for index, pcpu in enumerate(about["header"]["pcpus"])}
    remarks: list[str] = []
    text = [
        "# What `cohort record` saw, to be simulated: cohortlab compare recorded.toml --on sim --policies all",
        'name = "recorded"',
        f'description = "{part.length_s:.1f} s of a host with Linux {_plain(about["header"]["kernel"])}, under'
        f' {_plain(about["header"]["scheduler"])}."',
        "",
        "[host]",
        f"pcpus = {len(pcpus)}",
        "",
        "[guest]",
        f"ple = {'true' if _has_ple(about) else 'false'}",
    ]
    models = folder / "workloads" / "models"
    models.mkdir(parents=True, exist_ok=True)
    for index, (name, vm) in enumerate(zip(names, machines, strict=True)):
        replay = next(replay for replay in replays if replay["vm"] == about["names"][_index(about, index)])
        vcpus = about["vcpus"][_index(about, index)]
        role = f'programs = ["{name}"]' if name == chosen else f'load = "{name}{LOAD}"'
        text += ["", "[[vm]]", f'name = "{name}"', f"vcpus = {vcpus}"]
        text += [f"memory_mb = {GUEST_BASE_MB + GUEST_PER_VCPU_MB * vcpus}", f"weight = {_weight(vm['weight'])}"]
        affinity = _affinity(name, vm, pcpus, remarks)
        if affinity:
            text.append(f"affinity = {affinity}")
        text += [f'tlb = "{_tlb(about["counts_by_vm"][_index(about, index)])}"', role]
        if vm.get("quota_us"):
            remarks.append(f"the quota of {name} is not simulated")
        for kind, suffix in (("program", ""), ("load", LOAD)):
            _workload(folder, name + suffix, replay[kind], part, f"{name}, as recorded", background=bool(suffix))
    _hardware(folder, about, hardware)
    path = folder / "recorded.toml"
    write_atomically(path, ("\n".join(text) + "\n").encode())
    scenarios.load(path)
    return Written(path, chosen, tuple(remarks))


def _index(about: dict[str, Any], index: int) -> int:
    """Return the place in the recording of the ``index``-th VM that has vCPUs."""
    return [at for at, count in enumerate(about["vcpus"]) if count][index]


def _plain(text: str) -> str:
    return re.sub(r'[^\w.+-]', "?", text)[:60]


def _names(names: list[str]) -> list[str]:
    """Return names as a scenario allows them, each once."""
    made: list[str] = []
    for name in names:
        plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:NAME_MAX] or "vm"
        number = 2
        unique = plain
        while unique in made or unique.endswith(LOAD):
            unique = f"{plain.removesuffix(LOAD) or 'vm'}-{number}"
            number += 1
        made.append(unique)
    return made


def _measured(
    names: list[str], wanted: str | None, figures: list[dict[str, Any]], about: dict[str, Any], seen: dict[str, Any]
) -> str:
    recorded = [name for name, count in zip(about["names"], about["vcpus"], strict=True) if count]
    if wanted is None:
        # A VM whose vCPUs never wait for each other loses nothing that a policy could give back.
        def lost(index: int) -> tuple[bool, int, int]:
            vm, did = figures[index], seen[recorded[index]]
            meets = did["calls"] + did["wakes_by_siblings"] + did["spins_kernel"] + did["spins_user"]
            return meets > MEETS_MIN * len(vm["vcpus"]), vm["costop_ns"] + vm["ready_ns"], vm["run_ns"]

        return names[max(range(len(names)), key=lost)]
    if wanted in names:
        return wanted
    if wanted in recorded:
        return names[recorded.index(wanted)]
    raise BadInput(f'--vm: "{wanted}" was not recorded: must be one of {", ".join(recorded)}')


def _has_ple(about: dict[str, Any]) -> bool:
    """A host whose processor catches spins, as far as one can see; who never spun may be on either."""
    return "ple" not in about["header"]["missing"]


def _weight(weight: float) -> int:
    return min(max(round(weight), 1), 10_000)


def _affinity(name: str, vm: dict[str, Any], pcpus: dict[int, int], remarks: list[str]) -> list[int]:
    """Return the pCPUs that the VM may use; empty: all."""
    sets = [tuple(vcpu["cpus"]) for vcpu in vm["vcpus"]]
    if not any(sets):
        return []
    if len(set(sets)) > 1:
        remarks.append(f"the vCPUs of {name} may use different pCPUs; simulated, each may use all of these")
    if not all(sets):
        return []
    return sorted({pcpus[cpu] for cpus in sets for cpu in cpus if cpu in pcpus})


def _tlb(counts: dict[str, int]) -> str:
    """Return how the VM flushes its siblings' TLBs, as far as it was seen."""
    if counts.get("tlb-hypercall"):
        return "hypercall"
    return "kvm-pv" if counts.get("tlb-deferred") else "ipi"


def _workload(folder: Path, name: str, model: dict[str, Any], part: Part, title: str, *, background: bool) -> None:
    """Write a workload and its model, the latter in JSON: it is long, and nobody edits it."""
    steps = sum(len(thread["steps"]) for thread in model["thread"])
    if steps > STEPS_MAX:
        raise BadInput(f"--for-s: {part.length_s:g} is too much: {name} has {steps} steps; the simulator takes {STEPS_MAX}")
    timeout_s = min(max(int(part.length_s * 30) + 30, 60), 3600)
    lines = ["# Written by `cohortlab import`.", f'name = "{name}"', f'title = "{title}"', f'command = "{ONLY_SIMULATED}"']
    lines.append(f"timeout_s = {timeout_s}")
    if background:
        lines.append("background = true")
    else:
        lines += ["", "[metric]", 'kind = "elapsed"']
    write_atomically(folder / "workloads" / f"{name}.toml", ("\n".join(lines) + "\n").encode())
    text = json.dumps(model | {"name": name, "title": title}, separators=(",", ":"))
    write_atomically(folder / "workloads" / "models" / f"{name}.json", text.encode())


def _hardware(folder: Path, about: dict[str, Any], name: str) -> None:
    """Write ``hardware.toml``: what things cost as in ``name``, and the shape that the recorded host has."""
    known = hardwares.load(name)
    text = known.path.read_text(encoding="utf-8")
    if any(key in known.machine for key in ("sockets", "cores_per_socket", "threads_per_core")):
        shape = ""
    else:
        shape = _shape(about["header"]["pcpus"])
    if shape and "[machine]" not in text and "[machine.costs]" not in text:
        text += f"\n[machine]\n{shape}"
    elif shape:
        text = text.replace("[machine.costs]", f"[machine]\n{shape}\n[machine.costs]", 1)
    write_atomically(folder / "hardware.toml", text.encode())


def _shape(pcpus: list[dict[str, int]]) -> str:
    """Return sockets, cores and threads if every socket and core is like the others; else one socket of cores."""
    nodes: dict[int, dict[int, int]] = {}
    caches: dict[int, set[int]] = {}
    for pcpu in pcpus:
        cores = nodes.setdefault(pcpu["node"], {})
        cores[pcpu["core"]] = cores.get(pcpu["core"], 0) + 1
        caches.setdefault(pcpu["llc"], set()).add(pcpu["core"])
    sizes = {len(cores) for cores in nodes.values()}
    threads = {count for cores in nodes.values() for count in cores.values()}
    shared = {len(cores) for cores in caches.values()}
    if len(sizes) > 1 or len(threads) > 1:
        return f"sockets = 1\ncores_per_socket = {len(pcpus)}\nthreads_per_core = 1\n"
    (cores_each,), (threads_each,) = sizes, threads
    text = f"sockets = {len(nodes)}\ncores_per_socket = {cores_each}\nthreads_per_core = {threads_each}\n"
    if len(shared) == 1 and shared != {cores_each}:
        text += f"cores_per_cache = {shared.pop()}\n"
    return text

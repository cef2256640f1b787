# SPDX-License-Identifier: GPL-2.0-only
"""From a recording to a scenario: the host's shape, its VMs, and what each of them did as a model of a program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.places import PlaceError
from cohortlab.recorded.recording import Recording
from cohortlab.recorded.shape import in_order, shape
from cohortlab.results import write_atomically
from cohortlab.scenario import GUEST_BASE_MB, GUEST_PER_VCPU_MB, NAME_MAX
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.model import machine_of
from cohortlab.sim.policy import KERNEL_RULE, version_of
from cohortlab.tomlmodel import read_text, shown

NS_PER_S = 1_000_000_000
# What the simulator takes of one program (sim/src/workload/compile.rs).
STEPS_MAX = 1 << 20
WRITTEN = "# Written by `cohortlab import`.\n"
# A replay takes the part's length alone, and a multiple of it beside others. In seconds, what a workload file allows.
TIMEOUT_S_MIN, TIMEOUT_S_MAX, SLOWDOWN_MAX = 600, 3600, 20
# A VM that used less of a pCPU is no program whose time says anything: it is there, as a load.
WORK_MIN = 0.05
# What vCPUs do that makes them depend on somebody; fewer than so many of each are a guest's own housekeeping.
MEETS = ("calls", "wakes_by_siblings", "sleeps", "spins_kernel", "spins_user")
MEETS_MIN = 8


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
    """The scenario's file, the VMs whose work it measures, and what it does not say, a sentence each."""

    path: Path
    measured: tuple[str, ...]
    remarks: tuple[str, ...]


def write(recording: Recording, folder: Path, part: Part, hardware: str, kernel: str | None = None) -> Written:
    """Write ``recorded.toml`` with its models and its hardware into ``folder``.

    Args:
        hardware: what things cost on that host: a name in ``hardware/``, or a file.
        kernel: the host's version; None: as recorded.

    Raises:
        BadInput: it makes no scenario that the simulator takes; ``folder`` may then have a part of it.
    """
    about = recording.about
    if not any(about["vcpus"]):
        raise BadInput(f"{recording.path}: has no VM: record while VMs run")
    names = _names(about["names"])
    replays = recording.replays(part.from_ns, part.to_ns, names)
    pcpus = in_order(about["header"]["pcpus"])
    remarks: list[str] = []
    measured = _measured(about, replays, part)
    models = folder / "workloads" / "models"
    models.mkdir(parents=True, exist_ok=True)
    text = _head(about, part, len(pcpus), kernel)
    for index, (name, vm, vcpus, replay) in enumerate(
        zip(names, about["end"]["vms"], about["vcpus"], replays, strict=True)
    ):
        if not vcpus:
            continue
        if replay["steps"] > STEPS_MAX:
            many = f"{name} has {replay['steps']} steps; the simulator takes {STEPS_MAX}"
            raise BadInput(f"--for-s: {part.length_s:g} is not allowed: {many}")
        kind = "program" if index in measured else "load"
        text += ["", "[[vm]]", f'name = "{name}"', f"vcpus = {vcpus}"]
        text += [f"memory_mb = {GUEST_BASE_MB + GUEST_PER_VCPU_MB * vcpus}", f"weight = {_weight(vm['weight'])}"]
        text += _limits(name, vm, pcpus, vcpus, remarks)
        text.append(f'tlb = "{_tlb(about["counts_by_vm"][index])}"')
        text.append(f'programs = ["{name}"]' if kind == "program" else f'load = "{name}"')
        write_atomically(models / f"{name}.toml", f"{WRITTEN}{replay[kind]}".encode())
        write_atomically(models.parent / f"{name}.toml", _workload(name, kind, part).encode())
    _hardware(folder, about, hardware)
    path = folder / "recorded.toml"
    write_atomically(path, ("\n".join(text) + "\n").encode())
    try:
        scenario = scenarios.load(path)
        machine_of(scenario, hardwares.of(scenario))
    except BadInput as error:
        # What the file says is the recording's doing, and after an error the file does not stay.
        wrong = str(error).replace(f"{path}: ", "").replace(f"{folder}/", "")
        raise BadInput(f"{recording.path}: makes no scenario: {wrong}") from None
    return Written(path, tuple(names[index] for index in measured), tuple(remarks))


def _workload(name: str, kind: str, part: Part) -> str:
    """Return a VM's workload file: without one it would have that of a program which happens to be called as the VM."""
    text = f'{WRITTEN}name = "{name}"\ntitle = "{name}, as recorded"\n'
    if kind == "load":
        return text + "background = true\n"
    timeout_s = min(max(round(SLOWDOWN_MAX * part.length_s), TIMEOUT_S_MIN), TIMEOUT_S_MAX)
    return f'{text}timeout_s = {timeout_s}\n\n[metric]\nkind = "elapsed"\n'


def _head(about: dict[str, Any], part: Part, pcpus: int, kernel: str | None) -> list[str]:
    header = about["header"]
    version = kernel or _version(header["kernel"])
    text = [
        "# What `cohort record` saw, to be simulated: cohortlab compare recorded.toml --on sim --policies all",
        'name = "recorded"',
        f'description = "{part.length_s:.1f} s of a host with Linux {_plain(header["kernel"])}, under'
        f' {_plain(header["scheduler"])}."',
        "",
        "[host]",
        f"pcpus = {pcpus}",
        "",
        "[guest]",
        # A host whose processor catches spins, as far as one can see: who never spun may be on either.
        f"ple = {'false' if 'ple' in header['missing'] else 'true'}",
        "",
        "[defaults]",
        'hardware = "hardware.toml"',
    ]
    return text if version is None else [*text, f'kernel = "{version}"']


def version_of_option(kernel: str) -> str:
    """Return the version that ``--kernel`` names, without what a distribution adds to it, or raise BadInput."""
    version = _version(kernel)
    try:
        version_of(kernel)
    except PlaceError:
        version = None
    if version is None:
        raise BadInput(f"--kernel: {shown(kernel)} is not allowed: must be {KERNEL_RULE}")
    return version


def _version(kernel: str) -> str | None:
    """Return a kernel's version as the simulator takes it."""
    found = re.match(r"[0-9]+\.[0-9]+(\.[0-9]+)?", kernel)
    return found.group(0) if found else None


def _plain(text: str) -> str:
    return re.sub(r"[^\w.+-]", "?", text, flags=re.ASCII)[:60]


def _names(names: list[str]) -> list[str]:
    """Return names as a scenario allows them, each once."""
    made: list[str] = []
    for name in names:
        plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[: NAME_MAX - 4] or "vm"
        unique, number = plain, 2
        while unique in made:
            unique, number = f"{plain}-{number}", number + 1
        made.append(unique)
    return made


def _measured(about: dict[str, Any], replays: list[dict[str, Any]], part: Part) -> list[int]:
    """Return the VMs whose time says something: they did enough, and their vCPUs slept or met; at least the busiest.

    Who only computes gets what it is given: it loads the host for the others.
    """
    did = [replay["seen"] for replay in replays]
    work = [seen["work_ns"] if vcpus else -1 for seen, vcpus in zip(did, about["vcpus"], strict=True)]
    meets = [sum(seen[name] for name in MEETS) for seen in did]
    least_ns = WORK_MIN * (part.to_ns - part.from_ns)
    found = [
        index
        for index, vcpus in enumerate(about["vcpus"])
        if work[index] >= least_ns and meets[index] > MEETS_MIN * vcpus
    ]
    return found or [work.index(max(work))]


def _weight(weight: float) -> int:
    return min(max(round(weight), 1), 10_000)


def _limits(name: str, vm: dict[str, Any], pcpus: dict[int, int], vcpus: int, remarks: list[str]) -> list[str]:
    """Return quota and pCPUs; what of them is not known becomes a remark."""
    text = []
    if vm.get("quota_us"):
        quota_us, period_us = vm["quota_us"]
        text.append(f"cap_pcpus = {min(max(quota_us / period_us, 0.01), 1024.0)}")
    told = {vcpu["vcpu"]: vcpu["cpus"] for vcpu in vm["vcpus"] if vcpu.get("cpus") is not None}
    sets = [sorted(pcpus[cpu] for cpu in cpus if cpu in pcpus) for _, cpus in sorted(told.items())]
    if len(sets) != vcpus and (any(sets) or not sets):
        known = f"is known of {len(sets)} of {vcpus}" if sets else "is not known"
        remarks.append(f"{name}: where its vCPUs may run {known}: in the scenario all may run everywhere")
    elif any(sets):
        text.append(f"vcpu_affinity = {[cpus or sorted(pcpus.values()) for cpus in sets]}")
    return text


def _tlb(counts: dict[str, int]) -> str:
    """Return how the VM flushes its siblings' TLBs, as far as it was seen."""
    if counts.get("tlb-hypercall"):
        return "hypercall"
    return "kvm-pv" if counts.get("tlb-deferred") else "ipi"


def _hardware(folder: Path, about: dict[str, Any], name: str) -> None:
    """Write ``hardware.toml``: what things cost as in ``name``, and the recorded host's shape."""
    known = hardwares.load(name)
    text = read_text(known.path)
    if not any(key in known.machine for key in ("sockets", "cores_per_socket", "threads_per_core")):
        text = shape(about["header"]["pcpus"]).into(text)
    write_atomically(folder / "hardware.toml", text.encode())

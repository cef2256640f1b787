# SPDX-License-Identifier: GPL-2.0-only
"""Scenario files: hosts, VMs, weights, affinity and workloads by name.

One schema for every place: nothing in it says how a place does it. What a place cannot do, the place refuses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args

from pydantic import Field, Strict

from cohortlab import shipped, workloads
from cohortlab.errors import BadInput
from cohortlab.tomlmodel import Location, Model, parse, read_toml, refuse, shown
from cohortlab.workloads import Workload

Tlb = Literal["ipi", "kvm-pv", "hypercall"]
TLB_MODES: tuple[Tlb, ...] = get_args(Tlb)

SHIPPED = shipped.folder("scenarios")

# The smallest guest that boots a stock kernel and runs its programs, and what each further vCPU adds to it
# (per-CPU data and one more copy of a parallel program).
GUEST_BASE_MB = 128
GUEST_PER_VCPU_MB = 32

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
NAME_RULE = "1 to 31 lower-case letters, digits and '-', the first no '-'"
TLB_RULE = '"ipi", "kvm-pv" or "hypercall"'


class Host(Model):
    """The machine that the VMs share."""

    pcpus: int = Field(ge=1, le=1024, description="an integer from 1 to 1024")


class Guest(Model):
    """What holds for every VM unless the VM says otherwise."""

    tlb: Tlb = Field("ipi", description=TLB_RULE)
    ple: bool = Field(True, description="true or false")
    # How long a vCPU may spin before it is caught; None: as the place has it.
    ple_window_us: int | None = Field(None, ge=1, le=10_000, description="an integer from 1 to 10000")


class Vm(Model):
    """One virtual machine."""

    name: Name = Field(description=NAME_RULE)
    vcpus: int = Field(ge=1, le=256, description="an integer from 1 to 256")
    memory_mb: int = Field(ge=1, le=1 << 24, description="an integer from 1 to 16777216")
    weight: int = Field(100, ge=1, le=10000, description="an integer from 1 to 10000 (cgroup cpu.weight)")
    affinity: Annotated[tuple[int, ...], Strict(False)] | None = Field(None, description="a list of pCPU numbers")
    programs: Annotated[tuple[str, ...], Strict(False)] = Field((), description="a list of workload names")
    load: str | None = Field(None, description="the name of a workload with background = true")
    tlb: Tlb = Field(description=TLB_RULE)  # from [guest] when the file does not say


class ScenarioFile(Model):
    """A scenario as the file holds it."""

    name: Name = Field(description=NAME_RULE)
    description: str = Field("", description="a text")
    host: Host = Field(description="a table with pcpus")
    guest: Guest = Field(Guest(), description="a table with tlb, ple and ple_window_us")
    vms: Annotated[tuple[Vm, ...], Strict(False)] = Field(
        alias="vm", min_length=1, description="one or more [[vm]] tables"
    )


@dataclass(frozen=True)
class Scenario:
    """A checked scenario with the workloads that it names; ``text`` is the file itself, ``path`` is named in errors."""

    name: str
    description: str
    host: Host
    guest: Guest
    vms: tuple[Vm, ...]
    workloads: Mapping[str, Workload]
    text: str
    path: Path

    @staticmethod
    def load(path: Path | str) -> Scenario:
        """Return the scenario in ``path``, or raise BadInput."""
        return load(Path(path))

    @property
    def program_vm(self) -> Vm:
        """The VM whose programs are measured."""
        return next(vm for vm in self.vms if vm.programs)

    @property
    def neighbours(self) -> tuple[Vm, ...]:
        """The VMs that load the host while programs are measured."""
        return tuple(vm for vm in self.vms if not vm.programs)

    def with_tlb(self, tlb: Tlb) -> Scenario:
        """Return the scenario with every VM in TLB mode ``tlb``."""
        return dataclasses.replace(
            self,
            guest=self.guest.model_copy(update={"tlb": tlb}),
            vms=tuple(vm.model_copy(update={"tlb": tlb}) for vm in self.vms),
        )

    def with_ple(self, window_us: int | None) -> Scenario:
        """Return the scenario with a pause filter that catches who spins for ``window_us``; None: with none."""
        update = {"ple": window_us is not None, "ple_window_us": window_us}
        return dataclasses.replace(self, guest=self.guest.model_copy(update=update))

    def with_programs(self, programs: tuple[str, ...]) -> Scenario:
        """Return the scenario with these of its programs, and no workload that only others needed."""
        vms = tuple(vm.model_copy(update={"programs": programs}) if vm.programs else vm for vm in self.vms)
        named = {*programs, *(vm.load for vm in vms)}
        found = {name: workload for name, workload in self.workloads.items() if name in named}
        return dataclasses.replace(self, vms=vms, workloads=found)


def names() -> list[str]:
    """Return the scenarios that come with this project."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find(path: Path) -> Path:
    """Return the file that is meant: ``path`` or, if it is only a name that no file has, the shipped scenario."""
    name = str(path)
    if path.exists() or path.suffix or path.name != name:
        return path
    if name not in names():
        raise BadInput(f'"{name}" is no scenario: must be a file, or one of {", ".join(names())}')
    return SHIPPED / f"{name}.toml"


def load(path: Path) -> Scenario:
    """Return the scenario in ``path`` (or of that name, see ``find``), or raise BadInput."""
    path = find(path)
    return _Check(path, parse(ScenarioFile, _with_defaults(read_toml(path)), path)).scenario()


def _with_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Return ``data`` with [guest] written into each VM that does not override it."""
    guest = data.get("guest", {})
    vms = data.get("vm")
    if not isinstance(guest, dict) or not isinstance(vms, list):
        return data  # of the wrong kind: parse() says so
    tlb = guest.get("tlb", "ipi")
    return data | {"vm": [{"tlb": tlb} | vm if isinstance(vm, dict) else vm for vm in vms]}


class _Check:
    """What no single field can know: rules across fields, and names that must exist."""

    def __init__(self, path: Path, file: ScenarioFile) -> None:
        self.path = path
        self.file = file
        self.folders = workloads.folders_for(path)

    def scenario(self) -> Scenario:
        file = self.file
        for index, vm in enumerate(file.vms):
            self._names(index, vm)
            self._memory(index, vm)
            self._affinity(index, vm)
            self._role(index, vm)
        self._one_program_vm()
        named = {name for vm in file.vms for name in (*vm.programs, *([] if vm.load is None else [vm.load]))}
        found = {name: self._workload(name) for name in sorted(named)}
        self._kinds(found)
        text = self.path.read_text(encoding="utf-8")
        return Scenario(file.name, file.description, file.host, file.guest, file.vms, found, text, self.path)

    def _refuse(self, location: Location, value: object, allowed: str) -> NoReturn:
        refuse(self.path, location, f"{shown(value)} is not allowed", allowed)

    def _names(self, index: int, vm: Vm) -> None:
        names = [other.name for other in self.file.vms[:index]]
        if vm.name in names:
            self._refuse(("vm", index, "name"), vm.name, f"unique; vm[{names.index(vm.name)}] has this name")

    def _memory(self, index: int, vm: Vm) -> None:
        needed = GUEST_BASE_MB + GUEST_PER_VCPU_MB * vm.vcpus
        if vm.memory_mb < needed:
            most = (vm.memory_mb - GUEST_BASE_MB) // GUEST_PER_VCPU_MB
            rule = f"{GUEST_BASE_MB} MB + {GUEST_PER_VCPU_MB} MB per vCPU"
            more = f"memory_mb = {needed} or more"
            fix = f"{most} or less with memory_mb = {vm.memory_mb}, or {more}" if most >= 1 else f"given {more}"
            self._refuse(("vm", index, "vcpus"), vm.vcpus, f"{fix} (a guest needs {rule})")

    def _affinity(self, index: int, vm: Vm) -> None:
        if vm.affinity is None:
            return
        if not vm.affinity:
            self._refuse(("vm", index, "affinity"), [], "at least one pCPU, or left out for all")
        for position, cpu in enumerate(vm.affinity):
            location = ("vm", index, "affinity", position)
            if not 0 <= cpu < self.file.host.pcpus:
                allowed = f"a pCPU from 0 to {self.file.host.pcpus - 1} (host.pcpus = {self.file.host.pcpus})"
                self._refuse(location, cpu, allowed)
            if cpu in vm.affinity[:position]:
                self._refuse(location, cpu, "a pCPU that is not in the list already")

    def _role(self, index: int, vm: Vm) -> None:
        if vm.programs and vm.load is not None:
            self._refuse(("vm", index, "load"), vm.load, "left out in a VM with programs")
        if not vm.programs and vm.load is None:
            refuse(self.path, ("vm", index, "load"), "is missing", "given in every VM that has no programs")
        for position, name in enumerate(vm.programs):
            if name in vm.programs[:position]:
                self._refuse(("vm", index, "programs", position), name, "a workload that is not in the list already")

    def _one_program_vm(self) -> None:
        having = [index for index, vm in enumerate(self.file.vms) if vm.programs]
        if not having:
            refuse(self.path, ("vm",), "no VM has programs", "one VM with programs, the others with load")
        if len(having) > 1:
            self._refuse(
                ("vm", having[1], "programs"),
                self.file.vms[having[1]].programs,
                f"left out: only one VM may have programs, and vm[{having[0]}] has them",
            )

    def _location_of(self, name: str) -> Location:
        for index, vm in enumerate(self.file.vms):
            if name in vm.programs:
                return ("vm", index, "programs", vm.programs.index(name))
            if name == vm.load:
                return ("vm", index, "load")
        raise AssertionError(f"{name} is named by no VM")

    def _workload(self, name: str) -> Workload:
        found = workloads.find(name, self.folders)
        if found is None:
            known = ", ".join(workloads.known_names(self.folders)) or "(none found)"
            self._refuse(self._location_of(name), name, f"one of {known}")
        return workloads.load(found)

    def _kinds(self, found: Mapping[str, Workload]) -> None:
        for index, vm in enumerate(self.file.vms):
            for position, name in enumerate(vm.programs):
                if found[name].background:
                    allowed = "a workload that ends; this one is endless and only for load"
                    self._refuse(("vm", index, "programs", position), name, allowed)
            if vm.load is not None and not found[vm.load].background:
                allowed = "an endless workload: one whose file says background = true"
                self._refuse(("vm", index, "load"), vm.load, allowed)

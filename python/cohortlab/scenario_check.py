# SPDX-License-Identifier: GPL-2.0-only
"""What no single field of a scenario file can know: rules across fields, and names that must exist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from cohortlab import models, workloads
from cohortlab.errors import BadInput
from cohortlab.scenario import GUEST_BASE_MB, GUEST_PER_VCPU_MB, NAME_MAX, Fetch, Found, Scenario, ScenarioFile, Vm
from cohortlab.tomlmodel import Location, refuse, shown

# VMs that sleep in different rhythms: the ideal looks at each way in which they can be awake together.
RHYTHMS_MAX = 8


def fetch(scenario: Path, name: str, folder: Path | None = None) -> Found:
    """Return the workload that a scenario file would find by ``name``, or raise BadInput.

    rt-app's files are looked for in ``folder``; without, beside the scenario.
    """
    if name.endswith(models.RT_APP):
        file = (folder or scenario.resolve().parent) / name
        return workloads.of_model(file), file
    folders = workloads.folders_for(scenario)
    found = workloads.find(name, folders)
    if found is None:
        known = ", ".join(workloads.known_names(folders)) or "(none found)"
        raise BadInput(f"{shown(name)} is not allowed: must be one of {known}")
    return found


def too_many_vcpus(vcpus: int, memory_mb: int, called: str) -> str | None:
    """Return how many vCPUs a guest may have instead, if its memory, which is ``called`` so, is too small for these."""
    needed = GUEST_BASE_MB + GUEST_PER_VCPU_MB * vcpus
    if memory_mb >= needed:
        return None
    most = (memory_mb - GUEST_BASE_MB) // GUEST_PER_VCPU_MB
    more = f"{called} {needed} or more"
    fix = f"{most} or less with {called} {memory_mb}, or {more}" if most >= 1 else f"given {more}"
    return f"{fix} (a guest needs {GUEST_BASE_MB} MB + {GUEST_PER_VCPU_MB} MB per vCPU)"


class Check:
    """The rules, for one file."""

    def __init__(self, path: Path, file: ScenarioFile, text: str, fetched: Fetch | None) -> None:
        self.path = path
        self.file = file
        self.text = text
        self.fetch = fetched or (lambda name: fetch(path, name))

    def scenario(self) -> Scenario:
        file = self.file
        for index, vm in enumerate(file.vms):
            self._names(index, vm)
            self._memory(index, vm)
            self._affinity(index, vm)
            self._vcpu_affinity(index, vm)
            self._role(index, vm)
            self._rhythm(index, vm)
        self._same_turns()
        self._rhythms()
        named = {name for vm in file.vms for name in (*vm.programs, *([] if vm.load is None else [vm.load]))}
        found = {name: self._workload(name) for name in sorted(named)}
        self._kinds(found)
        each = [(index, one) for index, vm in enumerate(file.vms) for one in self._one_by_one(index, vm)]
        return Scenario(
            name=file.name,
            description=file.description,
            host=file.host,
            guest=file.guest.model_copy(update={"kernel": self._guest_kernel()}),
            vms=tuple(vm for _, vm in each),
            workloads={name: workload for name, (workload, _) in found.items()},
            text=self.text,
            path=self.path,
            rows=tuple(index for index, _ in each),
            models={name: model for name, (_, model) in found.items() if model is not None},
            defaults=file.defaults,
        )

    def _guest_kernel(self) -> str | None:
        """Return the guests' kernel; one that is a file, which the lab alone needs, by its full path."""
        kernel = self.file.guest.kernel
        return str(self.path.resolve().parent / kernel) if kernel is not None and "/" in kernel else kernel

    def _one_by_one(self, index: int, vm: Vm) -> list[Vm]:
        """Return a table's VMs: NAME-1, NAME-2, … of those with a count."""
        if vm.count == 1:
            return [vm]
        made = [vm.model_copy(update={"name": f"{vm.name}-{number}", "count": 1}) for number in range(1, vm.count + 1)]
        others = {other.name for other in self.file.vms}
        for one in made:
            if len(one.name) > NAME_MAX:
                longest = NAME_MAX - len(f"-{vm.count}")
                self._refuse(("vm", index, "name"), vm.name, f"at most {longest} letters with count = {vm.count}")
            if one.name in others:
                self._refuse(("vm", index, "count"), vm.count, f'another, or the VM "{one.name}" called otherwise')
        return made

    def _refuse(self, location: Location, value: object, allowed: str) -> NoReturn:
        refuse(self.path, location, f"{shown(value)} is not allowed", allowed)

    def _names(self, index: int, vm: Vm) -> None:
        names = [other.name for other in self.file.vms[:index]]
        if vm.name in names:
            self._refuse(("vm", index, "name"), vm.name, f"unique; vm[{names.index(vm.name)}] has this name")

    def _memory(self, index: int, vm: Vm) -> None:
        if allowed := too_many_vcpus(vm.vcpus, vm.memory_mb, "memory_mb ="):
            self._refuse(("vm", index, "vcpus"), vm.vcpus, allowed)

    def _affinity(self, index: int, vm: Vm) -> None:
        if vm.affinity is None:
            return
        if not vm.affinity:
            self._refuse(("vm", index, "affinity"), [], "at least one pCPU, or left out for all")
        for position, cpu in enumerate(vm.affinity):
            location = ("vm", index, "affinity", position)
            self._cpu(location, cpu)
            if cpu in vm.affinity[:position]:
                self._refuse(location, cpu, "a pCPU that is not in the list already")

    def _cpu(self, location: Location, cpu: int) -> None:
        if not 0 <= cpu < self.file.host.pcpus:
            allowed = f"a pCPU from 0 to {self.file.host.pcpus - 1} (host.pcpus = {self.file.host.pcpus})"
            self._refuse(location, cpu, allowed)

    def _vcpu_affinity(self, index: int, vm: Vm) -> None:
        given = vm.vcpu_affinity
        if given is None:
            return
        place: Location = ("vm", index, "vcpu_affinity")
        if vm.affinity is not None:
            self._refuse(("vm", index, "affinity"), vm.affinity, "left out in a VM with vcpu_affinity")
        if len(given) != vm.vcpus:
            self._refuse(place, given, f"as long as the VM has vCPUs: {vm.vcpus}")
        for vcpu, cpus in enumerate(given):
            if isinstance(cpus, int):
                self._cpu((*place, vcpu), cpus)
                continue
            if not cpus:
                self._refuse((*place, vcpu), [], "at least one pCPU")
            for position, cpu in enumerate(cpus):
                self._cpu((*place, vcpu, position), cpu)
                if cpu in cpus[:position]:
                    self._refuse((*place, vcpu, position), cpu, "a pCPU that is not in the list already")

    def _rhythm(self, index: int, vm: Vm) -> None:
        given = {name: value for name, value in (("run_s", vm.run_s), ("sleep_s", vm.sleep_s)) if value is not None}
        if len(given) == 1:
            missing = "sleep_s" if "run_s" in given else "run_s"
            refuse(self.path, ("vm", index, missing), "is missing", f"given with {next(iter(given))}")
        if given and vm.load is None:
            self._refuse(("vm", index, "run_s"), vm.run_s, "left out in a VM without load")

    def _rhythms(self) -> None:
        rhythms = dict.fromkeys((vm.start_s, vm.run_s, vm.sleep_s) for vm in self.file.vms if vm.run_s is not None)
        if len(rhythms) > RHYTHMS_MAX:
            refuse(self.path, ("vm",), f"{len(rhythms)} VMs sleep in different rhythms", f"at most {RHYTHMS_MAX}")

    def _role(self, index: int, vm: Vm) -> None:
        if vm.programs and vm.load is not None:
            self._refuse(("vm", index, "load"), vm.load, "left out in a VM with programs")
        if not vm.programs and vm.load is None:
            refuse(self.path, ("vm", index, "load"), "is missing", "given in every VM that has no programs")
        for position, name in enumerate(vm.programs):
            if name in vm.programs[:position]:
                self._refuse(("vm", index, "programs", position), name, "a workload that is not in the list already")

    def _same_turns(self) -> None:
        having = [index for index, vm in enumerate(self.file.vms) if vm.programs]
        if not having:
            refuse(self.path, ("vm",), "no VM has programs", "one or more VMs with programs, the others with load")
        lengths = {index: len(self.file.vms[index].programs) for index in having}
        longest = max(having, key=lambda index: lengths[index])
        for index in having:
            if lengths[index] not in (1, lengths[longest]):
                allowed = f"one program, or as many as vm[{longest}] has: {lengths[longest]}"
                self._refuse(("vm", index, "programs"), self.file.vms[index].programs, allowed)

    def _location_of(self, name: str) -> Location:
        for index, vm in enumerate(self.file.vms):
            if name in vm.programs:
                return ("vm", index, "programs", vm.programs.index(name))
            if name == vm.load:
                return ("vm", index, "load")
        raise AssertionError(f"{name} is named by no VM")

    def _workload(self, name: str) -> Found:
        try:
            return self.fetch(name)
        except BadInput as error:
            if not str(error).startswith(shown(name)):
                raise
            _, _, allowed = str(error).partition("must be ")
            self._refuse(self._location_of(name), name, allowed)

    def _kinds(self, found: Mapping[str, Found]) -> None:
        for index, vm in enumerate(self.file.vms):
            for position, name in enumerate(vm.programs):
                if found[name][0].background:
                    allowed = "a workload that ends; this one is endless and only for load"
                    self._refuse(("vm", index, "programs", position), name, allowed)

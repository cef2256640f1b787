# SPDX-License-Identifier: GPL-2.0-only
"""From a scenario to one run of the simulator: a program in each VM that has any, once, alone or beside the loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohortlab import models, workloads
from cohortlab.errors import BadInput
from cohortlab.places import PlaceError
from cohortlab.policies import KERNEL, kernel_settings
from cohortlab.scenario import Scenario, Vm
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.hardware import Hardware
from cohortlab.sim.policy import (
    KERNEL_DEFAULT,
    guest_of,
    host_class,
    kvm_of,
    version_of,
    window_grows,
    yields_at_pause_loops,
)
from cohortlab.tomlmodel import refuse

NS_PER_S = 1_000_000_000
# The simulator's defaults (sim/src/kvm/config.rs).
TSC_MHZ = 2_500
PAUSE_CYCLES = 100
# SVM's window, and what it may grow to: it is counted in 16 bits (KVM_SVM_DEFAULT_PLE_WINDOW).
PAUSES, PAUSES_MAX = 3_000, 65_535
# A guest flushes by hypercall if it believes that it is Hyper-V's (the lab: kvm=off,hv-tlbflush,hv-ipi). It knows
# nothing of KVM's steal time then, and sends interrupts by hypercall, too. A hardware file can say otherwise, for a
# guest with a hypercall of its own (Shoot4U).
HYPERV: tuple[dict[str, Any], dict[str, Any]] = ({"steal_time": False}, {"send_ipi": "hypercall"})
# Of cpu.max.
PERIOD_US = 100_000
# The loads run for so long before a program starts: about what the lab's do (half a second, and what setting up and
# reading counters takes).
SETTLE_NS = NS_PER_S


@dataclass(frozen=True)
class Run:
    """What to simulate.

    Attributes:
        running: the workload that each VM runs, by VM name; the other VMs are up and idle.
        programs: models as the simulator takes them, by name, of those whose files are not to be read.
        sets: what files of ``--sets`` say, likewise.
        seed: runs of one seed are the same to the last byte; another seed is another round.
    """

    scenario: Scenario
    running: Mapping[str, str]
    policy: str = "eevdf"
    args: tuple[str, ...] = ()
    seed: int = 1
    kernel: str = KERNEL_DEFAULT
    hardware: Hardware = field(default_factory=lambda: hardwares.load(hardwares.DEFAULT))
    programs: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the run as the simulator reads it, in JSON."""
        scenario = self.scenario
        programs = [vm for vm in self._running_vms() if vm.programs]
        ends = [vm.start_s + scenario.workloads[self.running[vm.name]].timeout_s for vm in programs]
        duration_ns = SETTLE_NS + _ns(max(ends, default=1.0))
        check_ple(scenario, self.hardware, self.kernel)
        return {
            "name": scenario.name,
            "seed": self.seed,
            "duration_ns": duration_ns,
            "machine": machine_of(scenario, self.hardware),
            "policy": host_class(self.policy, self.args, self.kernel, caught=self._catches(), sets=self.sets),
            "vms": [self._vm(vm) for vm in scenario.vms],
            "tasks": self._tasks(),
        }

    def _catches(self) -> bool:
        """Return whether KVM catches vCPUs that spin: by pause-loop exits, or as Wells' processor does."""
        wells = bool(self.hardware.kvm.get("wells", {}).get("instructions"))
        return wells or _has_ple(self.scenario, self.hardware)

    def _tasks(self) -> list[dict[str, Any]]:
        """Return the host's own threads; one that each pCPU has, for each."""
        made: list[dict[str, Any]] = []
        for index, task in enumerate(self.hardware.tasks):
            plain = task.model_dump(mode="json", exclude={"per_pcpu", "vmm", "before_ns"}, exclude_none=True)
            pcpus = range(self.scenario.host.pcpus)
            if task.before_ns is not None:
                made += [
                    plain
                    | {"name": f"{vm.name}/{task.name}", "vm": vm.name, "cpus": list(vm.affinity or ())}
                    | {"start_ns": SETTLE_NS + _ns(vm.start_s if vm.programs else 0) - task.before_ns}
                    | {"once": True}
                    for vm in self._running_vms()
                    if bool(vm.programs) == (task.vmm == "programs")
                ]
                continue
            if task.per_pcpu:
                made += [plain | {"name": f"{task.name}/{pcpu}", "cpus": [pcpu]} for pcpu in pcpus]
                continue
            if any(pcpu not in pcpus for pcpu in task.cpus):
                refuse(self.hardware.path, ("task", index, "cpus"), "has one too high", f"from 0 to {pcpus[-1]}")
            made.append(plain)
        return made

    def _vm(self, vm: Vm) -> dict[str, Any]:
        made: dict[str, Any] = {
            "name": vm.name,
            "vcpus": vm.vcpus,
            "weight": vm.weight,
            "cpus": list(vm.affinity or ()),
        }
        if vm.vcpu_affinity is not None:
            made["vcpu_cpus"] = [list(cpus or ()) for cpus in vm.allowed]
        if vm.cap_pcpus is not None:
            made["quota_us"] = round(min(vm.cap_pcpus, self.scenario.host.pcpus) * PERIOD_US)
        hyperv_kvm, hyperv_guest = HYPERV if vm.tlb == "hypercall" else ({}, {})
        settings = kernel_settings(self.args) if self.policy == KERNEL else None
        of_kernel, of_hardware = kvm_of(self.kernel, settings), self.hardware.kvm
        if vm.tlb == "kvm-pv":
            # Whatever its version, a KVM that flushes for its guests tells them who runs.
            of_kernel["tells_preempted"] = True
        kvm: dict[str, Any] = of_kernel | hyperv_kvm | of_hardware
        if isinstance(polling := of_hardware.get("halt_poll", {}), dict):
            kvm["halt_poll"] = of_kernel["halt_poll"] | polling
        ple = of_hardware.get("ple", {})
        if isinstance(ple, dict) and not window_grows(self.kernel, counts=bool(ple.get("window_pauses"))):
            kvm["ple"] = {"grow": 1, **ple}
        if not self.scenario.guest.ple:
            kvm["ple"] = {**kvm.get("ple", {}), "mode": "off"}
        elif self.scenario.guest.ple_window_us is not None:
            kvm["ple"] = {**kvm.get("ple", {}), **_window(self.scenario.guest.ple_window_us, kvm)}
        made["kvm"] = kvm
        kernel = guests_kernel(self.scenario, self.kernel)
        made["guest"] = {**guest_of(kernel, vm.vcpus), **hyperv_guest, **self.hardware.guest, "tlb": vm.tlb}
        if vm.name in self.running:
            made |= self._workload(vm, self.running[vm.name])
        return made

    def _workload(self, vm: Vm, name: str) -> dict[str, Any]:
        described = self.programs.get(name) or models.described(self.scenario.models[name])
        made: dict[str, Any] = {"workload": described}
        if vm.programs:
            _check_rate(self.scenario, name, described)
        # The loads run before the programs do; those that arrive later than these do not.
        if vm.programs or vm.start_s > 0:
            made["start_ns"] = SETTLE_NS + _ns(vm.start_s)
        if vm.programs:
            made["repeat"] = sum(bool(other.programs) for other in self._running_vms()) > 1
        elif not self.scenario.workloads[name].background:
            made |= {"repeat": True, "measured": False}
        if vm.run_s is not None and vm.sleep_s is not None:
            made["rhythm"] = {"run_ns": _ns(vm.run_s), "pause_ns": _ns(vm.sleep_s)}
        return made

    def _running_vms(self) -> list[Vm]:
        return [vm for vm in self.scenario.vms if vm.name in self.running]


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _window(window_us: int, kvm: Mapping[str, Any]) -> dict[str, int]:
    """Return the pause filter's window, and as far as KVM lets it grow: in the same proportion as on hardware."""
    cycles = window_us * (kvm.get("tsc_mhz") or TSC_MHZ)
    ple = kvm.get("ple", {})
    if ple.get("window_pauses"):
        return {"window_pauses": min(max(1, cycles // (ple.get("pause_cycles") or PAUSE_CYCLES)), PAUSES_MAX)}
    return {"window_cycles": cycles, "window_max_cycles": cycles * PAUSES_MAX // PAUSES}


def machine_of(scenario: Scenario, hardware: Hardware) -> dict[str, Any]:
    """Return the host's shape: that of the hardware file if its pCPUs are the scenario's, else one socket."""
    machine = dict(hardware.machine)
    shape = ("sockets", "cores_per_socket", "threads_per_core")
    if not any(name in machine for name in shape):
        return machine | {"sockets": 1, "cores_per_socket": scenario.host.pcpus, "threads_per_core": 1}
    machine = dict.fromkeys(shape, 1) | machine
    pcpus = 1
    for name in shape:
        pcpus *= machine[name] if isinstance(machine[name], int) else 1
    if pcpus != scenario.host.pcpus:
        raise BadInput(
            f"{hardware.path}: machine: has {pcpus} pCPUs, but {scenario.path} has host.pcpus = {scenario.host.pcpus}"
        )
    return machine


def check(scenario: Scenario) -> None:
    """Raise BadInput, naming the field, for what the simulator cannot do of this scenario."""
    for row, vm in zip(scenario.rows, scenario.vms, strict=True):
        for position, name in enumerate(vm.programs):
            _check_rate(scenario, name, _check_model(f"vm[{row}].programs[{position}]", scenario, name))
        if vm.load is not None:
            _check_model(f"vm[{row}].load", scenario, vm.load)


def guests_kernel(scenario: Scenario, host: str) -> str:
    """Return the version of the guests' kernel; of one that is a file, its release. Default: the host's.

    Raises:
        BadInput: the simulator does not know it.
    """
    kernel = scenario.guest.kernel
    if kernel is None:
        return host
    try:
        if "/" in kernel:
            from cohortlab.lab.kernels import release_of

            kernel = release_of(Path(kernel), "a file")
        version_of(kernel)
    except PlaceError as error:
        raise BadInput(f"--guest-kernel, or guest.kernel of {scenario.path}: {error}") from None
    return kernel


def check_ple(scenario: Scenario, hardware: Hardware, kernel: str) -> None:
    """Raise BadInput for pause-loop exits with a kernel whose KVM does what is not simulated."""
    if _has_ple(scenario, hardware) and not yields_at_pause_loops(kernel):
        wrong = f"true is not allowed with kernel {kernel}, whose KVM yields to nobody"
        refuse(scenario.path, ("guest", "ple"), wrong, "false, or the kernel 2.6.39 or newer")


def _has_ple(scenario: Scenario, hardware: Hardware) -> bool:
    """Return whether the processor ends loops of PAUSE with an exit."""
    return scenario.guest.ple and hardware.kvm.get("ple", {}).get("mode") != "off"


def _check_model(where: str, scenario: Scenario, name: str) -> dict[str, Any]:
    """Return a program's model as the simulator takes it."""
    if name not in scenario.models:
        folders = models.folders_in(workloads.folders_for(scenario.path))
        known = ", ".join(sorted({file.stem for folder in folders for file in folder.glob("*.toml")}))
        raise BadInput(f'{scenario.path}: {where}: there is no model of "{name}": must be one of {known}')
    return models.described(scenario.models[name])


def _check_rate(scenario: Scenario, name: str, described: Mapping[str, Any]) -> None:
    """Raise BadInput for a program that is to give a rate and whose model has none: it would be 0."""
    if scenario.workloads[name].is_rate and not models.has_rate(described):
        allowed = f'given, or the kind of [metric] in the workload "{name}" "elapsed"'
        refuse(scenario.models[name], ("metric", "rate"), "is missing", allowed)

# SPDX-License-Identifier: GPL-2.0-only
"""Scenario files: hosts, VMs, weights, affinity and workloads by name.

One schema for every place: nothing in it says how a place does it. What a place cannot do, the place refuses.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, Strict

from cohortlab import models, shipped, workloads
from cohortlab.errors import BadInput
from cohortlab.tomlmodel import Model, parse, parse_toml, read_text
from cohortlab.workloads import Workload

Tlb = Literal["ipi", "kvm-pv", "hypercall"]
TLB_MODES: tuple[Tlb, ...] = get_args(Tlb)

SHIPPED = shipped.folder("scenarios")

# The smallest guest that boots a stock kernel and runs its programs, and what each further vCPU adds to it
# (per-CPU data and one more copy of a parallel program).
GUEST_BASE_MB = 128
GUEST_PER_VCPU_MB = 32

VCPUS_MAX = 256
NAME_MAX = 31
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
NAME_RULE = "1 to 31 lower-case letters, digits and '-', the first no '-'"
TLB_RULE = '"ipi", "kvm-pv" or "hypercall"'
# How long a pause filter may let a vCPU spin.
PLE_WINDOW_US_MAX = 10_000
Texts = Annotated[tuple[str, ...], Strict(False)]
Cpus = Annotated[tuple[int, ...], Strict(False)]
# TOML's inf and nan are no numbers of seconds or pCPUs; its integers are.
Number = Annotated[float, Field(allow_inf_nan=False)]

# What runs at the same time in the VMs that have programs: VM and program of each.
Turn = tuple[tuple[str, str], ...]
# A program: its workload, and its model's file if it has one. Who finds them by name raises BadInput if there is none.
Found = tuple[Workload, Path | None]
Fetch = Callable[[str], Found]


class Host(Model):
    """The machine that the VMs share."""

    pcpus: int = Field(ge=1, le=1024, description="an integer from 1 to 1024")


class Guest(Model):
    """What holds for every VM unless the VM says otherwise."""

    tlb: Tlb = Field("ipi", description=TLB_RULE)
    ple: bool = Field(True, description="true or false")
    # How long a vCPU may spin before it is caught; None: as the place has it.
    ple_window_us: int | None = Field(
        None, ge=1, le=PLE_WINDOW_US_MAX, description=f"an integer from 1 to {PLE_WINDOW_US_MAX}"
    )
    # None: the lab's newest; simulated, the host's.
    kernel: str | None = Field(None, min_length=1, description="a kernel's release, or a file with a / in its path")


class Vm(Model):
    """One virtual machine."""

    name: Name = Field(description=NAME_RULE)
    vcpus: int = Field(ge=1, le=VCPUS_MAX, description=f"an integer from 1 to {VCPUS_MAX}")
    memory_mb: int = Field(ge=1, le=1 << 24, description="an integer from 1 to 16777216")
    weight: int = Field(100, ge=1, le=10000, description="an integer from 1 to 10000 (cgroup cpu.weight)")
    count: int = Field(1, ge=1, le=256, description="an integer from 1 to 256")
    cap_pcpus: Number | None = Field(None, ge=0.01, le=1024, description="a number from 0.01 to 1024 (cgroup cpu.max)")
    affinity: Cpus | None = Field(None, description="a list of pCPU numbers")
    vcpu_affinity: Annotated[tuple[int | Cpus, ...], Strict(False)] | None = Field(
        None, description="a list that has a pCPU number, or a list of them, for each vCPU"
    )
    programs: Texts = Field((), description="a list of workload names")
    load: str | None = Field(None, description="the name of a workload")
    start_s: Number = Field(0.0, ge=0, le=3600, description="a number of seconds from 0 to 3600")
    run_s: Number | None = Field(None, ge=0.001, le=3600, description="a number of seconds from 0.001 to 3600")
    sleep_s: Number | None = Field(None, ge=0.001, le=3600, description="a number of seconds from 0.001 to 3600")
    tlb: Tlb = Field(description=TLB_RULE)  # from [guest] when the file does not say

    @property
    def allowed(self) -> tuple[tuple[int, ...] | None, ...]:
        """The pCPUs that each vCPU may use; None for all."""
        if self.vcpu_affinity is None:
            return (self.affinity,) * self.vcpus
        return tuple((cpus,) if isinstance(cpus, int) else cpus for cpus in self.vcpu_affinity)


class Defaults(Model):
    """What a command takes where its options say nothing."""

    policies: Texts | None = Field(None, description="a list of policies, as --policies has them")
    policy_args: Texts = Field((), description='a list of "LABEL=ARGS", as --policy-args has them')
    hardware: str | None = Field(None, description="a name in hardware/, or a .toml file beside the scenario")
    kernel: str | None = Field(None, min_length=1, description="a kernel, as --kernel has it")


class ScenarioFile(Model):
    """A scenario as the file holds it."""

    name: Name = Field(description=NAME_RULE)
    description: str = Field("", description="a text")
    host: Host = Field(description="a table with pcpus")
    guest: Guest = Field(Guest(), description="a table with tlb, ple, ple_window_us and kernel")
    defaults: Defaults = Field(Defaults(), description="a table with policies, policy_args, hardware and kernel")
    vms: Annotated[tuple[Vm, ...], Strict(False)] = Field(
        alias="vm", min_length=1, description="one or more [[vm]] tables"
    )


@dataclass(frozen=True)
class Scenario:
    """A checked scenario with the workloads that it names.

    Attributes:
        vms: each VM on its own, also those that the file gives a ``count``.
        rows: for each of them, which [[vm]] table of the file it is from.
        models: the files of the workloads' models, of those that have one.
        text: the file itself; ``path`` is named in errors.
    """

    name: str
    description: str
    host: Host
    guest: Guest
    vms: tuple[Vm, ...]
    workloads: Mapping[str, Workload]
    text: str
    path: Path
    rows: tuple[int, ...]
    models: Mapping[str, Path]
    defaults: Defaults

    @staticmethod
    def load(path: Path | str) -> Scenario:
        """Return the scenario in ``path``, or raise BadInput."""
        return load(Path(path))

    @property
    def program_vm(self) -> Vm:
        """The VM whose programs are measured; the first of them."""
        return self.program_vms[0]

    @functools.cached_property
    def program_vms(self) -> tuple[Vm, ...]:
        """The VMs whose programs are measured."""
        return tuple(vm for vm in self.vms if vm.programs)

    @property
    def neighbours(self) -> tuple[Vm, ...]:
        """The VMs that load the host while programs are measured."""
        return tuple(vm for vm in self.vms if not vm.programs)

    @functools.cached_property
    def turns(self) -> tuple[Turn, ...]:
        """What is measured at a time, in order: in each VM the next of its programs; who has one runs it each time."""
        count = max(len(vm.programs) for vm in self.program_vms)
        return tuple(
            tuple((vm.name, vm.programs[at if len(vm.programs) > 1 else 0]) for vm in self.program_vms)
            for at in range(count)
        )

    def called(self, vm: str, program: str) -> str:
        """Return what a program is called: with its VM, if there are several with programs."""
        return program if len(self.program_vms) == 1 else f"{vm}:{program}"

    def label(self, turn: Turn, vm: str) -> str:
        """Return what the program of ``vm`` in a turn is called in reports.

        One that runs in several turns has figures of each, since beside another program it is due something else. It
        is then called by that, too: the program of the first VM that has several.
        """
        programs = dict(turn)
        name = self.called(vm, programs[vm])
        several = [other.name for other in self.program_vms if len(other.programs) > 1]
        return name if not several or vm in several else f"{name}@{programs[several[0]]}"

    def labels_of(self, turn: Turn) -> tuple[str, ...]:
        """Return the labels of a turn's programs."""
        return tuple(self.label(turn, vm) for vm, _ in turn)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """Every program's label, in the order of the turns."""
        return tuple(label for turn in self.turns for label in self.labels_of(turn))

    def turn_of(self, label: str) -> Turn | None:
        """Return the turn with the program that is called so."""
        return next((turn for turn in self.turns if label in self.labels_of(turn)), None)

    def vm_of(self, label: str) -> str | None:
        """Return the VM whose program is called so."""
        turn = self.turn_of(label) or ()
        return next((vm for vm, _ in turn if self.label(turn, vm) == label), None)

    def own_files(self) -> dict[str, tuple[str, str]]:
        """Return the user's own files that say what runs, with their SHA-256, by name: rt-app's, and workload files.

        A model is none of them: the lab does not read it, and who changes it compares with the same measurements again.

        Raises:
            BadInput: one of them cannot be read.
        """
        found: dict[str, tuple[str, str]] = {}
        for name in dict.fromkeys(name for vm in self.vms for name in (*vm.programs, vm.load) if name is not None):
            is_rt_app = name.endswith(models.RT_APP)
            file = self.models.get(name) if is_rt_app else workloads.file_of(name, self.path)
            if file is None or file.parent == workloads.SHIPPED:
                continue
            try:
                found[name] = (str(file), hashlib.sha256(file.read_bytes()).hexdigest())
            except OSError as error:
                raise BadInput(f"{file}: cannot be read: {error.strerror}") from None
        return found

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

    def with_guest_kernel(self, kernel: str) -> Scenario:
        """Return the scenario with this kernel in every VM: the start of a release, or a file."""
        return dataclasses.replace(self, guest=self.guest.model_copy(update={"kernel": kernel}))

    def with_programs(self, programs: tuple[str, ...], fetch: Fetch | None = None) -> Scenario:
        """Return the scenario with these programs in each VM that has any, and no workload that only others needed.

        ``fetch`` finds those that are not the scenario's, and rt-app's files; without, they are where its file would
        find them.

        Raises:
            BadInput: one of them is no workload, or never ends, or has the name of a load that is another file.
        """
        from cohortlab import scenario_check

        # Whoever fetches looks for these in a folder of its own, where one of the same name is another file.
        fetched = {name for name in programs if fetch is not None and name.endswith(models.RT_APP)}
        fetch = fetch or (lambda name: scenario_check.fetch(self.path, name))
        vms = tuple(vm.model_copy(update={"programs": programs}) if vm.programs else vm for vm in self.vms)
        named = {*programs, *(vm.load for vm in vms if vm.load is not None)}
        known = {name: (workload, self.models.get(name)) for name, workload in self.workloads.items()}
        found = {name: known[name] if name in known.keys() - fetched else fetch(name) for name in sorted(named)}
        for name in sorted(fetched.intersection(vm.load for vm in vms if vm.load is not None)):
            theirs, ours = self.models[name], found[name][1]
            if ours is None or ours.resolve() != theirs.resolve():
                raise BadInput(f'"{name}" is not allowed: must have another name than the load {theirs}')
        for name in programs:
            if found[name][0].background:
                raise BadInput(f'"{name}" is not allowed: must be a workload that ends; this one is endless')
        return dataclasses.replace(
            self,
            vms=vms,
            workloads={name: workload for name, (workload, _) in found.items()},
            models={name: model for name, (_, model) in found.items() if model is not None},
        )

    def only(self, labels: Sequence[str]) -> Scenario:
        """Return the scenario with nothing but the turns that have one of these.

        Labels that are not all its own are of programs that were chosen for every VM that has any.

        Raises:
            BadInput: one of those is no workload, or never ends.
        """
        if len(self.program_vms) == 1:
            return self.with_programs(tuple(labels))
        wanted = set(labels)
        if not wanted <= set(self.labels):
            return self.with_programs(tuple(dict.fromkeys(label.partition(":")[2] for label in labels)))
        kept = [at for at, turn in enumerate(self.turns) if not wanted.isdisjoint(self.labels_of(turn))]
        chosen = [vm.model_copy(update={"programs": _kept(vm.programs, kept)}) for vm in self.vms]
        return dataclasses.replace(self, vms=tuple(chosen))


def _kept(programs: tuple[str, ...], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(programs[at] for at in places) if len(programs) > 1 else programs


def names() -> list[str]:
    """Return the scenarios that come with this project."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find(path: Path) -> Path:
    """Return the file that is meant: ``path`` or, if it is only a name that no file has, the shipped scenario."""
    name = str(path)
    try:
        is_there = path.exists()
    except OSError as error:
        # No file can have such a name, or its folder is closed to this user.
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    if is_there or path.suffix or path.name != name:
        return path
    if name not in names():
        raise BadInput(f'"{name}" is no scenario: must be a file, or one of {", ".join(names())}')
    return SHIPPED / f"{name}.toml"


def load(path: Path) -> Scenario:
    """Return the scenario in ``path`` (or of that name, see ``find``), or raise BadInput."""
    path = find(path)
    # Once: a pipe has no second time.
    text = read_text(path)
    return of_data(parse_toml(text, path), path, text)


def of_data(data: dict[str, Any], path: Path, text: str = "", fetch: Fetch | None = None) -> Scenario:
    """Return the scenario that a file's data describe, or raise BadInput; ``path`` is named in it.

    ``fetch`` finds a workload by name; without, it is where the file would find it.
    """
    from cohortlab.scenario_check import Check

    return Check(path, parse(ScenarioFile, _with_defaults(data), path), text, fetch).scenario()


def _with_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Return ``data`` with [guest] written into each VM that does not override it."""
    guest = data.get("guest", {})
    vms = data.get("vm")
    if not isinstance(guest, dict) or not isinstance(vms, list):
        return data  # of the wrong kind: parse() says so
    tlb = guest.get("tlb", "ipi")
    return data | {"vm": [{"tlb": tlb} | vm if isinstance(vm, dict) else vm for vm in vms]}

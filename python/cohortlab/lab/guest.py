# SPDX-License-Identifier: GPL-2.0-only
"""One guest: its QEMU command line in the host under test, and its cgroup."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from cohortlab.lab.agent import AgentError, GuestChannel, Job, Machine
from cohortlab.lab.emulator import MACHINE, PAYLOAD, QUIET
from cohortlab.places import PlaceCrashed
from cohortlab.scenario import Tlb

SLICE = "/sys/fs/cgroup/machine.slice"
# A plain model with what every guest has: `host` does not boot under the emulator.
_CPU = "qemu64,+x2apic,+pdpe1gb"
_HYPER_V = "kvm=off,hv-relaxed,hv-vapic,hv-time,hv-vpindex,hv-synic,hv-stimer,hv-tlbflush,hv-ipi"
# Devices that are notified through I/O ports. Notified through memory, KVM must emulate an instruction; before 7.x it
# refuses to (KVM internal error, suberror 3) if it reads the emulator's leftovers of an exception that was delivered
# already, type but no valid bit, as one being delivered.
_LEGACY = "disable-modern=on,disable-legacy=off"
# How a guest's kernel flushes other vCPUs' TLBs: what it is offered, and what it then prints.
_TLB: dict[Tlb, tuple[str, str | None]] = {
    "ipi": ("-kvm-pv-tlb-flush", None),
    "kvm-pv": ("+kvm-pv-tlb-flush", "KVM setup pv remote TLB flush"),
    "hypercall": (_HYPER_V, "Hyper-V: Using hypercall for remote TLB flush"),
}
_BOOT_TIMEOUT_S = 300


@dataclass(frozen=True)
class GuestConfig:
    """A VM as a scenario describes it."""

    name: str
    vcpus: int
    memory_mb: int
    weight: int
    tlb: Tlb
    affinity: Sequence[int] | None = None


class Guest:
    """A guest that was started."""

    def __init__(self, host: Machine, config: GuestConfig, job: Job) -> None:
        self.host = host
        self.config = config
        self.job = job
        self.channel = GuestChannel(host.channel, _socket(config.name))
        self.machine = Machine(config.name, self.channel)

    @property
    def cpu_stat(self) -> str:
        """The file in the host that counts all CPU time of this VM."""
        return f"{SLICE}/{self.config.name}.scope/cpu.stat"

    def wait_until_up(self) -> None:
        """Return when the guest's agent answers and its kernel took the TLB mode that it was offered."""
        socket = _socket(self.config.name)
        try:
            self.host.check(f"for i in $(seq 600); do [ -S {socket} ] && exit; sleep 0.05; done; exit 1", 60)
            self.machine.ping(_BOOT_TIMEOUT_S)
        except AgentError as error:
            raise PlaceCrashed(f"{self.config.name} did not start ({error}): {self.last_words()}") from None
        except TimeoutError:
            raise PlaceCrashed(f"{self.config.name} did not boot in {_BOOT_TIMEOUT_S} s: {self.last_words()}") from None
        announced = {mode: text for mode, (_, text) in _TLB.items() if text and self.announces(text)}
        wanted = self.config.tlb
        if list(announced) != [mode for mode in (wanted,) if _TLB[mode][1]]:
            raise PlaceCrashed(f'{self.config.name} should flush TLBs by "{wanted}", its kernel says {announced}')

    def announces(self, text: str) -> bool:
        """Return whether the guest's kernel log holds ``text``."""
        return self.machine.run(f"dmesg | grep -qF {shlex.quote(text)}").rc == 0

    def last_words(self) -> str:
        """Return the end of the guest's console and of what its QEMU printed."""
        place, printed = folder(self.config.name), f"{PAYLOAD}/jobs/vm-{self.config.name}.err"
        text = self.host.run(f"tail -n 6 {place}/console.log; grep -m 3 -v = {printed}").stdout
        return " | ".join(line.strip() for line in text.splitlines() if line.strip()) or "it printed nothing"

    def pid(self) -> int:
        """Return the process that is the VM."""
        return self.job.pid

    def kill(self) -> None:
        self.job.signal(9)


def folder(name: str) -> str:
    return f"{PAYLOAD}/vm/{name}"


def _socket(name: str) -> str:
    return f"{folder(name)}/agent.sock"


def machine(host: Machine, name: str) -> Machine:
    """Return what runs commands in the guest called ``name``."""
    return Machine(name, GuestChannel(host.channel, _socket(name)))


def start(host: Machine, config: GuestConfig, kvm: str = "kvm") -> Guest:
    """Start a guest, in a cgroup of its own as libvirt does; do not wait for its boot."""
    place, scope = folder(config.name), f"{SLICE}/{config.name}.scope"
    host.check(f"mkdir -p {place} {scope} && rm -f {place}/agent.sock && echo {config.weight} >{scope}/cpu.weight")
    pinned = f"taskset -c {','.join(map(str, config.affinity))} " if config.affinity else ""
    # The shell joins the cgroup and becomes QEMU, so that no thread of it was ever elsewhere.
    command = f"echo $$ >{scope}/cgroup.procs && exec {pinned}{shlex.join(_qemu(config, kvm))}"
    return Guest(host, config, host.spawn(f"vm-{config.name}", command))


def prepare_cgroups(host: Machine) -> None:
    """Let cgroups below the VMs' slice have a CPU weight."""
    host.check(
        "echo +cpu >/sys/fs/cgroup/cgroup.subtree_control && "
        f"mkdir -p {SLICE} && echo +cpu >{SLICE}/cgroup.subtree_control"
    )


def _qemu(config: GuestConfig, accel: str) -> list[str]:
    place = folder(config.name)
    return [
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", MACHINE, "-accel", accel, "-cpu", f"{_CPU},{_TLB[config.tlb][0]}"),
        *("-smp", str(config.vcpus), "-m", f"{config.memory_mb}M"),
        *("-kernel", f"{PAYLOAD}/guest/vmlinuz", "-initrd", f"{PAYLOAD}/guest/initrd"),
        *("-append", f"console=ttyS0 quiet panic=-1 oops=panic {QUIET} lab.role=guest"),
        *("-drive", "file=/dev/vda,format=raw,if=none,id=root,readonly=on,file.locking=off"),
        *("-device", f"virtio-blk-pci,drive=root,{_LEGACY}"),
        *("-chardev", f"file,id=console,path={place}/console.log", "-serial", "chardev:console"),
        *("-device", f"virtio-serial-pci,{_LEGACY}"),
        *("-chardev", f"socket,id=agent,path={place}/agent.sock,server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=cohort.agent"),
    ]

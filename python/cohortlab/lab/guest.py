# SPDX-License-Identifier: GPL-2.0-only
"""One guest: its QEMU command line on the host under test, and its cgroup."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cohortlab.lab import lastwords, vmlinux
from cohortlab.lab.agent import AgentError, GuestChannel, Job, Machine
from cohortlab.lab.command import MACHINE, PAYLOAD, SWITCHES, of_options
from cohortlab.lab.lastwords import Vmm
from cohortlab.lab.patience import Patience
from cohortlab.lab.sampling import usage_s
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
# Some twenty lines while it boots, which also say that it still gets on; all of them would be a VM exit per letter.
_LOGLEVEL = 6
# All vCPUs read this machine's TSC. A guest that does not know that compares them at boot, in which its vCPUs spin for
# each other, and goes on watching them; its clock is KVM's or Hyper-V's in any case.
_TSC = "tsc=reliable"
# Of cpu.max.
_PERIOD_US = 100_000
# How often a guest that boots is looked at, and how long its host may take to say how it is.
_LOOK_S = 2
_ASK_S = 20
# What its QEMU prints besides errors, when KVM gives up: registers, dozens of lines of them.
_REGISTERS = re.compile(r"=")


@dataclass(frozen=True)
class Site:
    """Where a host keeps its guests, and what they boot from; paths on that host.

    Attributes:
        folder: of sockets, consoles and what jobs print.
        slice: the cgroup of all guests.
        qemu: the start of QEMU's command line.
    """

    folder: str
    slice: str
    kernel: str
    initrd: str
    disk: str
    qemu: tuple[str, ...] = ("qemu-system-x86_64",)


# The lab's host.
LAB = Site(PAYLOAD, SLICE, f"{PAYLOAD}/kernel/{vmlinux.NAME}", f"{PAYLOAD}/guest/initrd", "/dev/vda")


@dataclass(frozen=True)
class GuestConfig:
    """A VM as a scenario describes it."""

    name: str
    vcpus: int
    memory_mb: int
    weight: int
    tlb: Tlb
    affinity: Sequence[int] | None = None
    vcpu_affinity: Sequence[Sequence[int]] | None = None
    cap_pcpus: float | None = None


class Guest:
    """A guest that was started."""

    def __init__(self, host: Machine, config: GuestConfig, job: Job, site: Site = LAB) -> None:
        self.host = host
        self.config = config
        self.job = job
        self.site = site
        self.channel = GuestChannel(host.channel, _socket(config.name, site))
        self.machine = Machine(config.name, self.channel)

    @property
    def cgroup(self) -> str:
        """The VM's cgroup, a folder of the host."""
        return _scope(self.config.name, self.site)

    @property
    def cpu_stat(self) -> str:
        """The file in the host that counts all CPU time of this VM."""
        return f"{self.cgroup}/cpu.stat"

    def pin_vcpus(self) -> None:
        """Give each vCPU the pCPUs that it may use; its thread is known by its name."""
        for vcpu, cpus in enumerate(self.config.vcpu_affinity or ()):
            find = f"grep -lx 'CPU {vcpu}/.*' /proc/{self.pid()}/task/*/comm | cut -d/ -f5"
            self.host.check(f'thread=$({find}); taskset -pc {",".join(map(str, cpus))} "$thread"')

    def wait_until_up(self, usual_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> float:
        """Return when the guest's agent answers and its kernel took the TLB mode that it was offered.

        ``usual_s`` is what this takes here by ``clock``, if that is known; how long it took now is returned.
        """
        patience = Patience(usual_s, clock)
        while not self._answers():
            if (code := self.job.wait(0)) is not None:
                raise PlaceCrashed(f"{self.config.name} ended with {code} while it booted; {self.last_words()}")
            if why := patience.lost(len(self._file(self.console))):
                raise PlaceCrashed(f"{self.config.name} {why}; {self.last_words()}")
        took_s = patience.elapsed_s
        announced = self._announced()
        wanted = self.config.tlb
        if announced != [mode for mode in (wanted,) if _TLB[mode][1]]:
            raise PlaceCrashed(f'{self.config.name} should flush TLBs by "{wanted}", its kernel says {announced}')
        return took_s

    def _answers(self) -> bool:
        """Return whether the agent answers; wait a little if not."""
        try:
            self.machine.ping(_LOOK_S)
        except TimeoutError:
            return False
        except AgentError:  # its QEMU has not made the socket yet, or ends
            time.sleep(_LOOK_S / 10)
            return False
        return True

    def announces(self, text: str) -> bool:
        """Return whether the guest's kernel log holds ``text``."""
        return text in self._log([text])

    def _announced(self) -> list[Tlb]:
        """Return the TLB modes that the guest's kernel log speaks of."""
        texts = {mode: text for mode, (_, text) in _TLB.items() if text}
        log = self._log(list(texts.values()))
        return [mode for mode, text in texts.items() if text in log]

    def _log(self, texts: Sequence[str]) -> str:
        """Return the lines of the guest's kernel log that hold one of ``texts``."""
        return self.machine.run(f"dmesg | grep -F {' '.join(f'-e {shlex.quote(text)}' for text in texts)}").stdout

    @property
    def console(self) -> str:
        """The file in the host that holds the guest's console."""
        return f"{folder(self.config.name, self.site)}/console.log"

    def last_words(self) -> str:
        """Return how the guest and its QEMU are, and what both printed last."""
        try:
            code = self.job.wait(0, _ASK_S)
            stat, printed = self._file(self.cpu_stat), self._file(f"{self.site.folder}/jobs/{self.job.name}.err")
            console = self._file(self.console)
        except (AgentError, TimeoutError) as error:
            return f"nothing more is known of it, its host does not say: {error}"
        errors = "\n".join(line for line in printed.splitlines() if not _REGISTERS.search(line))
        return lastwords.of(Vmm(code, usage_s(stat) if stat else None, errors), console)

    def _file(self, path: str) -> str:
        """Return a file of the host; nothing if there is none."""
        try:
            return str(self.host.channel.call({"read_file": {"path": path}}, timeout_s=_ASK_S).value["text"])
        except AgentError:
            return ""

    def pid(self) -> int:
        """Return the process that is the VM."""
        return self.job.pid

    def kill(self) -> None:
        self.job.signal(9)


def folder(name: str, site: Site = LAB) -> str:
    return f"{site.folder}/vm/{name}"


def _scope(name: str, site: Site) -> str:
    return f"{site.slice}/{name}.scope"


def _socket(name: str, site: Site = LAB) -> str:
    return f"{folder(name, site)}/agent.sock"


def machine(host: Machine, name: str) -> Machine:
    """Return what runs commands in the guest called ``name``."""
    return Machine(name, GuestChannel(host.channel, _socket(name)))


def names(host: Machine, site: Site = LAB) -> list[str]:
    """Return the names of the guests that were started on the host."""
    found = host.check(f"cd {site.folder}/vm 2>/dev/null && ls -d */agent.sock 2>/dev/null || true")
    return [line.removesuffix("/agent.sock") for line in found.split()]


def start(host: Machine, config: GuestConfig, kvm: str = "kvm", site: Site = LAB) -> Guest:
    """Start a guest, in a cgroup of its own as libvirt does; do not wait for its boot."""
    place, scope = folder(config.name, site), _scope(config.name, site)
    host.check(f"mkdir -p {place} {scope} && rm -f {place}/agent.sock && echo {config.weight} >{scope}/cpu.weight")
    if config.cap_pcpus is not None:
        host.check(f"echo {round(config.cap_pcpus * _PERIOD_US)} {_PERIOD_US} >{scope}/cpu.max")
    pinned = f"taskset -c {','.join(map(str, config.affinity))} " if config.affinity else ""
    # The shell joins the cgroup and becomes QEMU, so that no thread of it was ever elsewhere.
    command = f"echo $$ >{scope}/cgroup.procs && exec {pinned}{shlex.join(_qemu(config, kvm, site))}"
    return Guest(host, config, host.spawn(f"vm-{config.name}", command), site)


def prepare_cgroups(host: Machine) -> None:
    """Let cgroups below the VMs' slice have a CPU weight."""
    host.check(
        "echo +cpu >/sys/fs/cgroup/cgroup.subtree_control && "
        f"mkdir -p {SLICE} && echo +cpu >{SLICE}/cgroup.subtree_control"
    )


def _qemu(config: GuestConfig, accel: str, site: Site) -> list[str]:
    place = folder(config.name, site)
    return [
        *site.qemu,
        # With names of threads only where they are asked for.
        *("-name", f"{config.name}{',debug-threads=on' if config.vcpu_affinity else ''}"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", MACHINE, "-accel", accel, "-cpu", f"{_CPU},{_TLB[config.tlb][0]}"),
        *("-smp", str(config.vcpus), "-m", f"{config.memory_mb}M"),
        *("-kernel", site.kernel, "-initrd", site.initrd),
        *("-append", f"console=ttyS0 loglevel={_LOGLEVEL} panic=-1 oops=panic {SWITCHES} {_TSC} lab.role=guest"),
        *("-drive", f"file={of_options(site.disk)},format=raw,if=none,id=root,readonly=on,file.locking=off"),
        *("-device", f"virtio-blk-pci,drive=root,{_LEGACY}"),
        *("-chardev", f"file,id=console,path={place}/console.log", "-serial", "chardev:console"),
        *("-device", f"virtio-serial-pci,{_LEGACY}"),
        *("-chardev", f"socket,id=agent,path={place}/agent.sock,server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=cohort.agent"),
    ]

# SPDX-License-Identifier: GPL-2.0-only
"""What the first level's QEMU is started with: its command line, and the initramfs with all that this boot brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cohortlab.lab import control, cpio, vmlinux
from cohortlab.lab import qemu as qemus
from cohortlab.lab.image import Image
from cohortlab.lab.kernels import Kernel, guest_initramfs, initramfs
from cohortlab.lab.qemu import Qemu
from cohortlab.lab.turn import Turn
from cohortlab.places import PlaceError

PAYLOAD = "/run/cohort-lab"
# Processors of AMD count 3000 PAUSEs by default, of 40 to 140 cycles each: 50 to 160 us.
HARDWARE_WINDOW_US = 100
# All that the emulator has, but for features that must be switched between a guest and its host and that neither needs:
# with them, guests and hosts died several times as often.
TCG_CPU = "max,+svm,-la57,-smap,-pku,-mpx,-umip,-vgif"
# Without an HPET, as libvirt does: QEMU's goes on firing at 250 Hz long after a Linux guest has stopped using it.
MACHINE = "q35,hpet=off"
# What both levels' kernels are told to leave out, since the emulator makes it dear; what runs later has no use for it.
SWITCHES = " ".join(
    (
        "damon_stat.enabled=N",  # sampling their memory's use, all the time: 1.5 % of a CPU each
        "cryptomgr.notests",  # trying every cipher at boot: a second in a guest
        "pci=lastbus=0",  # looking for devices on 255 buses, 8,160 VM exits in a guest: all are on bus 0
    )
)


@dataclass
class Boot:
    """What to boot.

    Attributes:
        kernel: the host's.
        accel: "kvm" or "tcg".
        ple: whether a guest that spins exits to the host's KVM.
        ple_window_us: how long it may spin before, where the processor has a pause filter; None: as hardware does.
        guest_kernel: the guests'; None: the host's.
        qemu: the emulator; None: the best that is there.
        files: programs put into the host's PATH, by name: a file, or what is in it.
        disks: more disks of the host, read-only: /dev/vdc and so on.
        extra_cmdline: more of the host's kernel command line.
        keep: the lab outlives this process.
        share: do not wait for another lab on this machine to end.
        turn: that of labs of which this is one; None: it has one of its own.
    """

    image: Image
    kernel: Kernel
    agent: Path
    pcpus: int
    memory_mb: int
    accel: str
    ple: bool
    ple_window_us: int | None = None
    guest_kernel: Kernel | None = None
    qemu: Qemu | None = None
    files: Mapping[str, bytes | Path] = field(default_factory=dict)
    disks: Sequence[Path] = ()
    extra_cmdline: str = ""
    keep: bool = False
    share: bool = False
    turn: Turn | None = None


@dataclass(frozen=True)
class Command:
    """How the first level is started; the folder that it runs in holds ``initrd``.

    ``files`` are those that it reads besides, all named in ``argv``.
    """

    qemu: Qemu
    argv: tuple[str, ...]
    initrd: bytes
    files: tuple[Path, ...] = ()


def of(boot: Boot) -> Command:
    """Return the command for ``boot``.

    Raises:
        PlaceError: it wants what the emulator has not.
    """
    qemu = boot.qemu or qemus.choose(boot.image, boot.accel)
    if boot.ple_window_us and boot.accel == "tcg" and not qemu.has_pause_filter:
        raise PlaceError(f"guest.ple_window_us = {boot.ple_window_us} needs a pause filter: {qemu.name} has none")
    kernel = vmlinux.bootable(boot.kernel.vmlinuz)
    of_guests = vmlinux.bootable(boot.guest_kernel.vmlinuz) if boot.guest_kernel else kernel
    cpu = {"kvm": "host", "tcg": TCG_CPU}[boot.accel]
    accel = {"kvm": "kvm", "tcg": "tcg,thread=multi"}[boot.accel]
    cmdline = f"console=ttyS0 loglevel=6 panic=-1 oops=panic {SWITCHES} lab.role=host lab.ple={int(boot.ple)}"
    cmdline += f" {boot.extra_cmdline}"
    if boot.accel == "tcg":
        # All CPUs read this machine's TSC. On a busy machine the kernel's watchdog sees long gaps and would give it up.
        cmdline += " tsc=reliable"
    window_us = boot.ple_window_us
    if boot.accel == "tcg" and qemu.has_pause_filter:
        window_us = window_us or HARDWARE_WINDOW_US
    if boot.ple and window_us:
        cmdline += f" lab.ple_window_us={window_us}"
    if boot.accel == "tcg" and boot.ple and not qemu.has_pause_filter:
        # It honours the PAUSE intercept but does not say that it has the filter.
        cmdline += " setcpuid=pausefilter,pfthreshold"
    argv = (
        *qemu.argv,
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", MACHINE, "-accel", accel, "-cpu", cpu, "-smp", str(boot.pcpus), "-m", f"{boot.memory_mb}M"),
        *("-kernel", str(kernel.file), "-initrd", "initrd", "-append", cmdline.strip()),
        *_disk("root", boot.image.disk),
        *_disk("kernel", of_guests.disk),
        *(word for number, disk in enumerate(boot.disks) for word in _disk(f"more{number}", disk)),
        *("-chardev", "file,id=console,path=console.log,append=on", "-serial", "chardev:console"),
        *("-device", "virtio-serial-pci", "-chardev", "socket,id=agent,path=agent.sock,server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=cohort.agent"),
        *(
            "-chardev",
            f"socket,id=control,path={control.SOCKET},server=on,wait=off",
            "-mon",
            "chardev=control,mode=control",
        ),
    )
    return Command(qemu, argv, _initrd(boot), (kernel.file, of_guests.disk, boot.image.disk, *boot.disks))


def of_options(value: object) -> str:
    """Return a value as it is written among QEMU's options, which end with commas."""
    return str(value).replace(",", ",,")


def _disk(name: str, file: Path) -> tuple[str, ...]:
    drive = f"file={of_options(file)},format=raw,if=none,id={name},readonly=on"
    return "-drive", drive, "-device", f"virtio-blk-pci,drive={name}"


def _initrd(boot: Boot) -> bytes:
    """Return the initramfs with this boot's payload, which in turn holds the guests' initramfs."""
    base = initramfs(boot.kernel, boot.image, "host")
    agent = {"payload/bin/cohort-lab-agent": boot.agent}
    programs = {f"payload/bin/{name}": program for name, program in boot.files.items()}
    guest: dict[str, bytes | Path] = {
        "payload/guest/initrd": guest_initramfs(boot.guest_kernel or boot.kernel, boot.image, boot.agent),
    }
    return base + cpio.archive({**agent, **programs, **guest})

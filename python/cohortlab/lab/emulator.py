# SPDX-License-Identifier: GPL-2.0-only
"""The first level: a QEMU process with the host under test in it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cohortlab.lab import cache, cpio, lastwords, turn, vmlinux
from cohortlab.lab import qemu as qemus
from cohortlab.lab.agent import AgentError, Connection, Machine
from cohortlab.lab.image import Image
from cohortlab.lab.kernels import Kernel, guest_initramfs, initramfs
from cohortlab.lab.lastwords import DEATH, Vmm
from cohortlab.lab.patience import BootTimes, OwnTime, Patience, boot_times
from cohortlab.lab.qemu import Qemu
from cohortlab.places import PlaceCrashed, PlaceError, ProgressFn

# The host under test goes on after these, but somebody should know.
COMPLAINT = re.compile(
    r"BUG:|WARNING:|\bstall|lockup|hung_task|blocked for more than|sched_ext: .*(error|disabled \()|Call Trace"
)
# How often a host that boots is looked at.
_LOOK_S = 2
# A host that was up and is without an answer for this long is taken for hung. Its agent is an ordinary process: a
# scheduler under test may starve it, and the kernel's watchdog needs 30 s to end that.
_SILENCE_S = 120
_PING_S = 5
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
        accel: "kvm" or "tcg".
        ple: whether a guest that spins exits to the host's KVM.
        ple_window_us: how long it may spin before, where the processor has a pause filter; None: as hardware does.
        qemu: the emulator; None: the best that is there.
        files: programs put into the host's PATH, by name.
        disks: more disks of the host, read-only: /dev/vdc and so on.
        extra_cmdline: more of the host's kernel command line.
        keep: the lab outlives this process.
        share: do not wait for another lab on this machine to end.
    """

    image: Image
    kernel: Kernel
    agent: Path
    pcpus: int
    memory_mb: int
    accel: str
    ple: bool
    ple_window_us: int | None = None
    qemu: Qemu | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    disks: Sequence[Path] = ()
    extra_cmdline: str = ""
    keep: bool = False
    share: bool = False


class Emulator:
    """A running first level."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None, qemu: Qemu | None = None) -> None:
        self.folder = folder
        self.qemu = qemu
        self._complained = 0
        self.console = folder / "console.log"
        self._process = process
        self._closing = threading.Event()
        self._up = process is None  # one that was left running is
        self._pid = process.pid if process else _emulator_in(folder)
        self.connection = Connection(folder / "agent.sock", self.check)
        self.host = Machine("host", self.connection)

    @classmethod
    def start(cls, boot: Boot, progress: ProgressFn) -> Emulator:
        """Boot; return when the agent answers."""
        chosen = boot.qemu or qemus.choose(boot.image, boot.accel)
        if boot.ple_window_us and boot.accel == "tcg" and not chosen.has_pause_filter:
            raise PlaceError(f"guest.ple_window_us = {boot.ple_window_us} needs a pause filter: {chosen.name} has none")
        runs = cache.root() / "run"
        runs.mkdir(exist_ok=True)
        _remove_dead(runs)
        own_turn = turn.take(runs, progress, share=boot.share)
        folder = Path(tempfile.mkdtemp(dir=runs))
        process = None
        try:
            process = _launch(boot, chosen, folder, own_turn)
            emulator = cls(folder, process, chosen)
        except BaseException:
            if process is not None:
                process.kill()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(own_turn)  # the emulator has it now
        try:
            emulator.wait_until_up(boot_times(), f"{boot.accel}, {chosen.name}, host of {boot.pcpus} pCPUs")
        except BaseException:
            emulator.close()
            raise
        threading.Thread(target=emulator._ping_now_and_then, name="lab ping", daemon=True).start()
        return emulator

    @classmethod
    def attach(cls, folder: Path) -> Emulator:
        """Return a first level that was started with ``keep``."""
        try:
            return cls(folder, None)
        except OSError as error:
            raise PlaceError(f"{folder}: no lab runs there: {error.strerror}") from None

    def wait_until_up(self, times: BootTimes, what: str) -> None:
        """Return when the agent answers; ``what`` is booted here, for the next time."""
        patience = Patience(times.usual_s(what), self.clock())
        while True:
            try:
                self.host.ping(_LOOK_S)
                break
            except TimeoutError:
                why = patience.lost(len(self.console_text()))
            except AgentError as error:
                self._closing.wait(_LOOK_S)  # its emulator's port is gone a moment before its process is
                self.check()
                why = f"cannot be reached while it boots ({error})"
            if why:
                raise PlaceCrashed(f"the lab's host {why}; {self.last_words()}")
        self._up = True
        times.add(what, patience.elapsed_s)

    def check(self) -> None:
        """Raise PlaceCrashed if the host under test is dead or does not answer."""
        if self._closing.is_set():
            return
        if self._process is not None and self._process.poll() is not None:
            raise PlaceCrashed(f"the lab's emulator ended; {self.last_words()}")
        if DEATH.search(self.console_text()):
            raise PlaceCrashed(f"the lab's host crashed; {self.last_words()}")
        silence_s = time.monotonic() - self.connection.last_heard
        if self._up and silence_s > _SILENCE_S:
            raise PlaceCrashed(f"the lab's host does not answer for {silence_s:.0f} s; {self.last_words()}")

    def console_text(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def new_complaints(self) -> list[str]:
        """Return the console's lines, since the last call, that tell of a bug, a stall or an ejected scheduler."""
        text = self.console_text()
        new, self._complained = text[self._complained :], len(text)
        return [line.strip() for line in new.splitlines() if COMPLAINT.search(line)]

    def close(self) -> None:
        """End the first level, if this process started it, and remove its files."""
        self._closing.set()
        self.connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    def clock(self) -> OwnTime:
        """Return a clock that passes as fast as the emulator gets the CPUs that it wants."""
        return OwnTime(self._pid)

    def last_words(self) -> str:
        """Return how the host and its emulator are, and what both printed last."""
        errors = self.folder / "emulator.err"
        printed = errors.read_text(errors="replace") if errors.exists() else ""
        code = self._process.poll() if self._process else None
        return lastwords.of(Vmm(code, lastwords.cpu_s(self._pid or 0), printed), self.console_text())

    def _ping_now_and_then(self) -> None:
        """Keep ``last_heard`` young while the host lives, also when all callers wait for long commands."""
        while not self._closing.wait(_PING_S):
            try:
                self.host.ping(_SILENCE_S)
            except (TimeoutError, AgentError, PlaceCrashed):
                continue  # whoever calls next is told


def _launch(boot: Boot, qemu: Qemu, folder: Path, own_turn: int) -> subprocess.Popen[bytes]:
    kernel = vmlinux.bootable(boot.kernel.vmlinuz)
    (folder / "initrd").write_bytes(_initrd(boot))
    (folder / "console.log").touch()
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
    argv = [
        *qemu.argv,
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", MACHINE, "-accel", accel, "-cpu", cpu, "-smp", str(boot.pcpus), "-m", f"{boot.memory_mb}M"),
        *("-kernel", str(kernel.file), "-initrd", "initrd", "-append", cmdline.strip()),
        *_disk("root", boot.image.disk),
        *_disk("kernel", kernel.disk),
        *(word for number, disk in enumerate(boot.disks) for word in _disk(f"more{number}", disk)),
        *("-chardev", "file,id=console,path=console.log", "-serial", "chardev:console"),
        *("-device", "virtio-serial-pci", "-chardev", "socket,id=agent,path=agent.sock,server=on,wait=off"),
        *("-device", "virtserialport,chardev=agent,name=cohort.agent"),
    ]
    if not boot.keep:
        # The kernel ends it with us, however we end. (With the thread that started it, to be exact.)
        argv = ["setpriv", "--pdeathsig", "KILL", *argv]
    stderr = folder / "emulator.err"
    with stderr.open("wb") as err:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=err,
            stderr=err,
            env=os.environ | dict(qemu.env),
            pass_fds=(own_turn,),
            start_new_session=True,  # Ctrl-C is for us, who then clean up
        )
    (folder / "pid").write_text(f"{process.pid}\n")
    turn.announce(own_turn, f"process {process.pid}, started by {os.getpid()}, in {folder}")
    deadline = time.monotonic() + 20
    while not (folder / "agent.sock").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = stderr.read_text(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
            raise PlaceError(f"the lab's emulator does not start: {said[0]}")
        time.sleep(0.02)
    return process


def _disk(name: str, file: Path) -> tuple[str, ...]:
    drive = f"file={file},format=raw,if=none,id={name},readonly=on"
    return "-drive", drive, "-device", f"virtio-blk-pci,drive={name}"


def _initrd(boot: Boot) -> bytes:
    """Return the initramfs with this boot's payload, which in turn holds the guests' initramfs."""
    base = initramfs(boot.kernel, boot.image, "host")
    agent = {"payload/bin/cohort-lab-agent": boot.agent}
    programs = {f"payload/bin/{name}": path for name, path in boot.files.items()}
    guest: dict[str, bytes | Path] = {
        "payload/guest/initrd": guest_initramfs(boot.kernel, boot.image, boot.agent),
    }
    return base + cpio.archive({**agent, **programs, **guest})


def stop_kept(folder: Path) -> None:
    """End a first level that was started with ``keep``."""
    process = _emulator_in(folder)
    if process is None:
        raise PlaceError(f"{folder}: no lab runs there")
    os.kill(process, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _emulator_in(folder: Path) -> int | None:
    """Return the emulator that runs in ``folder``. Its number alone may by now be somebody else's."""
    try:
        process = int((folder / "pid").read_text())
        return process if Path(f"/proc/{process}/cwd").readlink() == folder.resolve() else None
    except (OSError, ValueError):
        return None


def _remove_dead(runs: Path) -> None:
    """Remove what labs left behind whose Python process was killed, and their emulator with it."""
    for folder in runs.iterdir():
        if (folder / "pid").exists() and _emulator_in(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)

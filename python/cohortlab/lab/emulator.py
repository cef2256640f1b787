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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cohortlab.lab import cache, cpio, turn
from cohortlab.lab import qemu as qemus
from cohortlab.lab.agent import AgentError, Connection, Machine
from cohortlab.lab.image import Image
from cohortlab.lab.kernels import Kernel, initramfs
from cohortlab.lab.qemu import Qemu
from cohortlab.places import PlaceCrashed, PlaceError, ProgressFn

# The host under test is lost when its kernel printed one of these.
DEATH = re.compile(
    r"Oops: |Oops\[|Kernel panic|BUG: unable to handle|kernel BUG at|general protection fault|Unable to mount"
    r"|CPUS still haven't responded to the NMI"
)
# It goes on, but somebody should know.
COMPLAINT = re.compile(
    r"BUG:|WARNING:|\bstall|lockup|hung_task|blocked for more than|sched_ext: .*(error|disabled \()|Call Trace"
)
# A machine that is busy with other things can take minutes for what takes seconds otherwise.
_BOOT_TIMEOUT_S = 300
# A host without an answer for this long is taken for hung. Its agent is an ordinary process: a scheduler under
# test may starve it, and the kernel's watchdog needs 30 s to end that.
_SILENCE_S = 120
_PING_S = 5
PAYLOAD = "/run/cohort-lab"
# All that the emulator has, but for features that must be switched between a guest and its host and that neither needs:
# with them, guests and hosts died several times as often.
_TCG_CPU = "max,+svm,-la57,-smap,-pku,-mpx,-umip,-vgif"
# Without an HPET, as libvirt does: QEMU's goes on firing at 250 Hz long after a Linux guest has stopped using it.
MACHINE = "q35,hpet=off"
# Both levels' kernels sample their memory's use all the time by default: 1.5 % of a CPU each under the emulator.
QUIET = "damon_stat.enabled=N"


@dataclass
class Boot:
    """What to boot.

    Attributes:
        accel: "kvm" or "tcg".
        ple: whether PAUSE in guests exits to the host's KVM.
        files: programs put into the host's PATH, by name.
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
    files: Mapping[str, Path] = field(default_factory=dict)
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
        self.connection = Connection(folder / "agent.sock", self.check)
        self.host = Machine("host", self.connection)

    @classmethod
    def start(cls, boot: Boot, progress: ProgressFn) -> Emulator:
        """Boot; return when the agent answers."""
        chosen = qemus.choose(boot.image, boot.accel)
        runs = cache.root() / "run"
        runs.mkdir(exist_ok=True)
        _remove_dead(runs)
        own_turn = turn.take(runs, progress, share=boot.share)
        folder = Path(tempfile.mkdtemp(dir=runs))
        try:
            process = _launch(boot, chosen, folder, own_turn)
            emulator = cls(folder, process, chosen)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(own_turn)  # the emulator has it now
        try:
            emulator.host.ping(_BOOT_TIMEOUT_S)
        except TimeoutError:
            emulator.close()
            raise PlaceCrashed(f"the lab's host did not come up in {_BOOT_TIMEOUT_S} s: {emulator._tail()}") from None
        except (PlaceCrashed, AgentError, KeyboardInterrupt):
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

    def check(self) -> None:
        """Raise PlaceCrashed if the host under test is dead or does not answer."""
        if self._closing.is_set():
            return
        if self._process is not None and self._process.poll() is not None:
            raise PlaceCrashed(f"the lab's emulator ended ({self._process.returncode}): {self._tail()}")
        if DEATH.search(self.console_text()):
            raise PlaceCrashed(f"the lab's host crashed: {self._tail()}")
        silence_s = time.monotonic() - self.connection.last_heard
        if silence_s > max(_SILENCE_S, _BOOT_TIMEOUT_S):
            raise PlaceCrashed(f"the lab's host does not answer for {silence_s:.0f} s: {self._tail()}")

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

    def _tail(self) -> str:
        """Return the console's last words: from the line that told of death, or the last ones."""
        lines = [line.strip() for line in self.console_text().splitlines() if line.strip()]
        first = next((i for i, line in enumerate(lines) if DEATH.search(line)), max(0, len(lines) - 5))
        return " | ".join(lines[first : first + 12]) or "nothing on its console"

    def _ping_now_and_then(self) -> None:
        """Keep ``last_heard`` young while the host lives, also when all callers wait for long commands."""
        while not self._closing.wait(_PING_S):
            try:
                self.host.ping(_SILENCE_S)
            except (TimeoutError, AgentError, PlaceCrashed):
                continue  # whoever calls next is told


def _launch(boot: Boot, qemu: Qemu, folder: Path, own_turn: int) -> subprocess.Popen[bytes]:
    (folder / "initrd").write_bytes(_initrd(boot))
    (folder / "console.log").touch()
    cpu = {"kvm": "host", "tcg": _TCG_CPU}[boot.accel]
    accel = {"kvm": "kvm", "tcg": "tcg,thread=multi"}[boot.accel]
    cmdline = f"console=ttyS0 loglevel=6 panic=-1 oops=panic {QUIET} lab.role=host lab.ple={int(boot.ple)}"
    cmdline += f" {boot.extra_cmdline}"
    if boot.accel == "tcg":
        # All CPUs read this machine's TSC. On a busy machine the kernel's watchdog sees long gaps and would give it up.
        cmdline += " tsc=reliable"
    if boot.accel == "tcg" and boot.ple and not qemu.has_pause_filter:
        # It honours the PAUSE intercept but does not say that it has the filter.
        cmdline += " setcpuid=pausefilter,pfthreshold"
    argv = [
        *qemu.argv,
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", MACHINE, "-accel", accel, "-cpu", cpu, "-smp", str(boot.pcpus), "-m", f"{boot.memory_mb}M"),
        *("-kernel", str(boot.kernel.vmlinuz), "-initrd", "initrd", "-append", cmdline.strip()),
        *("-drive", f"file={boot.image.disk},format=raw,if=none,id=root,readonly=on"),
        *("-device", "virtio-blk-pci,drive=root"),
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


def _initrd(boot: Boot) -> bytes:
    """Return the initramfs with this boot's payload, which in turn holds the guests' kernel and initramfs."""
    base = initramfs(boot.kernel, boot.image)
    agent = {"payload/bin/cohort-lab-agent": boot.agent}
    programs = {f"payload/bin/{name}": path for name, path in boot.files.items()}
    guest: dict[str, bytes | Path] = {
        "payload/guest/vmlinuz": boot.kernel.vmlinuz,
        "payload/guest/initrd": base + cpio.archive(agent),
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

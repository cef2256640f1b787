# SPDX-License-Identifier: GPL-2.0-only
"""Brings both levels up: image, kernel, the host under test, its guests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from cohortlab import kvm, memory
from cohortlab.lab import binaries, cache, command, guest, image, kernels, sampling, state
from cohortlab.lab.agent import AgentError
from cohortlab.lab.command import Boot, Command
from cohortlab.lab.emulator import Emulator, TooLittleMemory, check_memory
from cohortlab.lab.guest import Guest, GuestConfig
from cohortlab.lab.patience import OwnTime, boot_times
from cohortlab.lab.qemu import Qemu
from cohortlab.lab.state import State
from cohortlab.lab.turn import Turn, is_free
from cohortlab.places import PlaceCrashed, PlaceError, PlaceFailed, ProgressFn

# What the host needs beside its guests: itself, page cache of the root, the payload, and per guest QEMU.
_HOST_MB = 768
_PER_GUEST_MB = 128
# What a guests' kernel that is none is called in errors.
GUEST_KERNEL = "--guest-kernel, guest.kernel"
# A lab that was saved goes on at once.
_ALIVE_S = 30


@dataclass
class Lab:
    """Both levels, up: booted, or ``restored``; ``state`` is what it came from or was saved as, if there is one."""

    emulator: Emulator
    guests: list[Guest]
    boot: Boot
    restored: bool = False
    state: State | None = None


def bring_up(
    configs: Sequence[GuestConfig],
    *,
    pcpus: int,
    ple: bool,
    ple_window_us: int | None = None,
    kernel: str | None = None,
    guest_kernel: str | None = None,
    accel: str = "auto",
    files: Mapping[str, bytes | Path] | None = None,
    qemu: Qemu | None = None,
    disks: Sequence[Path] = (),
    spare_mb: int = 0,
    keep: bool = False,
    extra_cmdline: str = "",
    share: bool = False,
    turn: Turn | None = None,
    fresh: bool = False,
    packages: Mapping[str, str] | None = None,
    root_files: Mapping[str, Path] | None = None,
    progress: ProgressFn = lambda text, fraction: None,
) -> Lab:
    """Return the host under test with all guests up and idle.

    ``kernel`` is a file or the start of a release, ``guest_kernel`` also None for the host's.
    ``accel`` is "kvm", "tcg" or "auto": KVM where it works nested. ``spare_mb`` is memory of the host beside that for
    itself and its guests; ``fresh``: boot, also if there is a saved state of such a lab; ``packages`` and
    ``root_files`` are what the image has beside its own. The rest is explained at ``Boot``.

    Raises:
        PlaceError: it cannot be had, for what was asked or for what this machine lacks.
        PlaceCrashed: it did not come up.
    """
    memory_mb = _HOST_MB + spare_mb + sum(config.memory_mb + _PER_GUEST_MB for config in configs)
    check_memory(memory_mb, memory.whole_mb(), "in all")
    # Before the image is built. Of what another lab has now, nothing is known until it is our turn.
    if share or is_free(cache.folder() / "run"):
        check_memory(memory_mb, memory.left_mb(), "left")
    agent = binaries.find("cohort-lab-agent")
    progress("the lab's image (built once)", None)
    disk = image.image(packages, root_files)
    progress(f"the lab's kernel: {kernel or 'the newest'} (fetched once)", None)
    of_host = kernels.kernel(kernel)
    if guest_kernel is not None:
        progress(f"its guests' kernel: {guest_kernel} (fetched once)", None)
    boot = Boot(
        image=disk,
        kernel=of_host,
        guest_kernel=None if guest_kernel is None else kernels.kernel(guest_kernel, GUEST_KERNEL),
        agent=agent,
        pcpus=pcpus,
        memory_mb=memory_mb,
        accel=accel,
        ple=ple,
        ple_window_us=ple_window_us,
        qemu=qemu,
        files=files or {},
        disks=disks,
        extra_cmdline=extra_cmdline,
        keep=keep,
        share=share,
        turn=turn,
    )
    if accel == "auto":
        boot = replace(boot, accel="tcg")
        if kvm.probe().nested:
            try:
                return up(configs, replace(boot, accel="kvm"), progress, fresh)
            except (PlaceFailed, WindowTooLong, TooLittleMemory):
                raise
            except (PlaceError, PlaceCrashed) as error:
                progress(f"nested KVM does not do here ({error}): going on in software", None)
    return up(configs, boot, progress, fresh)


class WindowTooLong(PlaceError):
    """The processor's pause filter does not count so far: that is no reason to emulate one."""


def up(configs: Sequence[GuestConfig], boot: Boot, progress: ProgressFn, fresh: bool = False) -> Lab:
    """Return the lab, from its saved state if there is one; a booted one is saved. ``fresh``: neither."""
    how = command.of(boot)
    saved = None if fresh else state.of(how, boot, configs)
    if saved is None:
        # What nobody can go on from is in nobody's way, also where no more are saved.
        state.tidy()
        return _booted(configs, boot, how, progress)
    if saved.folder.is_dir():
        progress(f"Linux {boot.kernel.release}, {boot.pcpus} pCPUs: from the saved state of such a lab", None)
        try:
            return _restored(configs, boot, how, saved, progress)
        except PlaceCrashed as why:
            progress(f"the saved state does not do: {why}", None)
            saved.remove()
    lab = _booted(configs, boot, how, progress)
    try:
        # First: what is left of earlier boots of this machine may be what fills the disk.
        state.tidy()
        saved.save(lab.emulator, lab.guests)
        state.tidy()
    except PlaceCrashed as why:
        progress(f"the next lab boots as well: {why}", None)
        try:
            lab.emulator.host.ping(_ALIVE_S)
        except (AgentError, TimeoutError, PlaceCrashed):
            lab.emulator.close()
            return _booted(configs, boot, how, progress)
        return lab
    except BaseException:
        lab.emulator.close()
        raise
    lab.state = saved
    return lab


def _restored(configs: Sequence[GuestConfig], boot: Boot, how: Command, saved: State, progress: ProgressFn) -> Lab:
    emulator, jobs = saved.restore(how, boot, progress)
    progress("the lab is up", 1.0)
    return Lab(emulator, [Guest(emulator.host, config, jobs[config.name]) for config in configs], boot, True, saved)


def _booted(configs: Sequence[GuestConfig], boot: Boot, how: Command, progress: ProgressFn) -> Lab:
    progress(f"booting the host: Linux {boot.kernel.release}, {boot.pcpus} pCPUs, {boot.accel}", None)
    emulator = Emulator.start(how, boot, progress)
    try:
        if emulator.host.run("test -c /dev/kvm").rc != 0:
            raise PlaceError(f"Linux {boot.kernel.release} has no /dev/kvm under {boot.accel}: try another --kernel")
        if sampling.has_ple(emulator.host) != boot.ple:
            # A nested processor of Intel has no PLE to offer.
            has = "does not catch" if boot.ple else "catches"
            raise PlaceError(f"guest.ple = {str(boot.ple).lower()} is not possible: KVM here {has} a guest that spins")
        us = sampling.ple(emulator.host).get("ple_window_us") if boot.ple_window_us else None
        if boot.ple_window_us and us and int(us) < 0.9 * boot.ple_window_us - 1:
            # The filter counts to 65535.
            wrong = f"{boot.ple_window_us} is not possible under {boot.accel}: must be {us} or less"
            raise WindowTooLong(f"guest.ple_window_us (--ple, --ple-window-us): {wrong}")
        guest.prepare_cgroups(emulator.host)
        progress(f"booting {len(configs)} guests", None)
        guests = [guest.start(emulator.host, config) for config in configs]
        below = boot.guest_kernel or boot.kernel
        where = f"{boot.accel}, {how.qemu.name}, Linux {boot.kernel.release}, {boot.pcpus} pCPUs, Linux {below.release}"
        wait_for(guests, emulator.clock, where)
    except (AgentError, TimeoutError) as error:
        words = emulator.last_words()
        emulator.close()
        raise PlaceCrashed(f"the lab's host was lost while its guests booted: {error}; {words}") from None
    except BaseException:
        emulator.close()
        raise
    progress("the lab is up", 1.0)
    return Lab(emulator, guests, boot)


def wait_for(guests: Sequence[Guest], clock: Callable[[], OwnTime], where: str) -> None:
    """Return when all guests are up; raise at once what befalls the first that does not come up."""
    vcpus = "+".join(str(guest.config.vcpus) for guest in guests)
    times, what = boot_times(), f"{where}, guests of {vcpus} vCPUs"
    usual_s = times.usual_s(what)
    # Not as a context manager: that would wait for the others. They end when the lab is closed.
    pool = ThreadPoolExecutor(max(1, len(guests)))
    try:
        booting = [pool.submit(guest.wait_until_up, usual_s, clock()) for guest in guests]
        took_s = [future.result() for future in as_completed(booting)]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if took_s:
        times.add(what, max(took_s))

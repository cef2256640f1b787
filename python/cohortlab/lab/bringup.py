# SPDX-License-Identifier: GPL-2.0-only
"""Brings both levels up: image, kernel, the host under test, its guests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cohortlab.lab import binaries, guest, image, kernels
from cohortlab.lab.emulator import Boot, Emulator
from cohortlab.lab.guest import Guest, GuestConfig
from cohortlab.places import PlaceError, ProgressFn

# What the host needs beside its guests: itself, page cache of the root, the payload, and per guest QEMU.
_HOST_MB = 768
_PER_GUEST_MB = 128


def bring_up(
    configs: Sequence[GuestConfig],
    *,
    pcpus: int,
    ple: bool,
    kernel: str | None = None,
    accel: str = "auto",
    files: Mapping[str, Path] | None = None,
    keep: bool = False,
    extra_cmdline: str = "",
    progress: ProgressFn = lambda text, fraction: None,
) -> tuple[Emulator, list[Guest]]:
    """Return the first level with all guests up and idle."""
    memory_mb = _HOST_MB + sum(config.memory_mb + _PER_GUEST_MB for config in configs)
    _check_memory(memory_mb)
    agent = binaries.find("cohort-lab-agent")
    progress("building the lab's image (once)", None)
    disk = image.image()
    progress(f"fetching the kernel {kernel or '(newest)'} (once)", None)
    chosen = kernels.kernel(kernel)
    boot = Boot(
        image=disk,
        kernel=chosen,
        agent=agent,
        pcpus=pcpus,
        memory_mb=memory_mb,
        accel=_accel(accel),
        ple=ple,
        files=files or {},
        extra_cmdline=extra_cmdline,
    )
    progress(f"booting the host: Linux {chosen.release}, {pcpus} pCPUs, {boot.accel}", None)
    lab = Emulator.start(boot, keep=keep)
    try:
        if not lab.host.run("test -c /dev/kvm").rc == 0:
            raise PlaceError(f"Linux {chosen.release} has no /dev/kvm in the lab: use a kernel with kvm and --accel tcg")
        guest.prepare_cgroups(lab.host)
        started = [guest.start(lab.host, config) for config in configs]
        progress(f"booting {len(started)} guests", None)
        with ThreadPoolExecutor(max(1, len(started))) as pool:
            list(pool.map(Guest.wait_until_up, started))
    except BaseException:
        lab.close()
        raise
    progress("the lab is up", 1.0)
    return lab, started


def _accel(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    return "kvm" if nested_kvm() else "tcg"


def nested_kvm() -> bool:
    """Return whether this machine's KVM can give its guests a KVM of their own."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    nested = (Path(f"/sys/module/{module}/parameters/nested") for module in ("kvm_amd", "kvm_intel"))
    return any(path.exists() and path.read_text().strip() in ("1", "Y") for path in nested)


def _check_memory(needed_mb: int) -> None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available_mb = int(line.split()[1]) // 1024
            if needed_mb > available_mb:
                what = f"the lab's host and guests need {needed_mb} MB of memory"
                raise PlaceError(f"{what}, this machine has {available_mb} MB left: give the VMs less memory_mb")

# SPDX-License-Identifier: GPL-2.0-only
"""What QEMU is started with, at both levels."""

from __future__ import annotations

from pathlib import Path

from cohortlab.lab import command, guest
from cohortlab.lab.guest import GuestConfig, Site


def drive(words: tuple[str, ...] | list[str]) -> str:
    return words[words.index("-drive") + 1]


def test_a_comma_in_the_path_of_a_disk_does_not_end_it() -> None:
    disk = Path("/srv/a,b,,c/root.ext4")
    of_host = drive(command._disk("root", disk))
    site = Site("/run/x", "/sys/fs/cgroup/x.slice", "/kernel", "/initrd", str(disk))
    of_guest = drive(guest._qemu(GuestConfig("a", 2, 512, 100, "ipi"), "kvm", site))
    for said in (of_host, of_guest):
        # As QEMU reads it: a comma ends a value, two are one.
        first, *others = said.replace(",,", "\0").split(",")
        assert first.replace("\0", ",") == f"file={disk}"
        assert {"format=raw", "if=none", "id=root"} <= set(others)

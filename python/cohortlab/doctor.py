# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab doctor``: what this machine can do, and what is missing for the rest."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from cohortlab import kvm, memory
from cohortlab.places import PlaceError
from cohortlab.table import stdout

# `cohort run` refuses anything older: OLDEST_TESTED in host/src/checks.rs.
OLDEST_KERNEL = (6, 18)
OLDEST_CLANG = 16
# The host under test, two small guests and what this machine itself needs beside them.
LAB_MEMORY_MB = 3072
# The lab's image and kernels, the compiler, and what building them needs for a while.
LAB_DISK_MB = 4096
# What unpacks Debian packages and makes a disk image of them.
IMAGE_TOOLS = ("apt-get", "dpkg-deb", "mke2fs")
# The number of the capability, in linux/capability.h.
_CAP_SYS_NICE = 23
# Where Debian keeps mke2fs; a user's PATH has it not.
_SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"


@dataclass(frozen=True)
class Finding:
    """One thing looked at: whether it is there, what it is, and what to do when it is missing."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Conclusion:
    """What can be done here: ``how`` says how, or why not."""

    what: str
    ok: bool
    how: str


@dataclass(frozen=True)
class Findings:
    findings: tuple[Finding, ...]
    conclusions: tuple[Conclusion, ...]

    def for_machines(self) -> dict[str, Any]:
        return {
            "findings": [
                {"name": f.name, "ok": f.ok, "found": f.found, "remedy": None if f.ok else f.remedy}
                for f in self.findings
            ],
            "conclusions": [{"what": c.what, "ok": c.ok, "how": c.how} for c in self.conclusions],
        }


def examine(root: Path = Path("/"), release: str | None = None) -> Findings:
    """Look at this machine; ``root`` and ``release`` (of the kernel) stand in for it in tests."""
    machine = _Machine(root, release or platform.release())
    return Findings(machine.findings(), machine.conclusions())


class _Machine:
    """The machine below ``root``; every look at it is made once."""

    def __init__(self, root: Path, release: str) -> None:
        self.root = root
        self.release = release
        self.kvm = kvm.probe(root / "dev/kvm")
        self.is_root = os.geteuid() == 0
        # Those that this process may use.
        self.cpus = len(os.sched_getaffinity(0))
        self.has_sudo = shutil.which("sudo") is not None
        self.has_sched_ext = (root / "sys/kernel/sched_ext/state").exists()
        self.has_btf = (root / "sys/kernel/btf/vmlinux").exists()
        self.is_new_enough = _version(release) >= OLDEST_KERNEL
        self.memory_mb = memory.left_mb(root / "proc/meminfo")
        self.cache, self.no_cache = _cache_folder()
        self.free_mb = 0 if self.no_cache else _free_mb(self.cache)
        self.no_tools = [name for name in IMAGE_TOOLS if shutil.which(name, path=_SBIN) is None]
        self.not_built = _not_built()

    def findings(self) -> tuple[Finding, ...]:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        newer = (
            f"boot a kernel of {oldest} or newer with CONFIG_SCHED_CLASS_EXT=y, such as Debian's from trixie-backports"
        )
        rights = "root" if self.is_root else "sudo" if self.has_sudo else "neither"
        return (
            Finding("root or sudo", self.is_root or self.has_sudo, rights, "run as root, or install sudo"),
            self._kvm(),
            Finding(
                "nested virtualization",
                self.kvm.nested,
                "guests can have a KVM of their own" if self.kvm.nested else "not offered to guests",
                "load kvm_intel or kvm_amd with nested=1; in a cloud VM, choose a type that offers it",
            ),
            Finding("CPUs", self.cpus >= 2, str(self.cpus), "2 or more are needed for the lab's scenarios"),
            Finding(
                "memory",
                self.memory_mb >= LAB_MEMORY_MB,
                f"{self.memory_mb} MB available",
                f"{LAB_MEMORY_MB} MB are needed for the lab",
            ),
            Finding("sched_ext", self.has_sched_ext, self._sched_ext(), newer),
            Finding("BTF", self.has_btf, "/sys/kernel/btf/vmlinux", "boot a kernel with CONFIG_DEBUG_INFO_BTF=y"),
            Finding("kernel", self.is_new_enough, f"{self.release} (oldest tested: {oldest})", newer),
            _clang(),
            _program("cargo", "`make setup` brings one"),
            Finding(
                "image tools",
                not self.no_tools,
                "not found: " + ", ".join(self.no_tools) if self.no_tools else ", ".join(IMAGE_TOOLS),
                "apt-get install apt dpkg e2fsprogs, on Debian",
            ),
            Finding("built programs", not self.not_built, self.not_built or "cohort, cohort-lab-agent", "make build"),
            Finding("cache", not self.no_cache, self._cache_state(), "COHORT_CACHE=FOLDER puts it elsewhere"),
            self._emulator(),
            self._timers(),
            Finding(
                "disk space",
                self.free_mb >= LAB_DISK_MB,
                "not known without a cache" if self.no_cache else f"{self.free_mb} MB free at {self.cache}",
                f"{LAB_DISK_MB} MB are needed; COHORT_CACHE=FOLDER puts the cache elsewhere",
            ),
        )

    def conclusions(self) -> tuple[Conclusion, ...]:
        return (self._lab(), _simulator(), self._run())

    def _lab(self) -> Conclusion:
        missing = []
        if self.no_tools and not self._has_cache():
            missing.append(f"{', '.join(self.no_tools)} cannot be found")
        if self.not_built:
            missing.append("its programs are not built yet (make build)")
        if self.cpus < 2:
            missing.append("there is only one CPU")
        if self.memory_mb < LAB_MEMORY_MB:
            missing.append(f"only {self.memory_mb} MB of memory are available")
        if self.no_cache:
            missing.append("its cache folder cannot be used")
        elif self.free_mb < LAB_DISK_MB and not self._has_cache():
            missing.append(f"only {self.free_mb} MB of disk are free")
        if missing:
            return Conclusion("lab", False, f"no, because {' and '.join(missing)}")
        if self.kvm.nested:
            return Conclusion("lab", True, "yes, under KVM")
        why = "KVM offers no nested virtualization" if self.kvm.usable else self.kvm.reason
        return Conclusion("lab", True, f"yes, under emulation (slower), because {why}")

    def _run(self) -> Conclusion:
        missing = []
        if not self.is_new_enough:
            missing.append(f"the kernel {self.release} is older than {'.'.join(map(str, OLDEST_KERNEL))}")
        if not self.has_sched_ext:
            missing.append("the running kernel has no sched_ext")
        if not self.has_btf:
            missing.append("the running kernel has no BTF")
        if _read(self.root / "sys/kernel/realtime") == "1":
            missing.append("the running kernel is built with PREEMPT_RT")
        if isolated := _read(self.root / "sys/devices/system/cpu/isolated"):
            missing.append(f"CPUs {isolated} are isolated by isolcpus= on the kernel's command line")
        if not (self.is_root or self.has_sudo):
            missing.append("you are not root and there is no sudo")
        if self._active_scheduler():
            missing.append(f"another scheduler ({self._active_scheduler()}) is loaded")
        if missing:
            return Conclusion("cohort run", False, f"no, because {' and '.join(missing)}")
        return Conclusion("cohort run", True, "yes" if self.is_root else "yes, with sudo")

    def _kvm(self) -> Finding:
        remedy = "enable virtualization in the firmware and load kvm_intel or kvm_amd"
        if self.kvm.present and "Permission denied" in self.kvm.reason:
            remedy = "add yourself to the group kvm, or run as root"
        found = "a test guest ran" if self.kvm.usable else self.kvm.reason
        return Finding("/dev/kvm", self.kvm.usable, found, remedy)

    def _active_scheduler(self) -> str:
        """Return the name of the sched_ext scheduler that is loaded; empty when none is."""
        state = _read(self.root / "sys/kernel/sched_ext/state")
        if state in ("", "disabled"):
            return ""
        return _read(self.root / "sys/kernel/sched_ext/root/ops") or state

    def _sched_ext(self) -> str:
        if not self.has_sched_ext:
            return "not in the running kernel"
        active = self._active_scheduler()
        return f"{active} is loaded" if active else "no scheduler is loaded"

    def _emulator(self) -> Finding:
        """Tell which emulator the lab would use, as far as that can be told before the lab's image is there.

        And what it costs, if it is not the best.
        """
        from cohortlab.lab import kinds, qemu, qemu_build

        wanted = os.environ.get(qemu.VARIABLE)
        if wanted:
            cost = "" if self.kvm.nested else next((kinds.COSTS[kind] for kind in qemu.KINDS if kind == wanted), "")
            return Finding("emulator", True, f"{qemu.VARIABLE}={wanted}" + (f": {cost}" if cost else ""))
        if self.kvm.nested:
            return Finding("emulator", True, "not needed: the lab runs under KVM")
        built = qemu_build.built() is not None
        return Finding("emulator", built, "QEMU, patched" if built else kinds.UNPATCHED, "make emulator")

    def _timers(self) -> Finding:
        """Tell whether the emulator's main loop may be a real-time thread."""
        if self.kvm.nested:
            return Finding("lab's timers", True, "on time: the processor's own")
        may = self._may_set_priorities() or resource.getrlimit(resource.RLIMIT_RTPRIO)[0] != 0
        found = "on time" if may else "late now and then: the emulator may not be a real-time thread"
        return Finding("lab's timers", may, found, "run as root with CAP_SYS_NICE, or with `ulimit -r 1`")

    def _may_set_priorities(self) -> bool:
        """Whether this process has CAP_SYS_NICE, which root in a container mostly has not."""
        found = re.search(r"^CapEff:\s+([0-9a-f]+)$", _read(self.root / "proc/self/status"), re.MULTILINE)
        return bool(int(found[1], 16) >> _CAP_SYS_NICE & 1) if found else self.is_root

    def _has_cache(self) -> bool:
        return not self.no_cache and any(self.cache.glob("root-*"))

    def _cache_state(self) -> str:
        if self.no_cache:
            return self.no_cache
        if not self.cache.is_dir():
            return f"{self.cache}: empty, the first run fills it"
        entries = sorted(path.name for path in self.cache.iterdir() if path.is_dir() and not path.name.startswith("."))
        return f"{self.cache}: {', '.join(entries) or 'empty, the first run fills it'}"


def _cache_folder() -> tuple[Path, str]:
    """Return where the cache folder is or would be, and why it cannot be used; nothing if it can."""
    from cohortlab.lab import cache_dir

    try:
        folder = cache_dir()
    except PlaceError as error:
        return Path(), str(error)
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        pass  # the first run makes it
    except OSError as error:
        return folder, f"{folder}: cannot be read: {error.strerror}"
    return folder, ""


def _not_built() -> str:
    """Return what `make build` has yet to make; empty when all is there."""
    from cohortlab.lab import binaries

    missing = []
    for name in ("cohort", "cohort-lab-agent"):
        try:
            binaries.find(name)
        except PlaceError:
            missing.append(name)
    return f"no {' and no '.join(missing)}" if missing else ""


def _simulator() -> Conclusion:
    from cohortlab.native import native

    try:
        native()
    except PlaceError as error:
        return Conclusion("simulator", False, f"no, because {error}")
    return Conclusion("simulator", True, "yes")


def _version(release: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _free_mb(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free >> 20


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _program(name: str, remedy: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or "not found", remedy)


def _clang() -> Finding:
    """Look for a clang that is new enough, also under the names that carry its version."""
    remedy = f"apt-get install clang-{OLDEST_CLANG}, or newer"
    names = [os.environ.get("CLANG", ""), "clang", *(f"clang-{n}" for n in range(30, OLDEST_CLANG - 1, -1))]
    newest = ""
    for path in filter(None, (shutil.which(name) for name in names if name)):
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            newest = newest or f"{path} does not start: {error.strerror}"
            continue
        found = re.search(r"version (\d+)[\d.]*", done.stdout)
        if found and int(found[1]) >= OLDEST_CLANG:
            return Finding("clang", True, f"{path}, {found[0]}")
        newest = newest or f"{path} is too old"
    return Finding("clang", False, newest or "not found", remedy)


def print_findings(console: Console, findings: Findings) -> None:
    """Print one line for each finding, then what follows from them."""
    widest = max(len(finding.name) for finding in findings.findings)
    for finding in findings.findings:
        state = ("ok       ", "green") if finding.ok else ("missing  ", "yellow")
        text = finding.found if finding.ok else f"{finding.found}: {finding.remedy}"
        console.print(Text.assemble(state, f"{finding.name:{widest}}  {text}"), soft_wrap=True)
    console.print()
    for conclusion in findings.conclusions:
        how = (conclusion.how, "green" if conclusion.ok else "yellow")
        console.print(Text.assemble((f"{conclusion.what}: ", "bold"), how), soft_wrap=True)


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else, on standard output.")
def command(as_json: bool) -> None:
    """Tell what this machine can do, and what is missing for the rest."""
    findings = examine()
    if as_json:
        print(json.dumps(findings.for_machines(), indent=2))
    else:
        print_findings(stdout(), findings)

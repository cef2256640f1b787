# SPDX-License-Identifier: GPL-2.0-only
"""The scenario of most tests: a VM with programs beside one that computes, each of 2 vCPUs, on 2 pCPUs."""

from pathlib import Path

QUICK = """
name = "quick"
[[thread]]
name = "t"
count = 2
times = 10
steps = [{ compute = { exp = "1ms" } }]
"""


def two_vms(*programs: str, name: str = "small") -> str:
    """Return it as TOML; more of the second VM can follow."""
    listed = ", ".join(f'"{program}"' for program in programs)
    return f"""
name = "{name}"
[host]
pcpus = 2
[[vm]]
name = "work"
vcpus = 2
memory_mb = 256
programs = [{listed}]
[[vm]]
name = "hog"
vcpus = 2
memory_mb = 256
load = "cpu-hog"
"""


def with_quick(folder: Path) -> Path:
    """Write the scenario with a program of some milliseconds, ``quick``, and its model; return the scenario's file."""
    (folder / "workloads" / "models").mkdir(parents=True)
    (folder / "workloads" / "models" / "quick.toml").write_text(QUICK)
    (folder / "small.toml").write_text(two_vms("quick"))
    return folder / "small.toml"

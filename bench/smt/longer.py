# SPDX-License-Identifier: GPL-2.0-only
"""A scenario with its programs' models made so many times as long, beginnings apart, in a folder of its own.

    build/venv/bin/python bench/smt/longer.py scenarios/twelve-on-24.toml 20 FOLDER

The models that come with the project are of programs as the lab runs them on two vCPUs, some 0.3 s long; a third of
that is their beginning. On a host with many pCPUs little else is left of them.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

MODELS = Path(__file__).parents[2] / "workloads" / "models"
# The beginning's: what the shell and the program do before, and what wakes one vCPU meanwhile.
BEGINNING = {"start", "helper", "tick"}


def main(scenario: Path, times: int, folder: Path) -> None:
    """Write the scenario and its models to `folder`."""
    models = folder / "workloads" / "models"
    models.mkdir(parents=True, exist_ok=True)
    shutil.copy(scenario, folder)
    vms = tomllib.loads(scenario.read_text())["vm"]
    for program in {program for vm in vms for program in vm.get("programs", ())}:
        (models / f"{program}.toml").write_text(longer((MODELS / f"{program}.toml").read_text(), times))


def longer(model: str, times: int) -> str:
    """Return the model with the work of all threads but the beginning's so many times."""
    head, *threads = model.split("[[thread]]")
    return "[[thread]]".join([head, *(_longer(thread, times) for thread in threads)])


def _longer(thread: str, times: int) -> str:
    said = tomllib.loads(thread)
    # Those that the beginning starts and awaits have no beginning to wait for, and answer it.
    answers = said["name"] == "child" and "first" not in said
    if said["name"] in BEGINNING or answers:
        return thread
    return re.sub(r"^times = (\d+)$", lambda found: f"times = {int(found[1]) * times}", thread, flags=re.MULTILINE)


if __name__ == "__main__":
    if len(sys.argv) != 4 or not Path(sys.argv[1]).is_file() or not sys.argv[2].isdecimal() or not int(sys.argv[2]):
        allowed = "a scenario's file, an integer of 1 or more, and a folder"
        print(f"{sys.argv[0]}: {' '.join(sys.argv[1:])!r} is not allowed: must be {allowed}", file=sys.stderr)
        sys.exit(2)
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

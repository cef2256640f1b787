# SPDX-License-Identifier: GPL-2.0-only
"""The comparisons of docs/measurements.md and docs/default-policy.md, one after the other, of one Cohort.

    build/venv/bin/python bench/campaign.py FOLDER [NAME...]

Runs the comparisons of bench/campaign.toml that have these names, such as 2x2 or "sim-*", or all: those in the lab take
more than two hours on two cores. Each is kept in FOLDER/NAME when it has ended, and not run again, so a campaign can be
stopped and goes on later; with another Cohort it does not. `bench/tables.py FOLDER/NAME` prints a comparison's table.

Exit code: 0 all were measured, 1 one was not, 2 wrong input, 130 interrupted.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tables import refuse

REPO = Path(__file__).resolve().parents[1]
PLAN = REPO / "bench" / "campaign.toml"
# What figures depend on.
SOURCES = ("bpf", "hardware", "host", "lab", "python", "scenarios", "sim", "workloads")


def main(words: Sequence[str]) -> int:
    if not words:
        refuse("FOLDER is missing: where the results of comparisons are kept")
    out, wanted = Path(words[0]), words[1:]
    plan = planned()
    names = list(plan)
    chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted or ["*"])]
    for name in wanted:
        if not any(fnmatchcase(known, name) for known in names):
            refuse(f'NAME: "{name}" is not allowed: must be of {PLAN.relative_to(REPO)}: {", ".join(names)}')
    _of_one_version(out)
    missing = []
    for number, name in enumerate(chosen, 1):
        about = f"{number} of {len(chosen)}: {name}"
        if (out / name).is_dir():
            print(f"{about}: is there")
            continue
        print(f"{about}: cohortlab compare {shlex.join(plan[name])}", flush=True)
        begin_s = time.monotonic()
        if not _measured(plan[name], out, name):
            missing.append(name)
        print(f"{about}: {time.monotonic() - begin_s:.0f} s", flush=True)
    if missing:
        print(f"not measured: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def planned() -> dict[str, list[str]]:
    """Return what follows ``cohortlab compare`` for each comparison, with what its policies' labels stand for."""
    read = tomllib.loads(PLAN.read_text(encoding="utf-8"))
    plan = {}
    for one in read["comparison"]:
        for each in one.get("each", [""]):
            words = shlex.split(one["command"].replace("{}", each))
            labels = [label for label in words[words.index("--policies") + 1].split(",") if label in read["policies"]]
            more = [word for label in labels for word in ("--policy-args", f"{label}={read['policies'][label]}")]
            plan[one["name"].replace("{}", each)] = words + more
    return plan


def _measured(words: Sequence[str], out: Path, name: str) -> bool:
    """Run a comparison, and keep it if all of it was measured; what is not whole stays beside it, as NAME.part."""
    part = out / f"{name}.part"
    argv = [sys.executable, "-m", "cohortlab", "compare", *words, "--out", str(part.absolute())]
    if subprocess.run(argv, cwd=REPO, check=False).returncode != 0:
        return False
    part.rename(out / name)
    return True


def _of_one_version(out: Path) -> None:
    """Refuse a folder of another Cohort, by the last commit that changed what is measured; a new one is told it.

    Also by what has changed since that commit, and is in none.
    """

    def git(*words: str) -> bytes:
        argv = ["git", "-C", str(REPO), *words, "--", *SOURCES]
        return subprocess.run(argv, capture_output=True, check=True).stdout

    version = git("log", "-1", "--format=%h", "--abbrev=12").decode().strip()
    # What is not committed may change again: it is told by what it is. New files are not in the diff.
    changed = git("diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv")
    for name in sorted(filter(None, git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0"))):
        changed += name + b"\0" + (REPO / os.fsdecode(name)).read_bytes() + b"\0"
    if changed:
        version += f"-changed-{hashlib.sha256(changed).hexdigest()[:12]}"
    file = out / "version"
    out.mkdir(parents=True, exist_ok=True)
    if file.is_file() and (was := file.read_text(encoding="utf-8").strip()) != version:
        refuse(f"{file}: has {was}, and this is {version}: must be another FOLDER")
    file.write_text(version + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        sys.exit(130)

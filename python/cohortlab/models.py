# SPDX-License-Identifier: GPL-2.0-only
"""Models of programs, for the simulator: ``models/NAME.toml`` in a folder of workloads, or rt-app's JSON.

What is read here is what everybody needs to know of a model. All of it the simulator reads, and says what is wrong.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohortlab import shipped
from cohortlab.errors import BadInput, one_line
from cohortlab.tomlmodel import read_toml, shown

SHIPPED = shipped.folder("workloads") / "models"
RT_APP = ".json"
# Of a model that no workload file tells more about: simulated time, so more than a lab would wait.
TIMEOUT_S = 600
# What rt-app calls for ever.
_FOREVER = -1


@dataclass(frozen=True)
class About:
    """What a model's file says about the program as a whole.

    Attributes:
        unit: of its rate; None: its figure is the time that it takes.
        is_endless: it never ends: a load.
    """

    name: str
    title: str
    unit: str | None
    is_endless: bool


def folders_in(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return where the models of these folders of workloads are."""
    return tuple(folder / "models" for folder in folders)


def read(path: Path) -> About:
    """Return what is in a model's file, or raise BadInput."""
    return _of_rt_app(path) if path.suffix == RT_APP else _of_toml(path)


def described(path: Path) -> dict[str, Any]:
    """Return a model as the simulator takes it, or raise BadInput."""
    text = _text(path)
    # By name what was compiled in, and not what somebody has changed since.
    if path.parent == SHIPPED and text == _native().model_text(path.stem):
        return {"model": path.stem}
    return {"program": json.loads(_parsed(path, text))}


def has_rate(model: Mapping[str, Any]) -> bool:
    """Return whether the figure of a model, as the simulator takes it, is a rate."""
    program: Any = model.get("program")
    if program is None:
        name = model["model"]
        program = json.loads(_parsed(SHIPPED / f"{name}.toml", _native().model_text(name)))
    metric = program.get("metric")
    return isinstance(metric, Mapping) and "rate" in metric


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, text: str) -> str:
    module = _native()
    try:
        made: str = (module.rt_app if path.suffix == RT_APP else module.model)(str(path), text)
    except module.ConfigError as error:
        raise BadInput(one_line(str(error))) from None
    return made


def _native() -> Any:
    # Only who simulates has it.
    from cohortlab.native import native

    return native()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: must be text in UTF-8") from None


def _of_toml(path: Path) -> About:
    data = read_toml(path)
    threads = data.get("thread")
    if not isinstance(threads, list) or not all(isinstance(thread, dict) for thread in threads):
        raise BadInput(f"{path}: thread: is missing: must be [[thread]] tables")
    if data.get("name") != path.stem:
        raise BadInput(f'{path}: name: must be "{path.stem}", the file\'s name')
    metric = data.get("metric")
    rate = metric.get("rate") if isinstance(metric, dict) else None
    unit = rate.get("unit", "") if isinstance(rate, dict) else None
    if not isinstance(unit, str | None):
        raise BadInput(f"{path}: metric.rate.unit: {shown(unit)} is not allowed: must be a text")
    endless = all(thread.get("background") is True or thread.get("times") == "forever" for thread in threads)
    return About(path.stem, str(data.get("title") or path.stem), unit if unit is None else unit or "1/s", endless)


def _of_rt_app(path: Path) -> About:
    # rt-app allows comments.
    text = re.sub(r"/\*.*?\*/", "", _text(path), flags=re.DOTALL)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: is not JSON: {one_line(str(error))}") from None
    tasks = data.get("tasks") if isinstance(data, dict) else None
    if not isinstance(tasks, Mapping):
        raise BadInput(f"{path}: tasks: is missing: must be an object of tasks")
    endless = all(isinstance(task, Mapping) and task.get("loop", _FOREVER) == _FOREVER for task in tasks.values())
    overall = data.get("global")
    duration = overall.get("duration", _FOREVER) if isinstance(overall, Mapping) else _FOREVER
    timed = endless and duration != _FOREVER
    return About(path.stem, f"rt-app: {path.name}", "loops/s" if timed else None, endless and not timed)

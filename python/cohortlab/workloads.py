# SPDX-License-Identifier: GPL-2.0-only
"""Workload files: a name, the guest command behind it, and how its figure is read; and which model stands for it.

``workloads/NAME.toml`` of this project holds the ones that come with it; a folder ``workloads`` next to the
scenario file goes first, so that a scenario can bring its own. Models are in ``models`` of the same folders
(``models.py``); a program may have a command, a model, or both.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from cohortlab import models, shipped
from cohortlab.errors import one_line
from cohortlab.places import PlaceError
from cohortlab.tomlmodel import Model, parse, read_toml, refuse, shown

SHIPPED = shipped.folder("workloads")

Text = Annotated[str, Field(min_length=1)]
Package = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]


class WorkloadError(PlaceError):
    """A run of the workload gave no usable figure: it failed, did not end in time, or its output has none."""


class WorkloadTimeout(WorkloadError):
    """A run of the workload did not end in time."""


class Metric(Model):
    """How a run's figure is read from its output."""

    kind: Literal["elapsed", "rate"] = Field(description='"elapsed" (less is better) or "rate" (more is better)')
    pattern: Text | None = Field(None, description="a regular expression with one group: the figure in the output")
    unit: Text = Field("s", description='the unit of the figure; "s" when kind is "elapsed"')


class Workload(Model):
    """A program that runs in a guest."""

    name: Text = Field(description="the file's name without .toml")
    title: Text = Field(description="a short text")
    command: Text | None = Field(None, description="a command line for the guest's sh")
    setup: Text | None = Field(None, description="a command line for the guest's sh, run first and not timed")
    setup_timeout_s: int = Field(120, ge=1, le=3600, description="an integer from 1 to 3600")
    timeout_s: int = Field(120, ge=1, le=3600, description="an integer from 1 to 3600")
    provokes: str = Field("", description="a short text: what it makes the guest kernel do")
    packages: Annotated[tuple[Package, ...], Strict(False)] = Field((), description="a list of Debian packages")
    # From here on absolute, once load() has looked for them.
    files: Annotated[tuple[Text, ...], Strict(False)] = Field((), description="a list of files beside this one")
    background: bool = Field(False, description="true (endless, only for load) or false")
    metric: Metric | None = Field(None, description="a table with kind, pattern and unit")

    def figure(self, output: str, wall_s: float) -> float:
        """Return the figure of a run that printed ``output`` and took ``wall_s`` seconds in the guest.

        Raises:
            WorkloadError: the output does not contain the figure.
        """
        value = wall_s
        if self.metric is not None and self.metric.pattern is not None:
            found = re.search(self.metric.pattern, output, re.MULTILINE)
            # A group that may be left out has found nothing where it was.
            if found is None or found.group(1) is None:
                tail = one_line(output)[-160:]
                raise WorkloadError(f'{self.name}: its output does not match "{self.metric.pattern}"; it ends: {tail}')
            try:
                value = float(found.group(1))
            except ValueError:
                raise WorkloadError(f'{self.name}: "{found.group(1)}" in its output is not a number') from None
        if not (math.isfinite(value) and value > 0):
            raise WorkloadError(f"{self.name}: the figure {value} is not a number above 0")
        return value

    @property
    def unit(self) -> str:
        return self.metric.unit if self.metric else "s"

    @property
    def is_rate(self) -> bool:
        return self.metric is not None and self.metric.kind == "rate"


def folders_for(scenario: Path) -> tuple[Path, ...]:
    """Return where the workloads of a scenario file are looked for, first one first."""
    return (scenario.resolve().parent / "workloads", SHIPPED)


def known_names(folders: Sequence[Path]) -> list[str]:
    """Return every workload name there is, sorted."""
    return sorted({file.stem for folder in _all(folders) if folder.is_dir() for file in folder.glob("*.toml")})


def find(name: str, folders: Sequence[Path]) -> tuple[Workload, Path | None] | None:
    """Return workload ``name`` and its model's file, if it has one; or None if neither exists.

    Raises:
        BadInput: its file is wrong, or it has neither a command nor a model.
    """
    if name not in known_names(folders):  # also keeps "../x" from leaving the folders
        return None
    file, model = _first(name, folders), _first(name, models.folders_in(folders))
    if file is None:
        assert model is not None, "known_names() has found one of them"
        return of_model(model), model
    workload = load(file)
    if workload.command is None and model is None:
        refuse(file, ("command",), "is missing", f"a command line for the guest's sh, unless models/{name}.toml exists")
    return workload, model


def _all(folders: Sequence[Path]) -> tuple[Path, ...]:
    return (*folders, *models.folders_in(folders))


def _first(name: str, folders: Sequence[Path]) -> Path | None:
    return next((file for folder in folders if (file := folder / f"{name}.toml").is_file()), None)


def file_of(name: str, scenario: Path) -> Path | None:
    """Return the workload file, if there is one, that a scenario finds by ``name``."""
    return _first(name, folders_for(scenario))


def of_model(path: Path) -> Workload:
    """Return the workload of a model, or of rt-app's JSON, that no workload file tells more about."""
    about = models.read(path)
    rt_app = path.suffix == models.RT_APP
    metric = Metric(kind="rate", pattern=None, unit=about.unit) if about.unit is not None else Metric(kind="elapsed")
    return Workload(
        name=about.name,
        title=about.title,
        command=f"rt-app {shlex.quote(path.name)}" if rt_app and about.unit is None and not about.is_endless else None,
        packages=("rt-app",) if rt_app else (),
        files=(str(path.absolute()),) if rt_app else (),
        timeout_s=models.TIMEOUT_S,
        background=about.is_endless,
        metric=None if about.is_endless else metric,
    )


def load(path: Path) -> Workload:
    """Return the workload in ``path``, or raise BadInput."""
    workload = of_data(read_toml(path), path)
    return workload.model_copy(update={"files": tuple(_file(path, at, name) for at, name in enumerate(workload.files))})


def _file(path: Path, at: int, name: str) -> str:
    file = path.parent / name
    if Path(name).name != name or not file.is_file():
        refuse(path, ("files", at), f"{shown(name)} is not allowed", f"the name of a file in {path.parent}")
    return str(file.absolute())


def of_data(data: Mapping[str, Any], path: Path) -> Workload:
    """Return the workload that a file's data describe, or raise BadInput; ``path`` is named in it."""
    workload = parse(Workload, data, path)
    if workload.name != path.stem:
        refuse(path, ("name",), f"{shown(workload.name)} is not allowed", f'"{path.stem}", the file\'s name')
    metric = workload.metric
    if metric is None:
        if not workload.background:
            refuse(path, ("metric",), "is missing", "a table with kind, pattern and unit (or background = true)")
        return workload
    if metric.pattern is not None and not _has_one_group(metric.pattern):
        wrong = f"{shown(metric.pattern)} is not allowed"
        refuse(path, ("metric", "pattern"), wrong, "a regular expression with one group: the figure")
    if metric.kind == "rate" and metric.pattern is None and workload.command is not None:
        refuse(path, ("metric", "pattern"), "is missing", "given when kind is rate: the figure is in the output")
    if metric.kind == "elapsed" and metric.unit != "s":
        refuse(path, ("metric", "unit"), f"{shown(metric.unit)} is not allowed", '"s" when kind is "elapsed"')
    return workload


def _has_one_group(pattern: str) -> bool:
    try:
        return re.compile(pattern).groups == 1
    except (re.error, OverflowError, RecursionError):
        # Of a number of times that is too large, and of groups in each other that are too many, Python says so.
        return False

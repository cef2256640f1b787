# SPDX-License-Identifier: GPL-2.0-only
"""An experiment of a paper as its file describes it, ``papers/PAPER/EXPERIMENT.toml``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from cohortlab import shipped
from cohortlab.errors import BadInput
from cohortlab.reproduce.formula import Formula
from cohortlab.tomlmodel import Model, parse, read_toml, refuse, shown

SHIPPED = shipped.folder("papers")
ALL = "all"
# What a formula calls one of [values] by: values.NAME.
VALUES = "values"

NAME = r"^[a-z][a-z0-9_-]*$"
# A TOML integer is one as well.
Number = float
Fields = dict[str, Any]


class RunTable(Model):
    """Runs of one scenario: all combinations of what ``each`` lists, with what ``set`` says the same in all."""

    name: str = Field(pattern=NAME, description="lower-case letters, digits, '-' and '_'")
    scenario: str = Field(min_length=1, description="the name of a file in the paper's folder scenarios/")
    set: Fields = Field({}, description="a table of fields as `cohortlab sweep --axis` has them")
    each: dict[str, Annotated[list[Any], Strict(False)]] = Field(
        {}, description="a table of fields, as `cohortlab sweep --axis` has them, with a list of values each"
    )
    vm: str | None = Field(None, description="the name of the VM whose figures are meant")


class FigureTable(Model):
    """A figure that the paper published, and how ours is computed."""

    name: str = Field(min_length=1, description="a text")
    place: str = Field(min_length=1, description='where in the paper it is, as "Table 1"')
    paper: Number = Field(description="a number")
    # The paper gives a range: `paper` is its lower end.
    up_to: Number | None = Field(None, description="a number, the upper end of a range")
    ours: str = Field(min_length=1, description="a formula of the runs' figures")
    unit: str = Field("", description="a text")
    # "parameter": what the model was given. "expected": what the paper expected and did not measure. "other": ours is
    # under another scheduler than the paper's.
    # "derived": it follows from figures that are there as well, and is not counted twice.
    kind: Literal["predicted", "parameter", "expected", "other", "derived"] = Field(
        "predicted", description='"predicted", "parameter", "expected", "other" or "derived"'
    )
    # The paper gives no more than a bound: "over half", "at least 3 % fewer".
    bound: Literal["", "at least", "at most"] = Field("", description='"at least" or "at most"')
    # Ours is a part: how many of how many. Of each seed alone they say how certain it is.
    counts: Annotated[tuple[str, str] | None, Strict(False)] = Field(
        None, description="a list of two formulas: how many, and of how many"
    )
    within: Number = Field(1.5, gt=1, description="a number above 1")
    group: str = Field("", description="a text: figures of one group are drawn together")
    why: str = Field("", description="a text")


class FindingTable(Model):
    """What the paper found, and the check that says whether we find it too."""

    says: str = Field(min_length=1, description="a text")
    place: str = Field(min_length=1, description='where in the paper it is, as "section 5.2"')
    check: str = Field(min_length=1, description="a formula that is true or false")
    why: str = Field("", description="a text")


class OwnTable(Model):
    """A figure of ours that the paper does not have: what another policy makes of its experiment."""

    name: str = Field(min_length=1, description="a text")
    ours: str = Field(min_length=1, description="a formula of the runs' figures")
    unit: str = Field("", description="a text")
    goal: Number | None = Field(None, description="a number")
    group: str = Field("", description="a text")


class CdfTable(Model):
    """A picture of how a figure is distributed in some runs."""

    title: str = Field(min_length=1, description="a text")
    what: str = Field(min_length=1, description="the name of a distribution, as in docs/metrics.md")
    of: dict[str, str] = Field(min_length=1, description="a table: a label for each run")


class File(Model):
    """An experiment."""

    title: str = Field(min_length=1, description="a text")
    source: str = Field(min_length=1, description="a text: the paper")
    parameters: str = Field(min_length=1, description="a text: which column of the paper parameters came from")
    policies: dict[str, str] = Field({}, description="a table: what each policy of [[run]] stands for")
    # Seeds; the figure is the median.
    rounds: int = Field(3, ge=1, le=100, description="an integer from 1 to 100")
    run: Annotated[tuple[RunTable, ...], Strict(False)] = Field(min_length=1, description="one or more [[run]] tables")
    # What several formulas have in common: each may use those before it.
    values: dict[Annotated[str, Field(pattern=NAME)], str] = Field({}, description="a table: a formula for each name")
    figure: Annotated[tuple[FigureTable, ...], Strict(False)] = Field((), description="[[figure]] tables")
    finding: Annotated[tuple[FindingTable, ...], Strict(False)] = Field((), description="[[finding]] tables")
    own: Annotated[tuple[OwnTable, ...], Strict(False)] = Field((), description="[[own]] tables")
    cdf: Annotated[tuple[CdfTable, ...], Strict(False)] = Field((), description="[[cdf]] tables")


@dataclass(frozen=True)
class Experiment:
    """A checked file; ``path`` is named in errors."""

    paper: str
    name: str
    path: Path
    file: File

    @property
    def label(self) -> str:
        return f"{self.paper}:{self.name}"

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """All figures of runs that its formulas need."""
        used = (name for _, text in formulas(self.file) for name in Formula(text).names)
        return frozenset(name for name in used if not name.startswith(f"{VALUES}."))


def formulas(file: File) -> list[tuple[tuple[str | int, ...], str]]:
    """Return every formula of a file with its place in it."""
    found: list[tuple[tuple[str | int, ...], str]] = [((VALUES, name), text) for name, text in file.values.items()]
    found += [(("figure", at, "ours"), figure.ours) for at, figure in enumerate(file.figure)]
    for at, figure in enumerate(file.figure):
        found += [(("figure", at, "counts", place), text) for place, text in enumerate(figure.counts or ())]
    found += [(("finding", at, "check"), finding.check) for at, finding in enumerate(file.finding)]
    found += [(("own", at, "ours"), own.ours) for at, own in enumerate(file.own)]
    return found


def labels(folder: Path = SHIPPED) -> list[str]:
    """Return ``PAPER:EXPERIMENT`` of all that there are."""
    return [f"{path.parent.name}:{path.stem}" for path in sorted(folder.glob("*/*.toml"))]


def find(wanted: str, folder: Path = SHIPPED) -> list[Experiment]:
    """Return the experiments that ``all``, ``PAPER`` or ``PAPER:EXPERIMENT`` names, or raise BadInput."""
    known = labels(folder)
    found = [label for label in known if wanted in (ALL, label, label.partition(":")[0])]
    if not found:
        papers = dict.fromkeys(label.partition(":")[0] for label in known)
        raise BadInput(f"{shown(wanted)} is no experiment: must be one of {', '.join([ALL, *papers, *known])}")
    return [load(folder / label.replace(":", "/")) for label in found]


def load(path: Path) -> Experiment:
    """Return the experiment in ``path`` (without its ending), or raise BadInput."""
    path = path.with_suffix(".toml")
    file = parse(File, read_toml(path), path)
    names = [run.name for run in file.run]
    for index, run in enumerate(file.run):
        if run.name in (*names[:index], VALUES):
            refuse(path, ("run", index, "name"), f"{shown(run.name)} is not allowed", f"unique, and not {VALUES}")
    for index, figure in enumerate(file.figure):
        if figure.up_to is not None and figure.up_to <= figure.paper:
            refuse(path, ("figure", index, "up_to"), f"{figure.up_to:g} is not allowed", f"above {figure.paper:g}")
    known: list[str] = []
    for location, text in formulas(file):
        try:
            used = Formula(text).names
        except BadInput as error:
            refuse(path, location, str(error), "a formula such as two.dedup.value / one.dedup.value")
        for name in used:
            of, _, rest = name.partition(".")
            if of == VALUES and rest not in known:
                refuse(path, location, f"{shown(name)} is not there", f"one of [{VALUES}], above this one")
            if of not in (*names, VALUES):
                refuse(path, location, f"{shown(name)} is of no run", f"of one of {', '.join(names)}")
        if location[0] == VALUES:
            known.append(str(location[1]))
    return Experiment(path.parent.name, path.stem, path, file)

# SPDX-License-Identifier: GPL-2.0-only
"""Which fields take which values: ``FIELD=VALUES`` on the command line, or a table of them in a TOML file."""

from __future__ import annotations

import copy
import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any

from cohortlab.errors import BadInput, one_line
from cohortlab.tomlmodel import read_toml, shown

# Fields that are no part of a file.
PLAIN = ("policy", "seed", "program", "kernel", "hardware", "alone")
TEXTS = ("policy", "program", "kernel", "hardware")
# The first word of those that are.
FILES = ("scenario", "hardware", "workload", "model", "policy")
VALUES_MAX = 1_000_000
# As many as an integer of 64 bits has. Python itself refuses to read some thousands of them.
DIGITS_MAX = 19
_A_TO_B = f"A <= B, and {VALUES_MAX} of them at most"
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


@dataclass(frozen=True)
class Axis:
    """A field and its values, in their order."""

    field: str
    values: tuple[Any, ...]

    @property
    def root(self) -> str:
        """What the field is of: ``scenario``, ``hardware``, …; itself if it is no part of a file."""
        return self.field.partition(".")[0]

    @functools.cached_property
    def kinds(self) -> frozenset[type]:
        """The types of its values."""
        return frozenset(type(value) for value in self.values)

    @functools.cached_property
    def is_of_integers(self) -> bool:
        """Whether its values are integers of 64 bits."""
        return self.kinds == {int} and all(-(1 << 63) <= value < 1 << 63 for value in self.values)

    @property
    def path(self) -> str:
        """Where in that the field is."""
        return self.field.partition(".")[2]


def of_options(texts: Sequence[str], file: Path | None) -> tuple[Axis, ...]:
    """Return the axes of ``--axes FILE`` and then those of ``--axis FIELD=VALUES``, or raise BadInput."""
    axes = [] if file is None else _of_file(file)
    axes += [_of_text(text) for text in texts]
    names = [axis.field for axis in axes]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise BadInput(f'--axis: "{name}" is named twice')
    return tuple(axes)


def _of_file(path: Path) -> list[Axis]:
    data = read_toml(path)
    tables = data.pop("axes", None)
    if data or not isinstance(tables, dict):
        wrong = f"{next(iter(data))}: is not a known field" if data else "axes: is missing"
        raise BadInput(f"{path}: {wrong}: must be a table [axes] with FIELD = [VALUES]")
    found = []
    for field, values in tables.items():
        place = f"{path}: axes.{field}"
        if isinstance(values, dict) and values.keys() == {"from", "to"}:
            low, high = values["from"], values["to"]
            if type(low) is not int or type(high) is not int or not 0 <= high - low < VALUES_MAX:
                raise BadInput(f"{place}: is not allowed: must be from = A, to = B, whole numbers with {_A_TO_B}")
            found.append(_checked(place, field, range(low, high + 1)))
        elif isinstance(values, list):
            found.append(_checked(place, field, values))
        else:
            raise BadInput(f"{place}: {shown(values)} is not allowed: must be a list, or {{ from = A, to = B }}")
    return found


def _of_text(text: str) -> Axis:
    field, equals, values = text.partition("=")
    field = field.strip()
    if not equals or not field:
        raise BadInput(f'--axis: "{text}" is not allowed: must be FIELD=VALUES, as in "seed=1..10"')
    return _checked(f"--axis: {field}", field, _values(field, values))


def _values(field: str, text: str) -> Sequence[Any]:
    """Return values with commas between them: a range A..B, what TOML reads, or else texts."""
    words = [word.strip() for word in text.split(",")]
    if field in TEXTS and not text.lstrip().startswith(('"', "'")):
        return words
    if found := _RANGE.fullmatch(text.strip()):
        if any(len(number.lstrip("-")) > DIGITS_MAX for number in found.groups()):
            raise _too_long(field, text)
        low, high = int(found[1]), int(found[2])
        if not 0 <= high - low < VALUES_MAX:
            raise BadInput(f'--axis: {field}: "{text}" is not allowed: must be A..B with {_A_TO_B}')
        return range(low, high + 1)
    try:
        values: list[Any] = tomllib.loads(f"x = [{text}]")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return words
    except ValueError:
        raise _too_long(field, text) from None
    return values


def _too_long(field: str, text: str) -> BadInput:
    return BadInput(f"--axis: {field}: {shown(text)} is not allowed: must be numbers of at most {DIGITS_MAX} digits")


def _checked(place: str, field: str, values: Sequence[Any]) -> Axis:
    root, dot, rest = field.partition(".")
    if (field not in PLAIN) if not dot else (root not in FILES or not rest):
        allowed = f"one of {', '.join(PLAIN)}, or {', '.join(f'{name}.…' for name in FILES)}"
        raise BadInput(f"{place}: is not a field: must be {allowed}")
    if not 1 <= len(values) <= VALUES_MAX:
        raise BadInput(f"{place}: has {len(values)} values: must have 1 to {VALUES_MAX}")
    kinds: dict[str, type] = {"seed": int, "alone": bool, **dict.fromkeys(TEXTS, str)}
    for value in values:
        _refuse_odd(place, value)
        wanted = kinds.get(field)
        if wanted is not None and type(value) is not wanted:
            what = {int: "a whole number", bool: "true or false", str: "a text"}[wanted]
            raise BadInput(f"{place}: {shown(value)} is not allowed: must be {what}")
        if field in TEXTS and not value:
            raise BadInput(f"{place}: has a value that is empty: must be texts with commas between them")
    if field == "seed" and not all(0 <= value < 1 << 63 for value in values):
        raise BadInput(f"{place}: has a seed that is not allowed: must be from 0 to {(1 << 63) - 1}")
    return Axis(field, tuple(values))


def _refuse_odd(place: str, value: Any) -> None:
    """Raise BadInput for what TOML can say and no field can be, however deep it is in a value."""
    if isinstance(value, date | time):
        raise BadInput(f"{place}: {shown(value)} is not allowed: no field is a date or a time")
    if isinstance(value, str) and "\0" in value:
        raise BadInput(f"{place}: has a text with the character U+0000: must be without")
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for inner in value:
            _refuse_odd(place, inner)


_STEP = re.compile(r"([^.\[\]]+)|\[(\d{1,9})\]")


def _steps(path: str) -> list[str | int]:
    """Return the steps to a field: names of fields and of tables in lists, and numbers in lists."""
    return [found[1] if found[1] is not None else int(found[2]) for found in _STEP.finditer(path)]


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at ``path`` in a file's data: ``vm[1].weight``, or ``vm.NAME.weight`` in a list of tables.

    Raises:
        BadInput: there is no such place.
    """
    steps = _steps(path)
    if not steps or re.sub(_STEP, "", path).strip("."):
        raise BadInput(f'"{path}" is no field')
    at: Any = data
    for position, step in enumerate(steps[:-1]):
        at = _inside(at, step, path, more=isinstance(steps[position + 1], str))
    last = steps[-1]
    # A copy: a table or a list may be changed by the next axis.
    if isinstance(at, list):
        at[_index(at, last, path)] = copy.deepcopy(value)
    elif isinstance(at, dict) and isinstance(last, str):
        at[last] = copy.deepcopy(value)
    else:
        raise BadInput(f'"{path}" is no field: before "{last}" there is no table')


def _inside(at: Any, step: str | int, path: str, *, more: bool) -> Any:
    if isinstance(at, list):
        return at[_index(at, step, path)]
    if isinstance(at, dict) and isinstance(step, str):
        return at.setdefault(step, {}) if more else at.get(step)
    raise BadInput(f'"{path}" is no field: before "{step}" there is no table')


def _index(items: Sequence[Any], step: str | int, path: str) -> int:
    if isinstance(step, int):
        if step < len(items):
            return step
        raise BadInput(f'"{path}" is no field: must have a number from 0 to {len(items) - 1} in place of {step}')
    names = _names(items)
    if step in names:
        return names.index(step)
    known = ", ".join(str(name) for name in names if name is not None)
    raise BadInput(one_line(f'"{path}" is no field: must have one of {known or "no names"} in place of "{step}"'))


def _names(items: Sequence[Any]) -> list[Any]:
    return [item.get("name") if isinstance(item, Mapping) else None for item in items]


def check_fields(axes: Sequence[Axis], data: Mapping[str, Any]) -> None:
    """Raise BadInput if an axis sets all that an earlier one has set: rows would have values that nothing had.

    Args:
        data: what the files say, by the fields' first words.
    """
    places: dict[tuple[str | int, ...], str] = {}
    for axis in axes:
        if not axis.path:
            continue
        place = _place(data, axis.field)
        for before, field in places.items():
            if before[: len(place)] == place:
                raise BadInput(f'--axis: "{axis.field}" sets what "{field}" has set: must be left out')
        places[place] = axis.field


def _place(data: Mapping[str, Any], field: str) -> tuple[str | int, ...]:
    """Return the steps to a field, those of tables in lists by number: the same however it is called."""
    found: list[str | int] = []
    at: Any = data
    for step in _steps(field):
        named = isinstance(at, list) and isinstance(step, str) and step in _names(at)
        here: str | int = _names(at).index(step) if named else step
        found.append(here)
        if isinstance(at, Mapping):
            at = at.get(here)
        elif isinstance(at, list) and isinstance(here, int) and here < len(at):
            at = at[here]
        else:
            at = None
    return tuple(found)

# SPDX-License-Identifier: GPL-2.0-only
"""TOML files as strict pydantic models whose every error is one line.

A field's ``description`` completes the sentence "must be …", so what a field allows is written once, beside
its type, and serves the error messages and the documentation.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from cohortlab.errors import BadInput, one_line

Location = tuple[int | str, ...]
# How TOML writes the character that neither a file's name nor a program's argument can have.
_NUL = re.compile(r"\\(u0000|U00000000|x00)")


class Model(BaseModel):
    """Base of every model read from a file: frozen, no unknown fields, no silent conversion ("2" is no 2)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


M = TypeVar("M", bound=Model)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file's content, or raise BadInput."""
    return parse_toml(read_text(path), path)


def read_text(path: Path) -> str:
    """Return a TOML file's text, or raise BadInput."""
    try:
        # Some editors on Windows begin a file with a byte-order mark.
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: is not a TOML file: must be text in UTF-8") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Return the content of a TOML file's text, or raise BadInput; ``path`` is named in it."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path}: is not valid TOML: {one_line(str(error))}") from None
    except ValueError:
        # Python reads no integer of more than some thousands of digits, and says so in another way.
        raise BadInput(f"{path}: has an integer of too many digits: must be of 64 bits") from None
    except RecursionError:
        raise BadInput(f"{path}: has lists or tables in each other, too deep to be read") from None
    # Nearly no file says it at all: then there is nothing to look for.
    if _NUL.search(text) and _has_nul(data):
        raise BadInput(f"{path}: has a text with the character U+0000: must be without")
    return data


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(_has_nul(key) or _has_nul(inner) for key, inner in value.items())
    if isinstance(value, Sequence):
        return any(_has_nul(inner) for inner in value)
    return False


def parse(model: type[M], data: Mapping[str, Any], path: Path) -> M:
    """Return ``data`` as a ``model``; ``path`` is only named in the error."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    # A misspelt field also causes "is missing"; the misspelling is the one worth telling.
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    location = first["loc"]
    if first["type"] == "extra_forbidden":
        raise BadInput(f"{path}: {place_of(location)}: is not a known field: {_known_fields(model, location)}")
    location = _without_kinds(model, location)
    wrong = "is missing" if first["type"] == "missing" else f"{shown(first['input'])} is not allowed"
    refuse(path, location, wrong, _allowed(model, location))


def refuse(path: Path, location: Location, wrong: str, allowed: str) -> NoReturn:
    """Raise the BadInput line for the field at ``location``."""
    raise BadInput(one_line(f"{path}: {place_of(location)}: {wrong}: must be {allowed}"))


def place_of(location: Location) -> str:
    """Return ``("vm", 1, "vcpus")`` as ``vm[1].vcpus``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(value: object) -> str:
    """Return a value the way TOML writes it, shortened so that the error stays one readable line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, Mapping):
        text = "a table"
    elif isinstance(value, Sequence):
        text = f"[{', '.join(shown(v) for v in value)}]"
    else:
        text = str(value)
    return text if len(text) <= 60 else f"{text[:56]}…"


def _allowed(model: type[Model], location: Location) -> str:
    """Return what the innermost described field on the way to ``location`` allows."""
    text = "a value of another kind"
    at: type[Model] | None = model
    for part in location:
        if isinstance(part, int) or at is None:
            continue
        name = _field_of(at, part)
        if name is None:
            break
        field = at.model_fields[name]
        text = field.description or text
        at = _model_in(field.annotation)
    return text


def _without_kinds(model: type[Model], location: Location) -> Location:
    """Return the location without the names of kinds that pydantic adds where a value may be of several."""
    kept: list[int | str] = []
    at: type[Model] | None = model
    for part in location:
        if isinstance(part, int):
            kept.append(part)
        elif at is not None:
            kept.append(part)
            name = _field_of(at, part)
            at = _model_in(at.model_fields[name].annotation) if name else None
    return tuple(kept)


def _known_fields(model: type[Model], location: Location) -> str:
    """Return what the unknown field at ``location`` may have been meant to be."""
    at: type[Model] | None = model
    for part in location[:-1]:
        if isinstance(part, str) and at is not None:
            name = _field_of(at, part)
            at = _model_in(at.model_fields[name].annotation) if name else None
    known = [f.alias or name for name, f in (at or model).model_fields.items()]
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}"


def _field_of(model: type[Model], key: str) -> str | None:
    """Return the name of the field that the file calls ``key``."""
    return next((name for name, field in model.model_fields.items() if key in (name, field.alias)), None)


def _model_in(annotation: Any) -> type[Model] | None:
    """Return the Model inside ``Model``, ``tuple[Model, ...]`` or ``Model | None``."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Model):
            return candidate
    return None

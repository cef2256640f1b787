# SPDX-License-Identifier: GPL-2.0-only
"""What options take that click has no type for."""

from __future__ import annotations

import math
from typing import Any

import click
from click.types import StringParamType


class FiniteRange(click.FloatRange):
    """A number in a range. ``click.FloatRange`` takes nan in every range, and inf where a range has no end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Name(StringParamType):
    """A text that is not empty. Of a shell's variable that is not set nobody means the default."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name: str = super().convert(value, param, ctx)
        if not name.strip():
            self.fail("it is empty.", param, ctx)
        return name

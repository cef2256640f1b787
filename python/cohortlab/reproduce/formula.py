# SPDX-License-Identifier: GPL-2.0-only
"""Formulas in the experiments' files: arithmetic and comparisons of the runs' figures, nothing else.

A figure's name has dots, ``two.dedup.kvm-pv.shootdown.mean_us``, and may have ``-`` inside, so a minus sign has spaces
around it.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cohortlab.errors import BadInput
from cohortlab.tomlmodel import shown

_NAME = re.compile(r"[a-z][a-z0-9_-]*(?:\.[A-Za-z0-9_-]+)+")
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _mean(*values: float) -> float:
    return math.fsum(values) / len(values)


def _geomean(*values: float) -> float:
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def _count(*values: bool) -> int:
    return sum(map(bool, values))


_CALLS: Mapping[str, Callable[..., Any]] = {
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "mean": _mean,
    "geomean": _geomean,
    "count": _count,
}


class _Undefined(Exception):
    """A part of a formula has no value: a comparison with it would be false, and its opposite true."""


class Formula:
    """A formula that was read; ``names`` are the figures that it needs."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: tuple[str, ...] = tuple(dict.fromkeys(_NAME.findall(text)))
        marked = _NAME.sub(lambda found: f"_{self.names.index(found[0])}", text)
        try:
            self._tree = ast.parse(marked, mode="eval").body
        except SyntaxError:
            raise BadInput(f"{shown(text)} is no formula") from None
        # Whatever it may not contain shows when it is computed, with any numbers.
        self._is_read = False
        self._compute(self._tree, [1.0] * len(self.names))
        self._is_read = True

    def value(self, figures: Mapping[str, float]) -> float | bool:
        """Return what comes out; NaN if any part of it is no number, also where it is compared.

        Raises:
            KeyError: a figure is not there.
        """
        try:
            found = self._compute(self._tree, [figures[name] for name in self.names])
        except _Undefined:
            return math.nan
        return found if isinstance(found, bool) else float(found)

    def _undefined(self) -> float:
        # While it is read any number will do.
        if self._is_read:
            raise _Undefined
        return math.nan

    def _compute(self, node: ast.expr, values: Sequence[float]) -> Any:
        def of(inner: ast.expr) -> Any:
            return self._compute(inner, values)

        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return number
            case ast.Name(id=name) if re.fullmatch(r"_\d+", name) and int(name[1:]) < len(values):
                return values[int(name[1:])]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -of(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not of(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                if isinstance(op, ast.Div) and of(right) == 0:
                    return self._undefined()
                return _BINARY[type(op)](of(left), of(right))
            case ast.BoolOp(op=op, values=parts):
                found = [bool(of(part)) for part in parts]
                return all(found) if isinstance(op, ast.And) else any(found)
            case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _COMPARE for op in ops):
                sides = [of(side) for side in (left, *rights)]
                pairs = zip(ops, sides[:-1], sides[1:], strict=True)
                return all(_COMPARE[type(op)](one, other) for op, one, other in pairs)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and args:
                numbers = [of(arg) for arg in args]
                # While it is read one of them may be NaN, which is not above 0 either.
                if name == "geomean" and not min(numbers) > 0:
                    return self._undefined()
                return _CALLS[name](*numbers)
        raise BadInput(f"{shown(self.text)} is no formula of + - * / < <= > >=, and, or, not, {', '.join(_CALLS)}")

# SPDX-License-Identifier: GPL-2.0-only
"""What the tools that count where something happens share: their arguments with defaults, and the table."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from cohortlab.errors import BadInput


def run(doc: str, defaults: Sequence[str], measure: Callable[..., Counter[str]], columns: str) -> int:
    """Measure with the command line's arguments, and print a table; return the exit code.

    ``columns``: the heads of three columns, as Markdown has them: how often, what part of all that is, and where.
    """
    args = sys.argv[1:]
    if len(args) > len(defaults) or args[:1] in (["-h"], ["--help"]):
        print(doc.strip(), file=sys.stderr)
        return 2
    try:
        found = measure(*args, *defaults[len(args) :])
    except BadInput as refused:
        print(f"bench/probe/{Path(sys.argv[0]).name}: {refused}", file=sys.stderr)
        return 2
    print(f"| {columns} |\n|---|---|---|")
    for name, count in found.most_common():
        print(f"| {count} | {count / found.total():.1%} | {name} |")
    return 0

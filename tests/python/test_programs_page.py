# SPDX-License-Identifier: GPL-2.0-only
"""docs/programs.md does what it says, from an empty folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cohortlab.native import native

Run = Callable[..., Any]
PAGE = (Path(__file__).parents[2] / "docs" / "programs.md").read_text()
FILES = ("two.toml", "workloads/squares.toml", "workloads/models/squares.toml", "workloads/redis.toml")


def write_files() -> None:
    Path("workloads/models").mkdir(parents=True)
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    for name, text in zip(FILES, blocks, strict=True):
        assert f"`{name}`" in PAGE
        Path(name).write_text(text)


def test_the_commands_of_the_page(cohortlab: Run) -> None:
    write_files()
    compared = cohortlab("compare", "two.toml", "--on", "sim", "--json", "--out", "out")
    assert compared.code == 0, compared.err
    assert [(o["program"], o["policy"]) for o in json.loads(compared.out)] == [
        ("squares", "eevdf"),
        ("squares", "cohort"),
    ]
    assert cohortlab("explain", "two.toml", "--policy", "eevdf", "--beside", "cohort", "--ms", 5).code == 0
    for command in ("compare two.toml --on sim", "explain two.toml --policy eevdf --beside cohort"):
        assert f"    cohortlab {command}\n" in PAGE


def test_every_step_of_the_page_is_one() -> None:
    table = PAGE.partition("| step |")[2]
    steps = re.findall(r"`(\{ .*? \})`", table)
    assert len(steps) > 15
    for step in steps:
        text = step.replace("TIME", '"5us"').replace("[…]", '[{ compute = "1us" }]')
        native().model("x.toml", f'name = "x"\n[[thread]]\nname = "t"\nsteps = [{text}]\n')

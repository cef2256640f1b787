# SPDX-License-Identifier: GPL-2.0-only
"""bench/campaign.py: each of its comparisons is one that `cohortlab compare` takes, and what is there stays."""

from __future__ import annotations

import importlib
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("campaign")


@pytest.fixture
def asked(campaign: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The comparisons that a campaign asks for; of them only "2x4" fails."""
    names: list[str] = []

    def measured(words: list[str], out: Path, name: str) -> bool:
        names.append(name)
        if name != "2x4":
            (out / name).mkdir()
        return name != "2x4"

    monkeypatch.setattr(campaign, "_measured", measured)
    return names


def test_each_comparison_is_one(cohortlab: Run, campaign: Any, tmp_path: Path) -> None:
    # Where results go is the last that is looked at before anything is measured.
    (tmp_path / "file").touch()
    plan = campaign.planned()
    assert len(plan) > len(campaign.PLAN.read_text().split("[[comparison]]")), "some are for each of several"
    for name, words in plan.items():
        ran = cohortlab("compare", *words, "--out", tmp_path / "file" / "in")
        assert ran.code == 2, name
        assert "cannot be written to: Not a directory" in ran.err, name


def test_each_label_is_used(campaign: Any) -> None:
    asked_for = {
        label for words in campaign.planned().values() for label in words[words.index("--policies") + 1].split(",")
    }
    assert tomllib.loads(campaign.PLAN.read_text())["policies"].keys() <= asked_for


def test_it_goes_on_where_it_was(campaign: Any, asked: list[str], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert campaign.main([out, "2x*", "three"]) == 1
    assert asked == [name for name in campaign.planned() if name.startswith("2x") or name == "three"]
    asked.clear()
    assert campaign.main([out, "2x*", "up"]) == 1
    assert asked == ["2x4", "up"]


@pytest.mark.parametrize("words", [["out", "2x2", "four"], []])
def test_wrong_words_are_refused(campaign: Any, asked: list[str], tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        campaign.main([str(tmp_path / word) if word == "out" else word for word in words])
    assert error.value.code == 2
    assert not asked
    assert not (tmp_path / "out").exists()


def test_another_version_is_refused(
    campaign: Any, asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "version").write_text("0123456789ab\n")
    with pytest.raises(SystemExit):
        campaign.main([str(tmp_path)])
    assert "has 0123456789ab, and this is " in capsys.readouterr().err
    assert not asked


def test_changes_that_are_in_no_commit_are_another_version(
    campaign: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A hook of git's would have its own repository in these.
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    repo, out = tmp_path / "repo", tmp_path / "out"
    (repo / "bpf").mkdir(parents=True)
    known, unknown, other = repo / "bpf" / "known.h", repo / "bpf" / "unknown.h", repo / "notes.txt"
    known.write_text("1\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "bpf"), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(repo), *words], check=True)
    monkeypatch.setattr(campaign, "REPO", repo)
    versions = []
    for file, text in ((other, "1"), (known, "2\n"), (known, "3\n"), (unknown, "1\n"), (unknown, "2\n")):
        file.write_text(text)
        campaign._of_one_version(out)
        # The same goes on.
        campaign._of_one_version(out)
        versions.append((out / "version").read_text())
        (out / "version").unlink()
    assert "changed" not in versions[0]
    assert all("-changed-" in version for version in versions[1:])
    assert len(set(versions)) == len(versions)

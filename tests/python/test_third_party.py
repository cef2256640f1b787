# SPDX-License-Identifier: GPL-2.0-only
"""The notices that go with the Debian package and the wheel, and what may be linked at all."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MIT = "Permission is hereby granted\n\nto anybody\n"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("third_party", REPOSITORY / "scripts/third_party.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


third_party = script()


class Workspace:
    """What `cargo metadata` says of packages that a test makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages: list[dict[str, Any]] = []
        self.nodes: dict[str, list[dict[str, Any]]] = {}

    def add(self, name: str, notices: dict[str, str] | None = None, licence: str | None = "MIT") -> None:
        folder = self.folder / name
        for file, notice in (notices or {}).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(notice)
        folder.mkdir(exist_ok=True)
        ours = name.startswith("cohort")
        self.packages.append(
            {
                "id": name,
                "name": name,
                "version": "1.0.0",
                "source": None if ours else "registry",
                "license": licence,
                "authors": ["A. Uthor"],
                "repository": "https://example.org/it",
                "manifest_path": str(folder / "Cargo.toml"),
            }
        )
        self.nodes[name] = []

    def needs(self, who: str, whom: str, *kinds: str | None) -> None:
        how = [{"kind": kind, "target": None} for kind in kinds or (None,)]
        self.nodes[who].append({"pkg": whom, "dep_kinds": how})

    def metadata(self) -> dict[str, Any]:
        nodes = [{"id": name, "deps": deps} for name, deps in self.nodes.items()]
        return {"packages": self.packages, "resolve": {"nodes": nodes}}

    def text(self, crate: str = "cohort") -> str:
        text: str = third_party.text(self.metadata(), crate, self.folder / "doc")
        return text


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_what_runs_in_the_program_counts_and_no_more(workspace: Workspace) -> None:
    for name in ("cohort", "cohort-sets", "zed", "under", "both", "builder", "tester", "stranger"):
        workspace.add(name)
    workspace.needs("cohort", "cohort-sets")
    workspace.needs("cohort-sets", "zed")
    workspace.needs("zed", "under")
    workspace.needs("under", "zed")
    workspace.needs("cohort", "both", "build", None)
    workspace.needs("cohort", "builder", "build")
    workspace.needs("cohort", "tester", "dev")
    found = third_party.shipped(workspace.metadata(), "cohort")
    assert [package["name"] for package in found] == ["both", "under", "zed"]


def test_a_notice_is_there_once_below_all_whose_it_is(workspace: Workspace) -> None:
    workspace.add("cohort")
    workspace.add("aa", {"LICENSE-MIT": MIT, "src/LICENSE": "not at the top", "README.md": "not a notice"})
    workspace.add("bb", {"license-mit": MIT.replace("\n", " \r\n"), "NOTICE": "of bb"})
    workspace.add("cc")
    workspace.add("libbpf-sys", {"libbpf/LICENSE.BSD-2-Clause": "of libbpf", "elfutils/COPYING": "not compiled"})
    for name in ("libbpf-sys", "cc", "bb", "aa"):
        workspace.needs("cohort", name)
    text = workspace.text()
    line, rule = "-" * 80, "=" * 80
    assert f"{rule}\naa 1.0.0: LICENSE-MIT\nbb 1.0.0: license-mit\n{line}\n\n{MIT}\n{rule}\n" in text
    assert text.count("Permission is hereby granted") == 1
    assert f"bb 1.0.0: NOTICE\n{line}\n\nof bb\n" in text
    assert f"cc 1.0.0: Cargo.toml\n{line}\n\nMIT, by A. Uthor: https://example.org/it\n" in text
    assert f"libbpf-sys 1.0.0: libbpf/LICENSE.BSD-2-Clause\n{line}\n\nof libbpf\n" in text
    assert "not " not in text.split(rule, 1)[1]
    assert "\naa 1.0.0: MIT\nbb 1.0.0: MIT\ncc 1.0.0: MIT\nlibbpf-sys 1.0.0: MIT\n" in text
    # Whatever order cargo has them in.
    workspace.packages.reverse()
    workspace.nodes["cohort"].reverse()
    assert workspace.text() == text


def test_the_libraries_of_the_system_count_where_the_program_is_static(workspace: Workspace) -> None:
    for name in ("cohort", "cohort-sim-python"):
        workspace.add(name)
    doc = workspace.folder / "doc/zlib1g-dev"
    doc.mkdir(parents=True)
    (doc / "copyright").write_text("of zlib")
    assert "\nzlib\n" + "-" * 80 + "\n\nof zlib\n" in workspace.text("cohort")
    assert "\nglibc: LGPL-2.1-or-later\n" in workspace.text("cohort")
    module = workspace.text("cohort-sim-python")
    assert "zlib" not in module
    assert "\nRust's standard library: MIT OR Apache-2.0" in module


@pytest.mark.parametrize(
    ("licence", "fit"),
    [
        ("MIT", True),
        ("MIT/Apache-2.0", True),
        ("Apache-2.0 / MIT", True),
        ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", True),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", True),
        ("Apache-2.0", False),
        ("Apache-2.0 AND MIT", False),
        ("MIT AND (Apache-2.0 OR GPL-3.0-only)", False),
        ("MIT AND MIT OR Apache-2.0", True),
        ("Apache-2.0 AND MIT OR Apache-2.0", False),
        ("GPL-3.0-or-later", False),
        ("MIT MIT", False),
        ("(MIT", False),
        ("", False),
    ],
)
def test_which_licences_go_with_ours(licence: str, fit: bool) -> None:
    assert third_party.fits(licence) is fit


@pytest.mark.parametrize("licence", ["Apache-2.0", None])
def test_what_does_not_go_with_ours_is_not_packed(workspace: Workspace, licence: str | None) -> None:
    workspace.add("cohort")
    workspace.add("theirs", {"LICENSE": "theirs"}, licence)
    workspace.needs("cohort", "theirs")
    with pytest.raises(SystemExit, match=r"^third_party: theirs 1\.0\.0: its licence, .*, does not go with GPL-2"):
        workspace.text()


@pytest.mark.skipif(not (REPOSITORY / "build/stamps/toolchain").exists(), reason="no Rust is chosen: `make setup`")
@pytest.mark.parametrize("crate", ["cohort", "cohort-sim-python"])
def test_nothing_is_linked_that_does_not_go_with_ours(crate: str) -> None:
    argv = ["scripts/in-toolchain", *third_party.METADATA]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = third_party.text(json.loads(done.stdout), crate)
    assert "\nserde_json 1." in text
    assert "\nlibbpf-cargo " not in text
    assert ("\nlibbpf-sys 1." in text) == ("/LICENSE.BSD-2-Clause\n" in text) == (crate == "cohort")

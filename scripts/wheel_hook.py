# SPDX-License-Identifier: GPL-2.0-only
"""Puts the simulator's extension module into the wheel of cohortlab: the one in the wheel that COHORT_SIM_WHEEL names.

Two distributions would need an index that has both. Without the variable, as in a development install, nothing is
added.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "cohort_sim"
# What others wrote of it: scripts/third_party.py writes it for scripts/wheel.
NOTICES = "build/THIRD-PARTY"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        name = os.environ.get("COHORT_SIM_WHEEL")
        if version == "editable" or not name:
            return
        self._folder = tempfile.TemporaryDirectory()
        path = Path(name)
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(self._folder.name, [file for file in wheel.namelist() if file.startswith(f"{MODULE}/")])
        build_data["force_include"][f"{self._folder.name}/{MODULE}"] = MODULE
        build_data["pure_python"] = False
        # The end of its name, as in cohort_sim-0.1.0-cp311-abi3-linux_x86_64.whl.
        build_data["tag"] = "-".join(path.stem.split("-")[-3:])
        # Not in pyproject.toml: without the simulator there is no such file, and what is named there has to be.
        self.metadata.core.license_files.append(NOTICES)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if folder := getattr(self, "_folder", None):
            folder.cleanup()

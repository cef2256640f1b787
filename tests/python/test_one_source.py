# SPDX-License-Identifier: GPL-2.0-only
"""One scheduler: what `make build` made for kernel and simulator is of the same files, those of this tree."""

import hashlib
import subprocess
from pathlib import Path

from cohortlab.lab import binaries
from cohortlab.native import native

BPF = Path(__file__).parents[2] / "bpf"
# What libbpf's headers are to the kernel's object.
SIMULATOR_ONLY = {"native.h"}


def test_the_built_binary_and_the_built_module_hold_this_trees_scheduler() -> None:
    argv = [binaries.find("cohort"), "sources"]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    lines = [line.split("  ") for line in printed if not line.startswith("# ")]
    kernel = {name: digest for digest, name in lines}
    simulator = dict(native().sources())
    here = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in BPF.iterdir() if path.is_file()}
    again = "run `make build`"
    assert simulator == here, again
    assert kernel == {name: digest for name, digest in here.items() if name not in SIMULATOR_ONLY}, again

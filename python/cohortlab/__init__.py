# SPDX-License-Identifier: GPL-2.0-only
"""cohortlab: describe hosts, VMs and workloads once, run them in a place, compare scheduling policies."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("cohortlab")
except PackageNotFoundError:  # a source tree on PYTHONPATH, never installed
    __version__ = "0+source"

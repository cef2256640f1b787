# SPDX-License-Identifier: GPL-2.0-only
"""The lab: a stock kernel with KVM under an emulator, and real guests on it. See docs/lab.md."""

from cohortlab.lab.cache import place as cache_dir
from cohortlab.lab.place import LabPlace
from cohortlab.lab.place import LabPlace as open_lab

__all__ = ["LabPlace", "cache_dir", "open_lab"]

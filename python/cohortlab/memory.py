# SPDX-License-Identifier: GPL-2.0-only
"""This machine's memory, as it says of itself."""

from __future__ import annotations

import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def left_mb(meminfo: Path = _MEMINFO) -> int:
    """Return how much may be used without swapping, in MB; 0 if nothing tells."""
    return _field_mb("MemAvailable", meminfo)


def whole_mb(meminfo: Path = _MEMINFO) -> int:
    """Return how much there is, in MB; 0 if nothing tells."""
    return _field_mb("MemTotal", meminfo)


def _field_mb(name: str, meminfo: Path) -> int:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) // 1024 if found else 0

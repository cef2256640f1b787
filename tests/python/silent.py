# SPDX-License-Identifier: GPL-2.0-only
"""The port of a lab whose agent answers nobody."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def silent_port(folder: Path) -> Iterator[None]:
    """Listen at a lab's port in ``folder``, and never say a word."""
    with ExitStack() as stack:
        port = stack.enter_context(socket.socket(socket.AF_UNIX))
        # A path may be longer than a socket's address.
        at = os.open(folder, os.O_PATH)
        stack.callback(os.close, at)
        port.bind(f"/proc/self/fd/{at}/agent.sock")
        port.listen()
        yield

"""What a process writes to a terminal of the test's."""

from __future__ import annotations

import os


def read_to_hangup(terminal: int) -> bytes:
    """All that was written until the other end closed; closes this one."""
    data = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            data += piece
    except OSError:
        pass  # Linux says so when the other end has closed
    os.close(terminal)
    return data

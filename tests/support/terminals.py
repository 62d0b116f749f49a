"""What a process writes to a terminal of the test's."""

from __future__ import annotations

import os
from collections.abc import Callable


def read_to_hangup(terminal: int, look: Callable[[bytes], None] | None = None) -> bytes:
    """All that was written until the other end closed; closes this one.

    `look`: is shown all of it so far, each time that more has come.
    """
    data = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            data += piece
            if look is not None:
                look(data)
    except OSError:
        pass  # Linux says so when the other end has closed
    os.close(terminal)
    return data

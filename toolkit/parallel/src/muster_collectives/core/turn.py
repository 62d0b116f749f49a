"""One call of a group at a time, and the one that would wait for itself: of a signal handler that
came in the midst of a call of the same thread."""

from __future__ import annotations

import sys
from types import CodeType

BETWEEN = "a signal handler called this in the midst of another call of the same group"
FLAG = "have the handler set a flag, and act on it after the call"


def is_inside(code: CodeType, owner: object) -> bool:
    """Whether a caller of the caller of this thread runs `code` as a method of `owner`."""
    frame = sys._getframe(2).f_back
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False

"""Ctrl-C at a place that a signal seldom hits by itself."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal


@contextmanager
def interrupted(event: Literal["call", "return"], name: str) -> Iterator[None]:
    """This process gets SIGINT when the main thread calls a function of that name inside, or
    returns from one, for the first time. Raises AssertionError where it never does."""
    sent: list[str] = []

    def look(frame: FrameType, what: str, argument: object) -> None:
        if what == event and frame.f_code.co_name == name and not sent:
            sent.append(name)
            signal.raise_signal(signal.SIGINT)

    # a process in the background may have been started with SIGINT ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    assert sent, f"no {event} of {name}"

"""Waiting for what another process does: bounded polling."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.01


def wait_until(
    condition: Callable[[], bool], limit_s: float, story: Callable[[], str] | str = ""
) -> None:
    """Polls until the condition holds; fails with the story when it takes too long."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= until:
            raise AssertionError(story() if callable(story) else story)
        time.sleep(POLL_S)

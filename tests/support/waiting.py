"""Waiting for what another process does: bounded polling."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

POLL_S = 0.01


def within(limit_s: float) -> float:
    """How long that may take which takes `limit_s` at most where nothing else runs.

    Beside other tests it is TEST_BUSY times as long: `make test-all` says so. What a promise says
    of time is held to the letter where a test runs alone.
    """
    return limit_s * float(os.environ.get("TEST_BUSY", "1"))


def wait_until(
    condition: Callable[[], bool], limit_s: float, story: Callable[[], str] | str = ""
) -> None:
    """Polls until the condition holds; fails with the story when that is not `within` the limit."""
    until = time.monotonic() + within(limit_s)
    while not condition():
        if time.monotonic() >= until:
            raise AssertionError(story() if callable(story) else story)
        time.sleep(POLL_S)

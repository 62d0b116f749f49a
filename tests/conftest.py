"""`pytest -k F27` runs the tests that prove a row of docs/promises.md."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """A shell has its background jobs ignore SIGINT, and all their children with them; tests send
    it to processes that they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("promise"):
            item.extra_keyword_matches.update(mark.args)

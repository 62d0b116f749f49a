"""`pytest -k F27` runs the tests that prove a row of docs/reference/promises.md."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

# a machine that others keep busy takes its time, and no promise is about that of one example
hypothesis.settings.register_profile("untimed", deadline=None)
# for another Python, whose own is to be found and not what any would find
hypothesis.settings.register_profile("few", deadline=None, max_examples=10)


def pytest_configure() -> None:
    """A shell has its background jobs ignore SIGINT and SIGQUIT, nohup has them ignore SIGHUP, and
    all their children with them; tests send these to processes that they start."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    hypothesis.settings.load_profile(os.environ.get("TEST_EXAMPLES", "untimed"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("promise"):
            item.extra_keyword_matches.update(mark.args)

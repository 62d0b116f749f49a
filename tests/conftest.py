"""`pytest -k F27` runs the tests that prove a row of docs/promises.md."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("promise"):
            item.extra_keyword_matches.update(mark.args)

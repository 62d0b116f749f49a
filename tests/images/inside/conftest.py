"""Settings of the tests inside an image: the checkout's own are not there."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(id): the rows of docs/reference/promises.md")

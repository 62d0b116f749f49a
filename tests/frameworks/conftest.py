"""Whole jobs with real frameworks: `muster local` on hosts of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.effort import effort
from tests.support.frameworks import (
    Start,
    framework_environment,
    horovod_environment,
    job_starter,
    python_of,
)
from tests.support.venvs import UnavailableError


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts jobs, `start(python, "example", ...)`; checks each of them after the test."""
    with job_starter(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def tensorflow() -> Path:
    return _python("tensorflow")


@pytest.fixture(scope="session")
def mxnet() -> Path:
    return _python("mxnet")


@pytest.fixture(scope="session")
def horovod() -> Path:
    if effort() == 1:
        pytest.skip("building Horovod takes minutes of both processors: make test-long does")
    try:
        return python_of(horovod_environment())
    except UnavailableError as reason:
        pytest.skip(f"Horovod cannot be built here: {reason}")


def _python(name: str) -> Path:
    try:
        return python_of(framework_environment(name))
    except UnavailableError as reason:
        pytest.skip(f"{name} cannot be installed here: {reason}")

"""Both SDKs, each in an environment of its own, with `muster` from its wheel."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.local_mode.jobs import Client, Job, ask, run_job, why_not
from tests.support.engine import Engine, NoEngineError, find_engine
from tests.support.venvs import CHECKOUT, UnavailableError, build_wheel, locked_environment

Run = Callable[[Client, Mapping[str, Any]], Job]
Ask = Callable[[Client, Mapping[str, Any]], Any]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of our wheel: what users have, with its data and without the checkout."""
    folder = tmp_path_factory.mktemp("muster")
    wheel = build_wheel(CHECKOUT / "toolkit" / "launcher", folder / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "packages")
    return folder / "packages"


@pytest.fixture(scope="session")
def v2(packages: Path) -> Client:
    return _client("sdk2", "estimators", packages)


@pytest.fixture(scope="session")
def v3(packages: Path) -> Client:
    return _client("sdk3", "model_trainer", packages)


def _client(name: str, program: str, packages: Path) -> Client:
    try:
        place = locked_environment(name, CHECKOUT / "constraints" / f"{name}.txt")
    except UnavailableError as reason:
        pytest.skip(f"{name} cannot be installed here: {reason}")
    return Client(program, place / "bin" / "python", packages)


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        found = find_engine()
    except NoEngineError as reason:
        pytest.skip(f"no container engine: {reason}")
    lacking = why_not()
    if lacking:
        pytest.skip(f"no local mode here: {lacking}")
    return found


@pytest.fixture
def run(engine: Engine, tmp_path: Path) -> Run:
    """Runs one local job to its end."""
    return lambda client, request: run_job(client, engine, tmp_path / "job", request)


@pytest.fixture
def asked(tmp_path: Path) -> Ask:
    return lambda client, request: ask(client, tmp_path / "ask", request)

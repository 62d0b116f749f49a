"""Runs of `muster local` with containers as hosts, and fixtures for them.

The containers are real, of images that were built from this checkout. Everything that a test
makes carries the labels of its run, and is gone when it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest

from muster.local.backends.docker import names as docker_names
from tests.launcher.support.local.local_runs import SCRIPT, STUBBORN, LocalRun, Start, runs
from tests.launcher.support.local.unprivileged import (
    as_nobody,
    home_of_nobody,
    readable_python,
    skip_where_hidden,
)
from tests.support.engine import LABEL, Engine, NoEngineError, find_engine
from tests.support.images import image

__all__ = [
    "Start", "as_nobody", "base", "changed", "client_as_docker", "context", "engine", "forever",
    "home", "job", "left_by", "nobodys_home", "of_nothing", "refused", "remove", "socket", "start",
]  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return find_engine()
    except NoEngineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def base(engine: Engine) -> str:
    """An image with muster and without a framework."""
    return image("base")


def left_by(engine: Engine, run: LocalRun) -> list[str]:
    """Names of all containers and networks of the run."""
    label = ("--filter", f"label={docker_names.FOLDER}={run.folder}")
    listed = engine.must("ps", "-a", *label, "--format={{.Names}}")
    return [*listed.split(), *engine.must("network", "ls", *label, "--format={{.Name}}").split()]


def client_as_docker(engine: Engine, command: str) -> list[str]:
    """The command that a person is told to type, with the client of the tests as `docker`."""
    return ["sh", "-c", re.sub(r"\bdocker (?=[a-z])", f"{engine.client} ", command)]


def remove(engine: Engine, run: LocalRun) -> None:
    """All containers and networks of the run."""
    label = f"label={docker_names.FOLDER}={run.folder}"
    for name in engine.must("ps", "-aq", "--filter", label).split():
        engine("rm", "-f", "-v", name)
    for name in engine.must("network", "ls", "-q", "--filter", label).split():
        engine("network", "rm", name)


@pytest.fixture
def start(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts runs; afterwards none has left a container or a network that was not to stay."""
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    started: list[LocalRun] = []
    try:
        with runs() as begin:

            def start(*args: Any, **options: Any) -> LocalRun:
                started.append(begin(*args, **options))
                return started[-1]

            yield start
        for run in started:
            left = left_by(engine, run)
            assert not left, f"left: {left}"
    finally:
        for run in started:
            remove(engine, run)


def fill(home: Path) -> None:
    """A folder with a source folder and a channel."""
    (home / "src").mkdir()
    (home / "data").mkdir()
    (home / "data/a.csv").write_text("1,2\n")
    for name, text in (("train", SCRIPT), ("stubborn", STUBBORN)):
        (home / "src" / f"{name}.py").write_text(text)


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with what the test's module, if it has a `fill` of its own, puts there."""
    getattr(request.module, "fill", fill)(tmp_path)
    return tmp_path


@pytest.fixture
def nobodys_home(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The same, of an unprivileged user."""
    with home_of_nobody(getattr(request.module, "fill", fill)) as home:
        yield home


@pytest.fixture
def socket(engine: Engine) -> Path:
    """The engine's, which belongs to root and a group."""
    path = Path(engine.address.removeprefix("unix://"))
    if os.getuid() != 0 or not path.is_socket():
        pytest.skip("only root can become another user, with or without the group of the socket")
    return path


def job(script: str, reference: str, *more: str, hosts: int = 2) -> tuple[str, ...]:
    """The command line of a job with that image."""
    where = ("--isolation", "docker", "--image", reference)
    return (f"src/{script}.py", "--hosts", str(hosts), *where, *more)


@contextmanager
def changed(engine: Engine, reference: str, instruction: str) -> Iterator[str]:
    """An image that differs from another one in an instruction of a Dockerfile."""
    name = f"{LABEL}-{secrets.token_hex(6)}:changed"
    container = engine.must("create", "--label", LABEL, reference, "true")
    engine.must("commit", "--change", instruction, container, name)
    engine.must("rm", container)
    try:
        yield name
    finally:
        engine.must("rmi", "-f", name)


@contextmanager
def of_nothing(engine: Engine) -> Iterator[str]:
    """An image without a single file."""
    name = f"{LABEL}-{secrets.token_hex(6)}:nothing"
    archive = subprocess.run(["tar", "-c", "-T", "/dev/null"], capture_output=True, check=True)
    engine.must("import", "-", name, data=archive.stdout)
    try:
        yield name
    finally:
        engine.must("rmi", "-f", name)


def context(home: Path, address: str, **more: object) -> dict[str, str]:
    """Variables with which the client's current context is one of that address; `more` is for its
    file of settings."""
    folder, name = home / "config", "elsewhere"
    meta = folder / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    endpoints = {"docker": {"Host": address, "SkipTLSVerify": False}}
    meta.write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoints}))
    (folder / "config.json").write_text(json.dumps({"currentContext": name, **more}))
    return {"DOCKER_CONFIG": str(folder), "DOCKER_HOST": "", "DOCKER_CONTEXT": ""}


def forever(reference: str, *more: str) -> tuple[str, ...]:
    """That of one that runs until it is stopped."""
    return job("train", reference, "--hyperparameter", "seconds=600", *more)


def options_of_nobody(groups: str) -> dict[str, Any]:
    """How a run is started by an unprivileged user."""
    client = Path(docker.__file__ or "").parents[1]
    skip_where_hidden(client)
    wrapper = as_nobody(str(client), groups=groups)
    return {"wrapper": wrapper, "python": readable_python()}


def refused(start: Start, home: Path, argv: tuple[str, ...], **options: Any) -> str:
    """What a command line is answered that is refused before anything starts."""
    result = start(home, argv, **options).wait()
    assert result.code == 2, result.err
    assert not result.folder.exists()
    assert "record in" not in result.err
    return result.err

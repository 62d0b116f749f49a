"""The end of a run with containers, step by step: one that fails stops no other."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.local.backends.docker import names as docker_names
from muster.local.backends.docker.engine import connect
from muster.local.backends.docker.tidy import tidy
from muster.local.orders import Containers
from tests.launcher.support.local.local_docker import base, engine, of_nothing
from tests.launcher.support.local.unprivileged import NOBODY
from tests.support.engine import Engine

__all__ = ["base", "engine"]
pytestmark = [
    pytest.mark.timeout(600),  # an image may have to be built first
    pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away"),
]


class Run:
    """What a run with containers has at its end: a network, and a folder with a file in it that is
    somebody else's."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.wanted = Containers(
            secrets.token_hex(4), str(folder), "x", None, None, None, keep=False
        )
        self.label = f"{docker_names.RUN}={self.wanted.run}"
        self.network = docker_names.network_name(self.wanted.run)
        self.file = folder / "file"
        self.file.write_text("x")
        os.chown(self.file, NOBODY, NOBODY)
        engine.must("network", "create", "--label", self.label, self.network)

    def add(self, image: str, *options: str) -> str:
        """One more container, by its id."""
        return self.engine.must("run", "-d", *options, "--entrypoint", "sleep", image, "600")

    def left(self) -> list[str]:
        listed = self.engine.must("ps", "-aq", "--filter", f"label={self.label}")
        networks = self.engine.must("network", "ls", "-q", "--filter", f"label={self.label}")
        return [*listed.split(), *networks.split()]


@pytest.fixture
def run(engine: Engine, tmp_path: Path) -> Iterator[Run]:
    made = Run(engine, tmp_path)
    try:
        yield made
    finally:
        for name in engine.must("ps", "-aq", "--filter", f"network={made.network}").split():
            engine("rm", "-f", name)
        for name in made.left():
            engine("rm", "-f", name)
            engine("network", "rm", name)


@pytest.fixture
def client(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    made = connect(30)
    yield made
    made.close()


def settled() -> bool:
    return True


def test_an_image_without_a_shell_leaves_no_network_and_the_cure_is_told(
    run: Run, client: Any, engine: Engine
) -> None:
    with of_nothing(engine) as image:
        found = tidy(client, run.wanted._replace(image=image), settled)
    assert found.is_clean
    [note] = found.notes
    assert f"files in {run.folder} may still belong to root: " in note
    assert f"sudo chown -R $(id -u):$(id -g) {run.folder}" in note
    assert not run.left()


def test_a_network_that_cannot_go_keeps_no_file_from_its_owner(
    run: Run, client: Any, base: str
) -> None:
    run.add(base, "--network", run.network)  # not of the run, and so not removed
    found = tidy(client, run.wanted._replace(image=base), settled)
    assert not found.is_clean
    [note] = found.notes
    assert note.startswith("not everything was removed: ")
    assert run.file.stat().st_uid == run.folder.stat().st_uid


def test_in_a_checkpoint_folder_only_the_containers_files_change_their_owner(
    run: Run, client: Any, base: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    for name, owner in (("theirs", NOBODY), ("a colleague's", 4242)):
        (checkpoint / name).write_text("x")
        os.chown(checkpoint / name, owner, owner)
    wanted = run.wanted._replace(image=base, user=f"{NOBODY}:{NOBODY}")
    assert tidy(client, wanted, settled, checkpoint=str(checkpoint)) == (True, ())
    assert (checkpoint / "theirs").stat().st_uid == checkpoint.stat().st_uid
    assert (checkpoint / "a colleague's").stat().st_uid == 4242


def test_a_folder_that_cannot_be_read_is_no_fault_of_the_engine(run: Run, client: Any) -> None:
    found = tidy(client, run.wanted._replace(folder=str(run.file)), settled)
    assert found.is_clean
    [note] = found.notes
    assert f"{run.file}: Not a directory" in note
    assert "engine" not in note
    assert not run.left()


def test_a_folder_that_is_gone_needs_no_owner(run: Run, client: Any) -> None:
    shutil.rmtree(run.folder)
    assert tidy(client, run.wanted, settled) == (True, ())
    assert not run.left()


def test_a_container_that_comes_late_is_removed_too(run: Run, client: Any, base: str) -> None:
    calls = []

    def settle() -> bool:
        """The first time it is still being made, the second time it is there."""
        calls.append(1)
        if len(calls) == 2:
            run.add(base, "--label", run.label)
        return len(calls) == 2

    found = tidy(client, run.wanted._replace(image=base), settle)
    assert found == (True, ())
    assert not run.left()


def test_a_container_that_may_still_come_is_told(run: Run, client: Any, base: str) -> None:
    found = tidy(client, run.wanted._replace(image=base), lambda: False)
    assert not found.is_clean
    assert "still making a container" in found.notes[0]

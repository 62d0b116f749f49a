"""`make image` and its like without what they need: one clear sentence and the cure, at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.images.pins import CHECKOUT

pytestmark = pytest.mark.dev
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def images(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.images", *words],
        cwd=CHECKOUT, env={**os.environ, **NO_ENGINE, **environ},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["build", "test"])
def test_without_an_engine_the_cure_is_named(command: str) -> None:
    done = images(command, "cpu")
    assert (done.returncode, done.stdout) == (1, "")
    what, cure = done.stderr.splitlines()[-2:]
    assert what.startswith("images: ")
    assert cure.startswith("  cure: install Docker")
    assert "Traceback" not in done.stderr


def test_without_any_client_that_is_said(tmp_path: Path) -> None:
    done = images("build", "cpu", PATH=str(tmp_path))
    assert done.stderr.startswith("images: no program `docker` is on PATH\n  cure: install Docker")


@pytest.mark.parametrize("command", ["build", "name", "test"])
def test_a_target_that_there_is_not_is_answered_with_those_that_there_are(command: str) -> None:
    done = images(command, "gpu")
    assert done.returncode == 1
    assert "no target 'gpu'" in done.stderr
    assert "base, cpu, cpu-devel, cuda-efa, neuron" in done.stderr


def test_a_misspelt_command_is_refused_with_the_commands() -> None:
    done = images("biuld", "cpu")
    assert done.returncode == 2
    assert "invalid choice: 'biuld'" in done.stderr


CLIENT = """\
#!/bin/sh
case $1 in
  version) echo "{client} 20.10.24" ;;
  image | pull | buildx) exit 1 ;;
esac
"""


def with_client(folder: Path, version: str) -> str:
    """PATH with a client that answers as such a version, beside an engine without any image."""
    program = folder / "docker"
    program.write_text(CLIENT.format(client=version))
    program.chmod(0o755)
    return str(folder)


def test_a_client_that_cannot_build_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    path = with_client(tmp_path, "28.2.2")
    done = images("build", "cpu", PATH=path)
    assert done.returncode == 1
    assert "version 28.2.2 needs its plugin buildx to build" in done.stderr


def test_a_base_that_is_not_here_and_cannot_be_pulled_is_named_with_both_cures(
    tmp_path: Path,
) -> None:
    done = images("build", "cpu", PATH=with_client(tmp_path, "20.10.24"))
    assert done.returncode == 1
    assert "is not here and could not be pulled" in done.stderr
    assert "make base-image" in done.stderr
    assert "BASE_IMAGE=" in done.stderr


@pytest.mark.parametrize("name", ["PIP_CONF", "CA_BUNDLE"])
def test_a_file_that_a_build_is_to_be_given_must_be_there(tmp_path: Path, name: str) -> None:
    given = {name: "/nonexistent/file", "BASE_IMAGE": "mine"}
    done = images("build", "cpu", PATH=with_client(tmp_path, "20.10.24"), **given)
    assert done.returncode == 1
    assert f"{name}=/nonexistent/file: there is no such file" in done.stderr

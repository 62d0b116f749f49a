"""A user that nobody knows has a name and a home in his job."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.train.environment import of_children

STRANGER = 54321


def as_stranger(environ: dict[str, str], private: Path) -> dict[str, str]:
    """What a process of that user gets."""
    if os.getuid() != 0:
        pytest.skip("only root can become a user that nobody knows")
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        os.write(writes, json.dumps(dict(of_children(environ, str(private)))).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found: dict[str, str] = json.loads(text)
    return found


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder for temporary files that anybody reaches, as pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def test_a_stranger_gets_a_name_and_a_home_of_his_own(shared: Path) -> None:
    found = as_stranger({"HOME": "/"}, shared)
    assert found["LOGNAME"] == f"user-{STRANGER}"
    home = os.lstat(found["HOME"])
    assert (home.st_uid, home.st_mode & 0o777) == (STRANGER, 0o700)


def test_what_a_stranger_has_is_kept(shared: Path) -> None:
    own = {"HOME": str(shared), "USER": "me"}
    assert as_stranger(own, shared) == own
    assert list(shared.iterdir()) == []


def test_a_home_that_cannot_be_made_is_left_out(shared: Path) -> None:
    assert as_stranger({"HOME": "/"}, shared / "nowhere")["HOME"] == "/"


def test_a_user_that_is_known_keeps_the_environment() -> None:
    assert of_children({"HOME": "/nonexistent"}, "/nonexistent") == {"HOME": "/nonexistent"}

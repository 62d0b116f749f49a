"""What a shim removes for a supervisor that is gone, whichever shim comes first."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from muster.run.child import private_folder
from muster.run.child.rank_shim import PREFIX, SOCKET, tidy


@pytest.fixture
def supervisor() -> Iterator[tuple[Path, socket.socket]]:
    """Its private folder, in a short path as sockets need, and the socket that listens there."""
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        listening.bind(os.path.join(name, SOCKET))
        listening.listen()
        yield Path(name), listening


def test_another_shim_may_have_removed_the_private_folder_already(
    supervisor: tuple[Path, socket.socket], tmp_path: Path
) -> None:
    folder, listening = supervisor
    memory = tmp_path / "memory"
    (memory / "session").mkdir(parents=True)
    listening.close()
    tidy(str(folder / SOCKET))
    assert not folder.exists()
    assert memory.exists()
    tidy(str(folder / SOCKET), os.fsencode(memory))
    assert not memory.exists()


def test_nothing_of_a_supervisor_that_lives_is_removed(
    supervisor: tuple[Path, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.run.child.rank_shim.ENDING_S", 0.0)
    folder, _ = supervisor
    tidy(str(folder / SOCKET), os.fsencode(tmp_path))
    assert folder.exists()
    assert tmp_path.exists()


def test_folders_of_jobs_that_end_while_one_looks_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{PREFIX}{number:012x}" for number in range(2)]
    for name in names:
        (tmp_path / name).mkdir()
    with os.scandir(tmp_path) as entries:
        seen = sorted(entries, key=lambda entry: entry.name)
    (tmp_path / names[0]).rmdir()
    monkeypatch.setattr(os, "scandir", lambda parent: nullcontext(seen))
    private_folder.remove_abandoned(str(tmp_path))
    assert os.listdir(tmp_path) == names[1:]

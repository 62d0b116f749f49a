"""Locks where the file system has none, as some network file systems, and locks that stay held."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from muster.arguments import UsageError
from muster.local import caches
from muster.local.record.runfolder import make_run_folder


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("without_locks")
def test_caches_are_used_without_a_lock(tmp_path: Path) -> None:
    found = caches.find_caches({"HOME": str(tmp_path)})
    lock = caches.use(found)
    assert lock >= 0
    caches.release(lock)


def test_a_run_that_was_stopped_amid_its_start_holds_no_other_one_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "STARTING_S", 0.2)
    found = caches.find_caches({"HOME": str(tmp_path)})
    with (tmp_path / ".cache" / "muster" / caches.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        lock = caches.use(found)
    assert lock >= 0
    caches.release(lock)


@pytest.mark.usefixtures("without_locks")
def test_a_folder_that_cannot_be_locked_is_not_said_to_be_in_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="out: it cannot be locked: No locks available"):
        make_run_folder("t.py", str(tmp_path / "out"))

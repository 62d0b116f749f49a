"""Locks where the file system has none, as some network file systems, and locks that stay held."""

from __future__ import annotations

import errno
import fcntl
import os
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
    monkeypatch.setattr(caches, "ALONE_S", 0.2)
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


def test_locks_of_builds_are_removed_where_no_run_is_at_work_and_only_old_ones(
    tmp_path: Path,
) -> None:
    found = caches.find_caches({"HOME": str(tmp_path)})
    built = Path(found.compiled[".cache/torch_extensions"])
    old, new = built / "one" / "lock", built / "two" / "lock"
    for file in (old, new):
        file.parent.mkdir()
        file.touch()
    os.utime(old, (1, 1))
    os.utime(new, (4e9, 4e9))  # as of a build that begins while the others are looked through
    first = caches.use(found)
    assert not old.exists() and new.exists()
    old.touch()
    os.utime(old, (1, 1))
    second = caches.use(found)  # and the first is at work
    assert old.exists()
    caches.release(first)
    caches.release(second)
    caches.release(caches.use(found))
    assert not old.exists()

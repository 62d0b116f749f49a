"""Environments of peers: made from a lock, reused while it is the same, refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import venvs

pytestmark = pytest.mark.dev


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venvs, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("UV_OFFLINE", "1")


def test_an_environment_is_made_once_for_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# nothing\n")
    place = venvs.locked_environment("peer", lock)
    mark = place / "mark"
    mark.touch()
    assert venvs.locked_environment("peer", lock) == place and mark.exists()
    lock.write_text("# nothing, but new\n")
    assert venvs.locked_environment("peer", lock) == place and not mark.exists()


def test_what_cannot_be_installed_is_refused_with_the_installers_words(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("conformance-package-that-does-not-exist==1\n")
    with pytest.raises(venvs.UnavailableError, match="conformance-package-that-does-not-exist"):
        venvs.locked_environment("peer", lock)

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


BACKEND = """\
import os, shutil, zipfile
def build_wheel(folder, settings=None, metadata=None):
    name, info = "compiled-1-py3-none-any.whl", "compiled-1.dist-info/"
    how = f"HOW = {os.environ['HOW']!r}; PYTHON = {shutil.which('python')!r}"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("compiled.py", how)
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: compiled\\nVersion: 1")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def test_a_source_is_compiled_in_the_environment_and_anew_for_other_settings(
    tmp_path: Path,
) -> None:
    lock, project = tmp_path / "lock.txt", tmp_path / "project"
    lock.write_text("# nothing\n")
    project.mkdir()
    (project / "backend.py").write_text(BACKEND)
    (project / "pyproject.toml").write_text(PROJECT)
    for how in ("one way", "another"):
        source = venvs.Source(str(project), {"HOW": how}, {"compiled.py": "; MORE = 1"})
        place = venvs.locked_environment("compiled", lock, source=source)
        (module,) = place.glob("lib/*/site-packages/compiled.py")
        python = str(place / "bin/python")
        assert module.read_text() == f"HOW = {how!r}; PYTHON = {python!r}; MORE = 1"


def test_what_cannot_be_installed_is_refused_with_the_installers_words(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("conformance-package-that-does-not-exist==1\n")
    with pytest.raises(venvs.UnavailableError, match="conformance-package-that-does-not-exist"):
        venvs.locked_environment("peer", lock)

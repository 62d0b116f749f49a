"""What of a source folder is packed: git's rules, and `.musterignore`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from muster.arguments import UsageError
from muster.local.code.ignored import NOTHING, find_ignored
from muster.local.code.sourcecode import LEFT_OUT, find_files

FILES = ("train.py", "keep.bin", "big.bin", "data/a", "data/b", "lib/own.py", "lib/x.bin")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of a work tree, in which git ignores `*.bin` and `data`, and tracks keep.bin."""
    source = tmp_path / "repository/job"
    for name in FILES:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    git(source.parent, "init", "-q")
    (source.parent / ".gitignore").write_text("*.bin\ndata/\n")
    git(source, "add", "-f", "keep.bin")
    return source


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def packed(source: Path, program: str = "train.py") -> set[str]:
    ignored = find_ignored(str(source)).but_for(program)
    return {os.path.relpath(path, source) for path in find_files(str(source), (), ignored)}


def test_what_git_ignores_is_not_packed_and_what_it_tracks_is(source: Path) -> None:
    assert packed(source) == {"train.py", "keep.bin", "lib/own.py"}
    assert packed(source / "lib", "own.py") == {"own.py"}
    told = find_ignored(str(source)).in_words(LEFT_OUT)
    assert told.startswith("not packed, by .gitignore: big.bin, data/, lib/x.bin")
    assert ".musterignore decides instead" in told


def test_caches_and_environments_are_not_worth_a_word(source: Path) -> None:
    (source.parent / ".gitignore").write_text("__pycache__/\n")
    (source / "__pycache__").mkdir()
    (source / "__pycache__/x.pyc").touch()
    assert find_ignored(str(source)).in_words(LEFT_OUT) == ""


def test_a_musterignore_decides_alone(source: Path) -> None:
    (source / ".musterignore").write_text("/lib\n")
    assert packed(source) == {*FILES[:5], ".musterignore"}
    (source / ".musterignore").write_text("")
    assert packed(source) == {*FILES, ".musterignore"}


def test_a_musterignore_needs_no_work_tree(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").touch()
    assert packed(tmp_path) == {"train.py", "data/a"}
    assert find_ignored(str(tmp_path)) == NOTHING
    (tmp_path / ".musterignore").write_text("data\n")
    assert packed(tmp_path) == {"train.py", ".musterignore"}


@pytest.mark.parametrize("program", ["data/a", "big.bin"])
def test_the_program_is_packed_in_any_case(source: Path, program: str) -> None:
    assert program in packed(source, program)


def test_a_source_folder_that_git_ignores_is_packed_whole(source: Path) -> None:
    assert packed(source / "data", "a") == {"a", "b"}


def test_without_git_a_work_tree_is_packed_whole_and_a_musterignore_is_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert packed(source) == set(FILES)
    assert "everything is packed" in find_ignored(str(source)).in_words()
    (source / ".musterignore").touch()
    with pytest.raises(UsageError, match="git is not installed"):
        find_ignored(str(source))

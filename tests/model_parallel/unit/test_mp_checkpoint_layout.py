"""Folders of checkpoints: whatever moment a save ends at, a whole checkpoint is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster_modelparallel.checkpoint import layout
from muster_modelparallel.checkpoint.layout import Manifest
from muster_modelparallel.errors import CheckpointError


def save(path: Path, tag: str, text: str) -> None:
    folder = Path(layout.begin_partial(str(path), tag))
    size = layout.write_file(str(folder / "model_0_0.pt"), lambda to: Path(to).write_text(text))
    layout.finish_partial(str(path), tag, Manifest(1, 1, {"model_0_0.pt": size}))
    layout.write_newest(str(path), tag)


def newest(path: Path) -> str:
    folder = Path(layout.find(str(path), layout.read_newest(str(path))))
    assert layout.read_manifest(str(folder)) == Manifest(1, 1, {"model_0_0.pt": 3})
    return (folder / "model_0_0.pt").read_text()


class Killed(BaseException):
    """Stands for a SIGKILL at a call of the operating system."""


CALLS = ("rename", "replace", "makedirs", "fsync")


@pytest.mark.parametrize("tag", ["one", "two"], ids=["the same tag", "another tag"])
def test_a_save_that_is_cut_short_anywhere_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    """Killed before and after each of its calls that change the folder."""
    seen = 0
    for fatal in range(1000):
        path = tmp_path / str(fatal)
        path.mkdir()
        save(path, "one", "old")
        left = [fatal]
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, counted(getattr(os, name), left))
            try:
                save(path, tag, "new")
            except Killed:
                seen += 1
                assert newest(path) in ("old", "new")
            else:
                break
        save(path, tag, "yes")  # and the next one comes through whatever was left
        assert newest(path) == "yes"
    assert seen >= 10


def counted(call, left):  # type: ignore[no-untyped-def]
    def wrapped(*words, **options):  # type: ignore[no-untyped-def]
        left[0] -= 1
        if left[0] == -1:
            raise Killed
        result = call(*words, **options)
        left[0] -= 1
        if left[0] == -1:
            raise Killed
        return result

    return wrapped


def test_a_file_that_is_missing_or_short_is_named(tmp_path: Path) -> None:
    save(tmp_path, "one", "old")
    file = tmp_path / "one_partial" / "model_0_0.pt"
    file.write_text("ol")
    with pytest.raises(CheckpointError, match=r"model_0_0.pt has 2 of its 3 bytes"):
        layout.read_manifest(str(file.parent))
    file.unlink()
    with pytest.raises(CheckpointError, match=r"model_0_0.pt is missing"):
        layout.read_manifest(str(file.parent))


def test_only_the_oldest_checkpoints_are_removed(tmp_path: Path) -> None:
    (tmp_path / "mine_partial").mkdir()  # without a manifest: nobody's business
    for number in range(4):
        save(tmp_path, f"step{number}", "old")
        os.utime(tmp_path / f"step{number}_partial" / layout.MANIFEST, (number, number))
    layout.remove_oldest(str(tmp_path), 2)
    left = {name.name for name in tmp_path.iterdir()}
    assert left == {"mine_partial", "step2_partial", "step3_partial", "newest"}


@pytest.mark.parametrize("tag", ["", ".", "..", "../up", "a/b", "newest"])
def test_a_tag_that_leads_elsewhere_is_refused(tag: str) -> None:
    with pytest.raises(CheckpointError, match="no name of a file"):
        layout.checked_tag(tag)


def test_what_is_there_is_said_where_nothing_fits(tmp_path: Path) -> None:
    save(tmp_path, "one", "old")
    with pytest.raises(CheckpointError, match="no checkpoint two_partial; in it: newest, one_part"):
        layout.find(str(tmp_path), "two")
    with pytest.raises(CheckpointError, match="has no file `newest`"):
        layout.read_newest(str(tmp_path / "one_partial"))

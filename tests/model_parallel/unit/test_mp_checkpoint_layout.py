"""Folders of checkpoints: whatever moment a save ends at, a whole checkpoint is found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_modelparallel.checkpoint import layout
from muster_modelparallel.checkpoint.layout import Manifest
from muster_modelparallel.errors import CheckpointError


def save(path: Path, tag: str, text: str) -> None:
    place = layout.partial_folder(str(path), tag)
    folder = Path(layout.begin(place))
    size = layout.write_file(str(folder / "model_0_0.pt"), lambda to: to.write(text.encode()))
    layout.finish_partial(place, Manifest("save", 1, 1, 1, {"model_0_0.pt": size}))
    layout.write_newest(str(path), tag)


def save_full(path: Path, tag: str, text: str) -> None:
    folder, names = Path(layout.begin(str(path / tag))), layout.full_names(tag)
    names = names if text != "new" else names[:2]
    sizes = {
        name: layout.write_file(str(folder / name), lambda to: to.write(text.encode()))
        for name in names
    }
    layout.finish_full(str(path), tag, Manifest("save", 1, 1, 1, sizes))


def newest(path: Path) -> str:
    folder = Path(layout.find(str(path), layout.read_newest(str(path))))
    tag = layout.read_newest(str(path))
    assert layout.read_manifest(str(path), tag) == Manifest("save", 1, 1, 1, {"model_0_0.pt": 3})
    return (folder / "model_0_0.pt").read_text()


class Killed(BaseException):
    """Stands for a SIGKILL at a call of the operating system."""


def newest_full(path: Path) -> str:
    tag = layout.read_newest(str(path), layout.NEWEST_FULL)
    layout.finish_full(str(path), tag)
    found = [path / name for name in layout.full_names(tag)]
    (text,) = {file.read_text() for file in found if file.exists()}
    assert found[2].exists() == (text != "new")
    return text


CALLS = ("rename", "replace", "makedirs", "fsync", "unlink", "rmdir")


@pytest.mark.parametrize("ways", [(save, newest), (save_full, newest_full)], ids=["part", "full"])
@pytest.mark.parametrize("tag", ["one", "two"], ids=["the same tag", "another tag"])
def test_a_save_that_is_cut_short_anywhere_leaves_a_whole_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tag: str,
    ways: tuple[Callable[[Path, str, str], None], Callable[[Path], str]],
) -> None:
    """Killed before and after each of its calls that change the folder."""
    seen, (save, newest) = 0, ways
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


@pytest.mark.promise("B55")
def test_a_file_that_is_missing_or_short_is_named(tmp_path: Path) -> None:
    save(tmp_path, "one", "old")
    file = tmp_path / "one_partial" / "model_0_0.pt"
    file.write_text("ol")
    with pytest.raises(CheckpointError, match=r"model_0_0.pt has 2 of its 3 bytes"):
        layout.read_manifest(str(tmp_path), "one")
    file.unlink()
    with pytest.raises(CheckpointError, match=r"model_0_0.pt is missing"):
        layout.read_manifest(str(tmp_path), "one")
    save_full(tmp_path, "full", "new")
    assert layout.saved(str(tmp_path), partial=False).keys() == {"full"}
    (tmp_path / "optimizer_full").write_text("ne")
    with pytest.raises(CheckpointError, match=r"optimizer_full has 2 of its 3 bytes"):
        layout.read_manifest(str(tmp_path), "full", partial=False)
    assert layout.saved(str(tmp_path), partial=False) == {}


def test_a_file_is_written_in_pieces_each_of_which_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PIECE_BYTES", 10)
    file, sizes = tmp_path / "file", []

    def look() -> None:
        (being_written,) = tmp_path.iterdir()
        sizes.append(being_written.stat().st_size)

    def write(to: Any) -> None:
        assert to.write(b"abcd") == 4
        assert to.write(memoryview(bytes(range(30)))) == 30

    assert layout.write_file(str(file), write, look) == 34
    assert sizes == [10, 20, 30]
    assert file.read_bytes() == b"abcd" + bytes(range(30))


def test_only_the_oldest_checkpoints_are_removed(tmp_path: Path) -> None:
    (tmp_path / "mine_partial").mkdir()  # without a manifest: nobody's business
    layout.begin(str(tmp_path / "cut_partial"))
    for number in range(4):
        place = layout.partial_folder(str(tmp_path), f"step{number}")
        layout.begin(place)
        layout.finish_partial(place, Manifest("save", number, 1, 1, {}))
        os.utime(
            f"{place}/{layout.MANIFEST}", (4e9 - number, 4e9 - number)
        )  # a clock that is wrong
    layout.write_newest(str(tmp_path), "step0")
    layout.remove_oldest(str(tmp_path), 2)
    left = {name.name for name in tmp_path.iterdir()}
    assert left == {"mine_partial", "step0_partial", "step2_partial", "step3_partial", "newest"}


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


def test_what_stopped_a_write_is_what_is_raised_and_not_what_the_writer_made_of_it(
    tmp_path: Path,
) -> None:
    def lost() -> None:
        raise ConnectionError("rank 1 is gone")

    def write(to: Any) -> None:
        try:
            to.write(bytes(layout.PIECE_BYTES))
        except ConnectionError:
            raise RuntimeError("unexpected pos 704 vs 598") from None

    with pytest.raises(ConnectionError, match="rank 1 is gone"):
        layout.write_file(str(tmp_path / "model.pt"), write, lost)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tag", ["manifest_x", "optimizer_x", "user_content_x"])
def test_a_tag_that_is_the_name_of_another_tags_file_is_refused(tag: str) -> None:
    with pytest.raises(CheckpointError, match="is no name of a file"):
        layout.checked_tag(tag)

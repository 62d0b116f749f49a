"""The folders and names of checkpoints, as the public documentation shows them.

    path/
      TAG_partial/             model_P_T.pt  optimizer_P_T.pt  user_content.pt  manifest.json
                               or, in pieces (muster's own), the files of torch's DCP and rest.pt
      TAG                      a full checkpoint: the state of the model
      optimizer_TAG            beside it, muster's own: the state of the optimizer
      user_content_TAG
      manifest_TAG
      newest                   the tag of the newest partial checkpoint
      newest_full              muster's own: that of the newest full one

P and T are a rank's places on the pipeline and tensor axes. What is being written stands in
`TAG_partial.incomplete`, and what it takes the place of in `TAG_partial.replaced`: whenever a save
is cut short, one complete checkpoint is left under a name that `find` knows. A full checkpoint is
written to `TAG.incomplete`, and its manifest there says that all is: from then on `finish_full`
puts it in its place, at the latest when somebody resumes.
Source: developer guide, "Checkpointing a distributed PyTorch model".
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from muster_modelparallel.errors import CheckpointError

NEWEST = "newest"
NEWEST_FULL = "newest_full"
MANIFEST = "manifest.json"
_FULL_MANIFEST = "manifest_"  # before the tag
_TAKEN = (_FULL_MANIFEST, "optimizer_", "user_content_")  # what lies beside the files of a tag
USER_CONTENT = "user_content.pt"
PARTIAL = "_partial"
INCOMPLETE = ".incomplete"
REPLACED = ".replaced"
_FORMAT = 1
_MANIFEST_BYTES = 64 << 20
PIECE_BYTES = 64 << 20  # a disk that takes longer for them than ranks wait for each other is stuck

Wrote = Callable[[], None]


ANY_DEGREES = (0, 0)  # pipeline and tensor of a checkpoint in pieces


class Manifest(NamedTuple):
    """What a checkpoint is made of. `save`: of all its files on all hosts, and of no other one.
    `order`: of two saves the later has the higher one. `files`: name -> bytes."""

    save: str
    order: int
    pipeline: int
    tensor: int
    files: Mapping[str, int]


def checked_tag(tag: object) -> str:
    """A tag as the name of a file. Raises CheckpointError for what leads elsewhere."""
    text = str(tag)
    taken = text in (".", "..", NEWEST, NEWEST_FULL) or text.startswith(_TAKEN)
    if not text or taken or os.path.basename(text) != text:
        raise CheckpointError(
            f"tag {text!r} is no name of a file in the checkpoint's folder",
            'use a name such as "step100"',
        )
    return text


def partial_folder(path: str, tag: str) -> str:
    return os.path.join(path, tag + PARTIAL)


def begin(place: str) -> str:
    """An empty folder to write into. What stands in the place stays until it is finished."""
    folder = place + INCOMPLETE
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def finish_partial(folder: str, manifest: Manifest) -> None:
    """Puts what was written in its place."""
    written = folder + INCOMPLETE
    _write_manifest(written, manifest)
    if os.path.isdir(folder):  # else what was replaced may be the only one
        shutil.rmtree(folder + REPLACED, ignore_errors=True)
        os.rename(folder, folder + REPLACED)
    os.rename(written, folder)
    shutil.rmtree(folder + REPLACED, ignore_errors=True)


def finish_full(path: str, tag: str, manifest: Manifest | None = None) -> None:
    """Puts what was written in its place: of this save, or of one that was cut short after all
    was written. Parts of an earlier checkpoint of that tag which it lacks go."""
    written = os.path.join(path, tag) + INCOMPLETE
    if manifest is not None:
        _write_manifest(written, manifest)
    found = _manifest_in(os.path.join(written, MANIFEST))
    if found is None:
        return
    for name in full_names(tag):
        place = os.path.join(path, name)
        try:
            os.replace(os.path.join(written, name), place)
        except FileNotFoundError:
            if name not in found.files:
                remove_file(place)
    write_newest(path, tag, NEWEST_FULL)
    with contextlib.suppress(FileNotFoundError):  # another rank that resumes was first
        os.replace(os.path.join(written, MANIFEST), os.path.join(path, _FULL_MANIFEST + tag))
    shutil.rmtree(written, ignore_errors=True)


def partial_names(pp: int, tp: int) -> tuple[str, str, str]:
    """The files of a place in a partial checkpoint: model, optimizer, the script's own values."""
    return f"model_{pp}_{tp}.pt", f"optimizer_{pp}_{tp}.pt", USER_CONTENT


def full_names(tag: str) -> tuple[str, str, str]:
    """The files of a full checkpoint, in the same order."""
    return tag, f"optimizer_{tag}", f"user_content_{tag}"


def write_newest(path: str, tag: str, name: str = NEWEST) -> None:
    write_file(os.path.join(path, name), lambda to: to.write(tag.encode()))


def read_newest(path: str, name: str = NEWEST) -> str:
    """The newest tag. Raises CheckpointError where there is none."""
    try:
        with open(os.path.join(path, name), encoding="utf-8") as file:
            return checked_tag(file.read(4096).strip())
    except OSError as error:
        raise CheckpointError(
            f"{path} has no file `{name}` that names a checkpoint: {_why(error)}"
            f"; in it: {_listed(path)}",
            "name the tag, or the folder that save_checkpoint was given",
        ) from error


def find(path: str, tag: str) -> str:
    """The folder of a partial checkpoint; also that of a save which was cut short while it took
    another one's place. Raises CheckpointError where there is none."""
    folder = partial_folder(path, tag)
    for name in (folder, folder + REPLACED):
        if os.path.isdir(name):
            return name
    raise CheckpointError(
        f"{path} has no checkpoint {os.path.basename(folder)}; in it: {_listed(path)}",
        "give a tag that is there, or partial=False for a full checkpoint",
    )


def read_manifest(path: str, tag: str, partial: bool = True) -> Manifest | None:
    """None for a checkpoint that was not written by muster. Raises CheckpointError for one that is
    not there, or whose files are not all there with all their bytes."""
    folder = find(path, tag) if partial else path
    manifest = _manifest_in(os.path.join(folder, MANIFEST if partial else _FULL_MANIFEST + tag))
    for file_name, size in manifest.files.items() if manifest is not None else ():
        found = _size_of(os.path.join(folder, os.path.basename(file_name)))
        if found != size:
            held = "is missing" if found is None else f"has {found} of its {size} bytes"
            raise CheckpointError(
                f"the checkpoint {tag} in {path} is not whole: {file_name} {held}",
                "resume from another tag",
            )
    return manifest


def _manifest_in(name: str) -> Manifest | None:
    """None where there is no such file. Raises CheckpointError for one that cannot be read."""
    try:
        with open(name, encoding="utf-8") as file:
            read = json.loads(file.read(_MANIFEST_BYTES))
        manifest = Manifest(
            str(read["save"]), int(read["order"]), int(read["pipeline"]), int(read["tensor"]),
            dict(read["files"]),
        )  # fmt: skip
        newer = int(read["format"]) > _FORMAT
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{name} cannot be read: {error}") from error
    if newer:
        raise CheckpointError(f"{name} was written by a newer muster", "install that one")
    return manifest


def saved(path: str, partial: bool = True) -> dict[str, Manifest]:
    """The whole checkpoints of muster's in a folder, by tag: the partial or the full ones."""
    names = [os.path.basename(folder) for folder in _partial_folders(path)]
    tags = {name.removesuffix(REPLACED).removesuffix(PARTIAL) for name in names}
    if not partial:
        names = os.listdir(path) if os.path.isdir(path) else []
        tags = {
            name.removeprefix(_FULL_MANIFEST) for name in names if name.startswith(_FULL_MANIFEST)
        }
    found = {}
    for tag in tags:
        with contextlib.suppress(CheckpointError):
            manifest = read_manifest(path, tag, partial)
            if manifest is not None:
                found[tag] = manifest
    return found


def remove_oldest(path: str, kept: int) -> None:
    """Removes partial checkpoints but the `kept` latest saves, and what saves that were cut short
    have left; nothing that muster has not written."""
    found = sorted((manifest.order, tag) for tag, manifest in saved(path).items())
    newest = read_newest(path)
    for _, tag in found[: max(0, len(found) - kept)]:
        if tag != newest:
            shutil.rmtree(partial_folder(path, tag), ignore_errors=True)
    for folder in _partial_folders(path, INCOMPLETE):
        shutil.rmtree(folder, ignore_errors=True)


def _partial_folders(path: str, *endings: str) -> list[str]:
    every = [PARTIAL + ending for ending in endings or ("", REPLACED)]
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return [
            entry.path for entry in entries
            if entry.name.endswith(tuple(every)) and entry.is_dir(follow_symlinks=False)
        ]  # fmt: skip
    return []


def _write_manifest(folder: str, manifest: Manifest) -> None:
    text = json.dumps({"format": _FORMAT, **manifest._asdict(), "files": dict(manifest.files)})
    write_file(os.path.join(folder, MANIFEST), lambda to: to.write(text.encode()))


def write_file(path: str, write: Callable[[Any], object], wrote: Wrote = lambda: None) -> int:
    """Writes a file so that it is there whole or not at all; returns its bytes. `write` is given
    the open file; `wrote` is called whenever a part of it is on the disk."""
    beside = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        with open(beside, "xb", buffering=0) as file:
            pieces = _InPieces(file, wrote)
            try:
                write(pieces)
            except Exception:
                if pieces.failed is not None:  # torch's writer says something else of it
                    raise pieces.failed from None
                raise
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(beside, path)
    finally:
        remove_file(beside)
    return size


class _InPieces:
    """A file that is written in pieces, each of which is on the disk before the next is begun."""

    def __init__(self, file: io.FileIO, wrote: Wrote) -> None:
        self._file, self._wrote = file, wrote
        self._unsaid = 0
        self.failed: Exception | None = None

    def write(self, data: Any) -> int:
        try:
            return self._written(data)
        except Exception as error:
            self.failed = self.failed or error
            raise

    def _written(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            done = self._file.write(left[: PIECE_BYTES - self._unsaid])
            left, self._unsaid = left[done:], self._unsaid + done
            if self._unsaid >= PIECE_BYTES:
                os.fsync(self._file.fileno())
                self._unsaid = 0
                self._wrote()
        return size

    def flush(self) -> None:
        """Nothing is held back."""


def remove_file(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _size_of(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _listed(path: str) -> str:
    try:
        names: Sequence[str] = sorted(os.listdir(path))
    except OSError as error:
        return f"nothing ({_why(error)})"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) or "nothing") + more

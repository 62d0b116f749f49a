"""The folders and names of checkpoints, as the public documentation shows them.

    path/
      TAG_partial/             model_P_T.pt  optimizer_P_T.pt  user_content.pt  manifest.json
      TAG                      a full checkpoint: the state of the model
      optimizer_TAG            beside it, muster's own: the state of the optimizer
      user_content_TAG
      newest                   the tag of the newest checkpoint

P and T are a rank's places on the pipeline and tensor axes. What is being written stands in
`TAG_partial.incomplete`, and what it takes the place of in `TAG_partial.replaced`: whenever a save
is cut short, one complete checkpoint is left under a name that `find` knows.
Source: developer guide, "Checkpointing a distributed PyTorch model".
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from muster_modelparallel.errors import CheckpointError

NEWEST = "newest"
MANIFEST = "manifest.json"
USER_CONTENT = "user_content.pt"
PARTIAL = "_partial"
INCOMPLETE = ".incomplete"
REPLACED = ".replaced"
_FORMAT = 1
_MANIFEST_BYTES = 64 << 20


class Manifest(NamedTuple):
    """What a partial checkpoint is made of. `files`: name -> bytes."""

    pipeline: int
    tensor: int
    files: Mapping[str, int]


def checked_tag(tag: object) -> str:
    """A tag as the name of a file. Raises CheckpointError for what leads elsewhere."""
    text = str(tag)
    if not text or text in (".", "..", NEWEST) or os.path.basename(text) != text:
        raise CheckpointError(
            f"tag {text!r} is no name of a file in the checkpoint's folder",
            'use a name such as "step100"',
        )
    return text


def partial_folder(path: str, tag: str) -> str:
    return os.path.join(path, tag + PARTIAL)


def begin_partial(path: str, tag: str) -> str:
    """An empty folder to write into. A checkpoint of that tag stays until `finish_partial`."""
    folder = partial_folder(path, tag) + INCOMPLETE
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def finish_partial(path: str, tag: str, manifest: Manifest) -> None:
    """Puts what was written in its place. Where that was done by another host, nothing."""
    folder = partial_folder(path, tag)
    written = folder + INCOMPLETE
    if not os.path.isdir(written):
        return
    text = json.dumps(
        {"format": _FORMAT, "pipeline": manifest.pipeline, "tensor": manifest.tensor}
        | {"files": dict(manifest.files)}
    )
    write_file(os.path.join(written, MANIFEST), lambda to: _write_text(to, text))
    shutil.rmtree(folder + REPLACED, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, folder + REPLACED)
    os.rename(written, folder)
    shutil.rmtree(folder + REPLACED, ignore_errors=True)


def write_newest(path: str, tag: str) -> None:
    write_file(os.path.join(path, NEWEST), lambda to: _write_text(to, tag))


def read_newest(path: str) -> str:
    """The newest tag. Raises CheckpointError where there is none."""
    try:
        with open(os.path.join(path, NEWEST), encoding="utf-8") as file:
            return checked_tag(file.read(4096).strip())
    except OSError as error:
        raise CheckpointError(
            f"{path} has no file `{NEWEST}` that names a checkpoint: {_why(error)}"
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


def read_manifest(folder: str) -> Manifest | None:
    """None for a checkpoint that was not written by muster. Raises CheckpointError for one whose
    files are not all there with all their bytes."""
    name = os.path.join(folder, MANIFEST)
    try:
        with open(name, encoding="utf-8") as file:
            read = json.loads(file.read(_MANIFEST_BYTES))
        manifest = Manifest(int(read["pipeline"]), int(read["tensor"]), dict(read["files"]))
        newer = int(read["format"]) > _FORMAT
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{name} cannot be read: {error}") from error
    if newer:
        raise CheckpointError(f"{name} was written by a newer muster", "install that one")
    for file_name, size in manifest.files.items():
        found = _size_of(os.path.join(folder, os.path.basename(file_name)))
        if found != size:
            held = "is missing" if found is None else f"has {found} of its {size} bytes"
            raise CheckpointError(
                f"the checkpoint {folder} is not whole: {file_name} {held}",
                "resume from another tag",
            )
    return manifest


def remove_oldest(path: str, kept: int) -> None:
    """Removes partial checkpoints but the `kept` newest ones; nothing that is no checkpoint."""
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(PARTIAL) and entry.is_dir(follow_symlinks=False):
                mark = os.path.join(entry.path, MANIFEST)
                with contextlib.suppress(OSError):
                    found.append((os.stat(mark).st_mtime_ns, entry.path))
    for _, folder in sorted(found)[: max(0, len(found) - kept)]:
        shutil.rmtree(folder, ignore_errors=True)


def write_file(path: str, write: Callable[[str], object]) -> int:
    """Writes a file so that it is there whole or not at all; returns its bytes."""
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        write(beside)
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        size = os.path.getsize(beside)
        os.replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(beside)
    return size


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


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

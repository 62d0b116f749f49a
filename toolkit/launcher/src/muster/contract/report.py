"""Outcome -> the status files, the one writer of `/opt/ml/output`.

Nothing here raises because of a disk: a full or read-only output folder never changes an outcome.
Whatever a script left in the place of a status file (a link, a FIFO, a second name of another
file) is replaced: it is neither followed, nor waited for, nor written to. A mount that does not
answer blocks: callers use a thread.
"""

from __future__ import annotations

import os
import stat

from muster.contract.wording import MAX_FAILURE_BYTES, failure_block, failure_text
from muster.types.job import Paths
from muster.types.masking import Masker
from muster.types.outcome import Outcome, Succeeded

__all__ = ["failure_block", "failure_text", "reserve", "write"]

RESERVE = ".muster-reserve"
TERMINATION = "/dev/termination-log"  # the kubelet shows it as the reason of a pod's end
EARLIER = "failure.earlier"


def reserve(paths: Paths) -> bool:
    """Makes room for the failure file while there is some, before anything else is written.

    Sets status files of an earlier run aside (`failure` as `failure.earlier`). False when the
    output folder cannot be written: `write` then tries again.
    """
    _quietly(os.replace, paths.failure, f"{paths.output}/{EARLIER}")
    _quietly(os.unlink, paths.success)
    _quietly(os.unlink, _reserve_path(paths))
    try:
        os.makedirs(paths.output, exist_ok=True)
        _fill(_reserve_path(paths), b"\n" * MAX_FAILURE_BYTES)
    except OSError:
        return False
    return True


def write(paths: Paths, outcome: Outcome, masker: Masker) -> bool:
    """Writes `success` or `failure`, whole or not at all; a clean stop leaves neither.

    A `failure` that the script wrote in this run stays. False when no file could be written: the
    caller then shows the text on stderr.
    """
    text = failure_text(outcome, masker)
    try:
        if text:
            _write_failure(paths, text.encode())
        elif isinstance(outcome, Succeeded):
            _quietly(os.unlink, _reserve_path(paths))  # its blocks may be the last ones
            os.makedirs(paths.output, exist_ok=True)
            os.close(_open_regular(paths.success))
    except OSError:
        return False
    finally:
        _quietly(os.unlink, _reserve_path(paths))
        if text:
            _tell_kubelet(paths, text.encode())
    return True


def _write_failure(paths: Paths, data: bytes) -> None:
    """Fills the reserved blocks, then gives them the name in one step."""
    if os.path.lexists(paths.failure):
        return
    os.makedirs(paths.output, exist_ok=True)
    path = _reserve_path(paths)
    _fill(path, data)
    try:
        os.link(path, paths.failure)
    except FileExistsError:
        pass  # the script was faster
    except OSError:
        os.rename(path, paths.failure)  # a file system without links


def _tell_kubelet(paths: Paths, data: bytes) -> None:
    """The failure, also a script's own, where Kubernetes looks for it: in a pod's `muster run`."""
    from muster.contract.engines import kubernetes
    from muster.contract.engines.sagemaker import MARK
    from muster.types.files import read_object

    if read_object(f"{paths.config}/{MARK}").get("engine") != kubernetes.NAME:
        return
    try:
        with open(_opened(paths.failure, os.O_RDONLY), "rb") as file:
            data = file.read(MAX_FAILURE_BYTES)
    except OSError:
        pass  # it could not be written
    try:
        with open(_opened(TERMINATION, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(data)
    except OSError:
        pass  # the failure file has it


def _opened(path: str, flags: int) -> int:
    """A regular file that is there. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError
    return descriptor


def _fill(path: str, data: bytes) -> None:
    """Overwrites in place, so that blocks the file has are used again, and waits for the disk."""
    descriptor = _open_regular(path)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_regular(path: str) -> int:
    """A regular file that has no other name, open for writing; anything else there is removed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError:
        pass
    else:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
            return descriptor
        os.close(descriptor)
    _quietly(os.unlink, path)
    return os.open(path, flags | os.O_EXCL, 0o644)


def _reserve_path(paths: Paths) -> str:
    return f"{paths.output}/{RESERVE}"


def _quietly(action: object, *arguments: str) -> None:
    try:
        action(*arguments)  # type: ignore[operator]
    except OSError:
        pass

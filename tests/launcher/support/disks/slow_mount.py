"""A slow file system: whoever opens a path waits in the kernel until the test lets it go on."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# of linux/fanotify.h
_CLASS_CONTENT = 0x04
_MARK_ADD = 0x01
_OPEN_PERM = 0x10000
_ON_FOLDERS = 0x40000000
_ALLOW = 0x01
_HERE = -100  # AT_FDCWD
_EVENT = struct.Struct("=IBBHQii")
_ANSWER = struct.Struct("=iI")
_POLL_S = 0.05


class Held:
    """A path that is held; `waited`: somebody has come to open it."""

    def __init__(self, fd: int) -> None:
        self.waited = threading.Event()
        self._served = threading.Event()
        self._over = threading.Event()
        self._fd = fd
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def serve(self) -> None:
        """Lets all go on, from now on at once."""
        self._served.set()

    def end(self) -> None:
        self._over.set()
        self._thread.join(10)
        os.close(self._fd)  # the kernel lets go of whoever still waits

    def _watch(self) -> None:
        """Takes events as they come, and answers them once served."""
        waiting: list[int] = []
        while not self._over.is_set():
            if select.select([self._fd], [], [], _POLL_S)[0]:
                for fd, pid in _opened(os.read(self._fd, 1 << 16)):
                    if pid == os.getpid():  # the test looks at its own files
                        self._allow(fd)
                    else:
                        waiting.append(fd)
                        self.waited.set()
            while waiting and self._served.is_set():
                self._allow(waiting.pop())
        for fd in waiting:
            self._allow(fd)

    def _allow(self, fd: int) -> None:
        os.write(self._fd, _ANSWER.pack(fd, _ALLOW))
        os.close(fd)


def _opened(data: bytes) -> list[tuple[int, int]]:
    """Of each event the descriptor that names what is to be opened, and who wants it."""
    found, at = [], 0
    while at < len(data):
        size, *_, fd, pid = _EVENT.unpack_from(data, at)
        found.append((fd, pid))
        at += size
    return found


@contextmanager
def held(path: Path) -> Iterator[Held]:
    """Every open of the file or folder by another process waits while the block lasts, or until
    `serve`. Skips the test where the kernel does not let us.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.fanotify_init(_CLASS_CONTENT, os.O_RDONLY | os.O_CLOEXEC)
    if fd < 0:
        pytest.skip(f"the kernel lets us hold no file: {os.strerror(ctypes.get_errno())}")
    mask = ctypes.c_uint64(_OPEN_PERM | _ON_FOLDERS)
    if libc.fanotify_mark(fd, _MARK_ADD, mask, _HERE, os.fsencode(path)):
        error = os.strerror(ctypes.get_errno())
        os.close(fd)
        pytest.skip(f"the kernel does not let us hold {path}: {error}")
    one = Held(fd)
    try:
        yield one
    finally:
        one.end()

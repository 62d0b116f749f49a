"""Who shares a node is proved: a rank has the leader's memory in hand and finds a nonce there.

First a memfd, opened through /proc/PID/fd, which needs no file system and no room in /dev/shm; then
a file in /dev/shm that only its maker's user can open, allocated beforehand (where there is no room
this is an error and not a crash later) and unlinked as soon as all have it open.
The nonce lies behind what the core uses, so the core finds its segment zeroed.
"""

from __future__ import annotations

import hmac
import mmap
import os
import secrets
from contextlib import suppress
from typing import Any

from muster_collectives.runtime import machine
from muster_collectives.runtime.layout import ShmMethod

SHM_FOLDER = "/dev/shm"
HUGE_PAGE = 2 << 20
_NONCE_BYTES = 32
_PAGE = 4096


def offer(shm_method: ShmMethod, bytes_: int) -> tuple[int, dict[str, Any]]:
    """New zeroed memory: its descriptor, and the words by which others find it. Raises OSError."""
    size = -(-bytes_ // _PAGE) * _PAGE + _PAGE
    nonce = secrets.token_bytes(_NONCE_BYTES)
    path = ""
    if shm_method is ShmMethod.MEMFD:
        fd = os.memfd_create("muster-collectives", os.MFD_CLOEXEC)
    else:
        path = f"{SHM_FOLDER}/muster-{os.getpid()}-{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
    try:
        if shm_method is ShmMethod.FILE:
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
        os.pwrite(fd, nonce, size - _PAGE)
    except BaseException:
        os.close(fd)
        withdraw({"path": path})
        raise
    return fd, {
        "pid": os.getpid(), "fd": fd, "path": path, "nonce": nonce.hex(), "bytes": size,
        "pid_namespace": machine.namespace("pid"),
    }  # fmt: skip


def huge(bytes_: int) -> int | None:
    """The descriptor of new zeroed memory in huge pages; None where the system has too few to
    spare, and for less than one. All pages are allocated: a missing one would be a SIGBUS later."""
    if bytes_ < HUGE_PAGE:
        return None
    try:
        flags = os.MFD_CLOEXEC | os.MFD_HUGETLB | os.MFD_HUGE_2MB
        fd = os.memfd_create("muster-collectives", flags)
    except (OSError, AttributeError):
        return None
    try:
        size = (-(-bytes_ // HUGE_PAGE) + 1) * HUGE_PAGE  # one more: memory._map
        os.ftruncate(fd, size)
        # a mapping claims all of its pages or none: of two ranks that ask at once one has them
        with mmap.mmap(fd, size, mmap.MAP_SHARED):
            os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        return None
    return fd


def accept(shm_method: ShmMethod, words: dict[str, Any]) -> int:
    """The offered memory. Raises OSError, ValueError for words that lead to something else."""
    size = int(words["bytes"])
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
    if shm_method is ShmMethod.MEMFD:
        if words["pid_namespace"] != machine.namespace("pid"):
            # the same number is another process here, whose files are not to be touched
            raise ValueError("its process is not seen from here")
        fd = os.open(f"/proc/{int(words['pid'])}/fd/{int(words['fd'])}", flags)
    else:
        fd = os.open(checked_path(str(words["path"])), flags | os.O_NOFOLLOW)
    try:
        facts = os.fstat(fd)
        if facts.st_uid != os.geteuid():
            raise ValueError("it is another user's")
        if facts.st_size != size:
            raise ValueError("it has another size")
        found = os.pread(fd, _NONCE_BYTES, size - _PAGE)
        if not hmac.compare_digest(found, bytes.fromhex(words["nonce"])):
            raise ValueError("the nonce is not there")
    except BaseException:
        os.close(fd)
        raise
    return fd


def withdraw(words: dict[str, Any]) -> None:
    """Takes the name away; who has it open keeps it. Never raises."""
    path = str(words.get("path") or "")
    if path:
        with suppress(OSError):
            os.unlink(path)


def can_memfd() -> bool:
    try:
        os.close(os.memfd_create("muster-probe", os.MFD_CLOEXEC))
    except (OSError, AttributeError):
        return False
    return os.path.isdir("/proc/self/fd")


def close(fd: int) -> None:
    """Never raises."""
    if fd >= 0:
        with suppress(OSError):
            os.close(fd)


def checked_path(path: str) -> str:
    """Words come from other ranks: they may name nothing but our own files."""
    folder, _, name = path.rpartition("/")
    if folder != SHM_FOLDER or not name.startswith("muster-"):
        raise ValueError(f"{path!r} is no file of ours")
    return path

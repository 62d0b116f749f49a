"""Caches in the home folder of hosts in namespaces, which is their own and vanishes with them.

What downloads left in the user's is there to be read; what compilers make goes into folders of
muster's own, which stay and which all hosts of all runs share: their writers lock them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from muster.types.values import NamedTuple

SEEN = ("huggingface", "torch", "pip")  # below ~/.cache
# place below the host's home -> folder below ~/.cache/muster
COMPILED = {
    ".cache/torch_extensions": "torch_extensions",
    ".cache/torchinductor": "torchinductor",
    ".triton": "triton",
}
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"  # its own choice would be in /tmp
LOCK = ".lock"
ALONE_S, PAUSE_S = 5.0, 0.01
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class Caches(NamedTuple):
    """Place below a host's home -> folder. `seen` are the user's, for reading."""

    seen: Mapping[str, str] = {}
    compiled: Mapping[str, str] = {}


def find_caches(caller: Mapping[str, str]) -> Caches:
    """Those that there are, and those that can be made. What cannot be made is each host's own."""
    home = caller.get("HOME") or os.path.expanduser("~")
    root = caller.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    if not os.path.isabs(root):
        return Caches()
    seen = {f".cache/{name}": os.path.realpath(os.path.join(root, name)) for name in SEEN}
    own = os.path.join(root, "muster")
    try:
        os.makedirs(root, exist_ok=True)
        if not os.path.isdir(own):
            os.mkdir(own, 0o700)
        for folder in COMPILED.values():
            os.makedirs(os.path.join(own, folder), exist_ok=True)
    except OSError:
        own = ""
    return Caches(
        {place: folder for place, folder in seen.items() if os.path.isdir(folder)},
        {place: os.path.realpath(os.path.join(own, name)) for place, name in COMPILED.items()}
        if own
        else {},
    )


def use(caches: Caches) -> int:
    """A descriptor that says that a run uses them, -1 without any.

    Torch waits for ever for the lock of a build that was killed: where no other run is at work,
    such locks are removed. Only older ones: the next run may begin to build meanwhile.
    """
    extensions = caches.compiled.get(".cache/torch_extensions")
    if extensions is None:
        return -1
    try:
        lock = os.open(os.path.join(os.path.dirname(extensions), LOCK), _OPEN, 0o600)
    except OSError:
        return -1
    with suppress(OSError):  # another run is at work, or a home without locks
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(lock)
        _share(lock)
        began = os.fstat(lock).st_mtime_ns
        for folder, _, names in os.walk(extensions):
            name = os.path.join(folder, "lock")
            if "lock" in names and os.lstat(name).st_mtime_ns < began:
                os.unlink(name)
    with suppress(OSError):
        _share(lock)
    return lock


def _share(lock: int) -> None:
    """Others hold it alone for a moment only, unless they were stopped in it."""
    for _ in range(int(ALONE_S / PAUSE_S)):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        time.sleep(PAUSE_S)


def release(lock: int) -> None:
    if lock >= 0:
        os.close(lock)

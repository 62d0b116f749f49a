"""The supervisor's private folder: its socket, and what must not outlive the job.

Its name is random, its mode 700. It goes with the supervisor. When that is killed its shims remove
it (`rank_shim`), and when those are killed too, the next start on the machine does. Promises: S18.
"""

from __future__ import annotations

import errno
import os
import socket

from muster.run.child import rank_shim
from muster.run.child.rank_shim import PREFIX, SOCKET
from muster.types.errors import LaunchError

UNIX_PATH_LIMIT = 100
MEMORY = "/dev/shm"
_RANDOM_BYTES = 6


def open_private_folder() -> tuple[str, socket.socket]:
    """A new folder and the socket `s` that listens in it. Raises LaunchError."""
    tried = []
    for parent in (os.environ.get("TMPDIR", "/tmp"), "/tmp", "/dev/shm", "/run", "/var/tmp"):
        path = os.path.join(parent, PREFIX + os.urandom(_RANDOM_BYTES).hex())
        if len(path) > UNIX_PATH_LIMIT - 4:
            continue
        try:
            os.mkdir(path, 0o700)
            return path, _listen(path)
        except OSError as error:
            tried.append(f"{parent}: {_reason(parent, error)}")
            rank_shim.remove(os.fsencode(path))
    raise LaunchError(
        "no folder for the supervisor's socket: " + "; ".join(dict.fromkeys(tried)),
        "mount a writable /tmp with room (tmpfs will do) or set TMPDIR",
    )


def _listen(folder: str) -> socket.socket:
    """The socket gets its name once it listens: one that does not is of a dead supervisor."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        unnamed = os.path.join(folder, "n")
        listener.bind(unnamed)
        listener.listen(1024)
        os.rename(unnamed, os.path.join(folder, SOCKET))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _reason(parent: str, error: OSError) -> str:
    text = error.strerror or str(error)
    try:
        about = os.statvfs(parent)
    except OSError:
        return text
    used_up = error.errno == errno.ENOSPC and about.f_files and not about.f_favail
    return f"{text} (no inode is free)" if used_up else text


def remove_abandoned(parent: str) -> None:
    """Removes this user's folders whose supervisor and shims were killed."""
    with os.scandir(parent) as entries:
        for entry in entries:
            name = entry.name
            if len(name) != len(PREFIX) + 2 * _RANDOM_BYTES or not name.startswith(PREFIX):
                continue
            try:
                mine = entry.is_dir(follow_symlinks=False) and entry.stat().st_uid == os.geteuid()
            except FileNotFoundError:  # of a job that has ended meanwhile
                continue
            if mine and rank_shim.is_abandoned(entry.path):
                rank_shim.remove(os.fsencode(entry.path))


class ScratchFolders:
    """Private folders of a job for what its launcher and ranks leave, removed at its end.

    Open MPI leaves session folders and files of shared memory when it is killed or when its
    processes end in another order than it likes. `home`: the private folder; nothing is made before
    it is asked for.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._files = ""
        self._memory = ""

    def files(self) -> str:
        """A folder for files. Raises OSError."""
        if not self._files:
            path = os.path.join(self._home, "launch")
            os.mkdir(path, 0o700)
            self._files = path
        return self._files

    def memory(self) -> str:
        """A folder in memory, else (no /dev/shm, none that may be written) that for files. Its
        name says whose it is, in case no process is left to remove it."""
        if not self._memory:
            path = os.path.join(MEMORY, f"muster-{os.getpid()}-{os.urandom(6).hex()}")
            try:
                os.mkdir(path, 0o700)
            except OSError:
                return self.files()
            self._memory = path
        return self._memory

    def remove(self) -> None:
        """Removes the home and all that was made; nothing of the job may run any more."""
        for path in (self._home, self._memory):
            rank_shim.remove(os.fsencode(path))

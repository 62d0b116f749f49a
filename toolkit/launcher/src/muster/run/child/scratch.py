"""Private folders of a job for what its launcher and its ranks leave, removed when it has ended.

Open MPI keeps session folders and files of shared memory and leaves them when it is killed,
or when its processes do not end as it likes; so it gets its own folders, which are all removed.
Promises: S18.
"""

from __future__ import annotations

import os

from muster.run.child import rank_shim

MEMORY = "/dev/shm"


class ScratchFolders:
    """Folders of a job that its end removes.

    `home`: a private folder that exists; nothing is made before it is asked for.
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

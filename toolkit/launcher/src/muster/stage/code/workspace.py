"""A fresh private folder for code that is on its way into the code folder.

Nothing half-done ever lies in the code folder: trees are made here and moved in when whole. The
code folder itself stays, since it may be a mount point or somebody's working folder.
"""

from __future__ import annotations

import os

from muster.types.errors import SourceError

PREFIX = ".muster-code-"


def entries(folder: str) -> list[str]:
    """Names in `folder`, without what a killed run left; [] when there is no such folder."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith(PREFIX))
    except (FileNotFoundError, NotADirectoryError):
        return []


class Workspace:
    """A folder on the file system of the code folder, removed on leaving with all that is in it.

    It lies beside the code folder, or, when that is another file system or cannot be written,
    inside. `tree` is an empty folder in it. Raises SourceError when there is no room for it.
    """

    def __init__(self, code: str) -> None:
        self._code = os.path.realpath(code)
        self.folder = ""

    @property
    def tree(self) -> str:
        return os.path.join(self.folder, "tree")

    def __enter__(self) -> Workspace:
        try:
            os.makedirs(self._code, exist_ok=True)
            self.folder = self._make()
            os.mkdir(self.tree, 0o755)
        except OSError as error:
            raise SourceError(
                f"the code folder {self._code} cannot be written: {error.strerror}",
                "mount it writable, or put the code into it before the job starts",
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        remove(self.folder)

    def move_in(self) -> None:
        """Moves what is in `tree` into the code folder, entry by entry."""
        for name in sorted(os.listdir(self.tree)):
            os.rename(os.path.join(self.tree, name), os.path.join(self._code, name))

    def _make(self) -> str:
        parent = os.path.dirname(self._code)
        same_disk = os.stat(parent).st_dev == os.stat(self._code).st_dev
        for home in (parent, self._code) if same_disk else (self._code,):
            _remove_leftovers(home)
            path = os.path.join(home, PREFIX + os.urandom(6).hex())
            try:
                os.mkdir(path, 0o700)
            except OSError:
                if home == self._code:
                    raise
            else:
                return path
        raise AssertionError("unreachable: the code folder is always tried")


def _remove_leftovers(home: str) -> None:
    for name in os.listdir(home):
        if name.startswith(PREFIX):
            remove(os.path.join(home, name))


def discard(code: str) -> None:
    """Removes what a staging that was not waited for has unpacked so far (F52)."""
    code = os.path.realpath(code)
    for home in (os.path.dirname(code), code):
        try:
            _remove_leftovers(home)
        except OSError:
            pass  # there is no such folder: nothing was unpacked


def remove(folder: str) -> None:
    """Removes a tree that muster made; what cannot be removed stays, and is tried again by the next
    run."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)

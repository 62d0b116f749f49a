"""The ranks' side of a job: a store in a folder, groups made through it, words to the test."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from muster_collectives.core import Communicator, connect

CONNECT_S = 60.0
_POLL_S = 0.005


class FolderStore:
    """A store as `connect` wants it, kept in files: it needs no port and no server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: bytes) -> None:
        path = self._path(key)
        half = path.with_name(f"{path.name}.{os.getpid()}")
        half.write_bytes(value)
        half.chmod(0o644)
        half.rename(path)

    def get(self, key: str, timeout_s: float) -> bytes:
        path = self._path(key)
        limit = time.monotonic() + timeout_s
        while True:
            try:
                return path.read_bytes()
            except FileNotFoundError:
                if time.monotonic() > limit:
                    raise TimeoutError(f"no {key} in the store after {timeout_s:g} s") from None
                time.sleep(_POLL_S)

    def _path(self, key: str) -> Path:
        return self._folder / f"key-{quote(key, safe='')}"


class Meeting:
    """This rank in its job."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.rank, self.size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        self.folder = Path(environ["JOB_FOLDER"])
        self.store = FolderStore(self.folder)

    def world(self, name: str = "world", timeout_s: float = CONNECT_S) -> Communicator:
        return connect(self.store, self.rank, self.size, name=name, timeout_s=timeout_s)

    def group(self, name: str, ranks: tuple[int, ...]) -> Communicator:
        """A sub-group; only its ranks call this."""
        rank = ranks.index(self.rank)
        return connect(self.store, rank, len(ranks), name=name, timeout_s=CONNECT_S)

    def mark(self, name: str) -> None:
        (self.folder / f"mark-{name}").touch()

    def wait_for_mark(self, name: str, limit_s: float = 60.0) -> None:
        path = self.folder / f"mark-{name}"
        limit = time.monotonic() + limit_s
        while not path.exists():
            if time.monotonic() > limit:
                raise TimeoutError(f"no mark {name} after {limit_s:g} s")
            time.sleep(_POLL_S)

    def wait_for_marks(self, name: str, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.wait_for_mark(f"{name}-{rank}")

    def meet(self, name: str, ranks: Iterable[int]) -> None:
        """Returns when all of `ranks`, of which this is one, have come here."""
        self.mark(f"{name}-{self.rank}")
        self.wait_for_marks(name, ranks)

    def come_late(self, name: str, late: Collection[int], late_s: float) -> None:
        """Before a call: the ranks `late` return `late_s` after all others have come here.

        By fact, not by time: a healthy rank that the machine holds up holds up the others and the
        late ones as well, so that nobody waits for it in the call.
        """
        others = [rank for rank in range(self.size) if rank not in late]
        if self.rank not in late:
            self.meet(name, others)
            return
        self.wait_for_marks(name, others)
        time.sleep(late_s)  # the fault itself: a slow host
        self.meet(name, late)

    def say(self, **words: Any) -> None:
        """The last line that the test reads as JSON."""
        print(json.dumps({"rank": self.rank, **words}), flush=True)

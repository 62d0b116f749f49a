"""A socket in front of another one, which a test can shut: what then lies behind it is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Gate", "gate"]

PIECE_BYTES = 1 << 16


class Gate:
    """Hands on every connection to `path` until `shut`. `deaf`: takes them and says nothing, as it
    does after `hush`, also to those that there were."""

    def __init__(self, path: Path, target: Path, deaf: bool = False) -> None:
        self.path = path
        self._target = target
        self._deaf = deaf
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def hush(self) -> None:
        """From now on nothing comes through, and whoever asks may wait for ever."""
        self._deaf = True

    def shut(self) -> None:
        """Ends every connection, and refuses others."""
        self.path.unlink(missing_ok=True)
        for end in (self._listener, *self._ends):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self.shut()
        for thread in self._threads:
            thread.join(5)
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._ends.append(near)
            if self._deaf:
                continue
            far = socket.socket(socket.AF_UNIX)
            self._ends.append(far)
            far.connect(str(self._target))
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(target=self._copy, args=(source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(PIECE_BYTES):
                if not self._deaf:
                    sink.sendall(data)
            if not self._deaf:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@contextmanager
def gate(path: Path, target: Path, deaf: bool = False) -> Iterator[Gate]:
    """A gate for as long as the block lasts."""
    made = Gate(path, target, deaf)
    try:
        yield made
    finally:
        made.close()

"""Somebody on the path between a host and its leader, who reads all and changes what he likes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from tests.launcher.support.peers.attacked_leader import LeaderUnderAttack

Edit = Callable[[int, bytes], list[bytes]]


def unchanged(_number: int, frame: bytes) -> list[bytes]:
    return [frame]


class InterceptingProxy:
    """A host whose settings name this address talks through it.

    `edit(number, frame)` gives what goes on in place of each of the host's frames, counted from 0,
    the hello, in each connection. `recorded` and `answers` hold the frames of the first connection.
    """

    def __init__(self, target: LeaderUnderAttack) -> None:
        self.edit: Edit = unchanged
        self.recorded: list[bytes] = []
        self.answers: list[bytes] = []
        self.connections = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        target.visitors.add(self)

    @property
    def settings(self) -> dict[str, object]:
        address, port = self._listener.getsockname()
        return {"address": address, "port": port}

    def close(self) -> None:
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(5)
        for sock in self._sockets:
            sock.close()
        self._target.visitors.discard(self)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection((self._target.address, self._target.port))
            except OSError:
                return
            self._sockets += [near, far]
            self.connections += 1
            first = self.connections == 1
            self._pump(near, far, self.recorded if first else [], self._edit)
            self._pump(far, near, self.answers if first else [], unchanged)

    def _edit(self, number: int, frame: bytes) -> list[bytes]:
        return self.edit(number, frame)

    def _pump(
        self, source: socket.socket, sink: socket.socket, record: list[bytes], edit: Edit
    ) -> None:
        thread = threading.Thread(target=_move, args=(source, sink, record, edit), daemon=True)
        self._threads.append(thread)
        thread.start()


def _move(source: socket.socket, sink: socket.socket, record: list[bytes], edit: Edit) -> None:
    with source.makefile("rb") as stream:
        try:
            while len(head := stream.read(4)) == 4:
                frame = head + stream.read(int.from_bytes(head, "big"))
                record.append(frame)
                for changed in edit(len(record) - 1, frame):
                    sink.sendall(changed)
        except OSError:
            pass
    try:
        sink.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass

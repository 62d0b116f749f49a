"""A server process: listens, gives every worker a thread, and ends when all have said goodbye.

Exit codes: 0 all workers said goodbye; 1 the job failed, the reason ends stderr;
2 the variables cannot be used; 128 + n signal n stopped it before that.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType

import torch

from muster_parameter_server.errors import (
    DeadlineError,
    ParameterServerError,
    ServerLostError,
    SettingsError,
)
from muster_parameter_server.room import Room
from muster_parameter_server.service import StrangerError, admit, serve
from muster_parameter_server.settings import ServerSettings, read_server
from muster_parameter_server.wire.channel import Channel
from muster_parameter_server.wire.sockets import listen, tune

JOIN_LIMIT_S = 3600.0  # until the first worker has come
PENDING_LIMIT = 64  # peers whose handshake is not done
_LINGER_S = 3.0
_STRANGERS_TOLD = 10
_UNUSABLE = 2
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 0.1


class Server:
    """One server; `run` returns its exit code."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._ended, self._end = socket.socketpair()
        self._room = Room(settings, self._wake)
        self._pending: dict[threading.Thread, socket.socket] = {}  # the oldest first
        self._locked = threading.Lock()  # of `_pending` and `_strangers`
        self._threads: list[threading.Thread] = []
        self._strangers = 0
        self._signal: int | None = None  # that asked this process to end

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal: it is noted, never raised into what it interrupted."""
        self._signal = self._signal or number
        self._wake()

    def run(self) -> int:
        """Raises ServerLostError when it cannot listen."""
        listeners = listen(self._settings.address)
        try:
            self._accept_until_end(listeners)
        finally:
            for listener in listeners:
                listener.close()
        code = 0
        if self._signal is not None and not self._room.finished and self._room.failure is None:
            name = signal.Signals(self._signal).name
            self._room.fail(ServerLostError(f"{self._room.me} was stopped by {name}"))
            code = 128 + self._signal
        self._linger()
        self._ended.close()
        self._end.close()
        failure = self._room.failure
        if failure is not None:
            _say(f"{self._room.me}: {type(failure).__name__}: {failure}")
        return code or int(failure is not None)

    def _accept_until_end(self, listeners: list[socket.socket]) -> None:
        limit = time.monotonic() + JOIN_LIMIT_S
        with selectors.DefaultSelector() as selector:
            for sock in (*listeners, self._ended):
                selector.register(sock, selectors.EVENT_READ)
            while not (self._signal or self._room.finished or self._room.failure is not None):
                for key, _ in selector.select(1.0):
                    if key.fileobj is not self._ended and isinstance(key.fileobj, socket.socket):
                        self._accept(key.fileobj)
                if not self._room.anyone and time.monotonic() > limit:
                    self._room.fail(
                        DeadlineError(
                            f"no worker came to {self._room.me} within {JOIN_LIMIT_S:g} s"
                        )
                    )

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:  # it went away again; the next one is tried
            if error.errno in _EXHAUSTED:  # it still waits there, and would wake us at once
                time.sleep(_PAUSE_S)
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
        with self._locked:
            if len(self._pending) >= PENDING_LIMIT:
                # a worker is done in no time, so the oldest is the most likely stranger
                oldest = next(iter(self._pending))
                with suppress(OSError):  # its thread wakes up and closes it
                    self._pending.pop(oldest).shutdown(socket.SHUT_RDWR)
            self._pending[thread] = sock
        self._threads.append(thread)
        thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                channel = Channel(tune(sock))
                rank = admit(channel, self._settings, self._claim)
            except (StrangerError, OSError) as error:
                self._refuse(str(error))
                return
            finally:
                self._claim()
            serve(rank, channel, self._room)

    def _claim(self) -> bool:
        """Whether this thread's peer was still pending; afterwards it is not."""
        with self._locked:
            return self._pending.pop(threading.current_thread(), None) is not None

    def _refuse(self, why: str) -> None:
        with self._locked:
            self._strangers += 1
            told = self._strangers <= _STRANGERS_TOLD
        if told:
            _say(f"{self._room.me} refused a peer: {why}")

    def _wake(self) -> None:
        with suppress(OSError):
            self._end.send(b"\0")

    def _linger(self) -> None:
        """Lets the threads tell their workers what went wrong."""
        end = time.monotonic() + _LINGER_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))


def main(environ: Mapping[str, str]) -> int:
    """Runs the server that the environment describes; returns the exit code."""
    try:
        settings = read_server(environ)
    except SettingsError as error:
        _say(str(error))
        return _UNUSABLE
    # one thread for each worker computes; more would only take turns
    torch.set_num_threads(1)
    server = Server(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.stop)
    try:
        return server.run()
    except ParameterServerError as error:
        _say(f"server {settings.number}: {error}")
        return 1


def _say(text: str) -> None:
    os.write(sys.stderr.fileno(), f"muster_parameter_server: {text}\n".encode())

"""The person's end: a port of this machine, or the terminal, and the rank's socket in the record.

Hosts may have a network of their own, so a connection goes over the run folder. A thread of its
own looks for the socket, since the session must not wait; what it has to say is in `said`.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from muster.arguments import UsageError
from muster.local.backends.base import Backend
from muster.local.debugger.asked import LIMITS_OFF, DebugRequest
from muster.local.record.layout import LAUNCH
from muster.run.observe import control
from muster.types.debug import PDB
from muster.types.run_files import DEBUGGER

USUAL_PORT = 5678  # of debugpy, and of editors that attach to it
LOOK_EVERY_S = 0.1


def listen(request: DebugRequest) -> socket.socket | None:
    """The port that a debugger attaches to; None for a terminal. Raises UsageError."""
    if request.mode == PDB:
        return None
    for port in (request.port,) if request.port else (USUAL_PORT, 0):
        try:
            return socket.create_server(("127.0.0.1", port or 0), reuse_port=False)
        except OSError as error:
            why = error.strerror
    raise UsageError(
        f"--debug: port {request.port} cannot be listened on: {why}",
        f"choose another one, or leave it out: --debug {request.rank}",
    )


class Desk:
    """From `start` to `close`. `said`: sentences for the screen, from another thread."""

    def __init__(
        self, request: DebugRequest, listener: socket.socket | None, backend: Backend
    ) -> None:
        self.said: deque[str] = deque()
        self._request = request
        self._listener = listener
        self._backend = backend
        self._over = threading.Event()
        self.said.append(
            f"{request.option}: no time limits ({', '.join(LIMITS_OFF)} are 0, so that "
            f"ranks that wait for the debugged one are no hang); the limit of the process group is "
            "the script's own: raise init_process_group(timeout=...) if you look for longer"
        )

    def start(self) -> None:
        """The thread is a daemon: it may be reading the terminal when the command is to end."""
        target = self._serve if self._listener is not None else self._lend_terminal
        threading.Thread(target=target, name="debugger", daemon=True).start()

    def close(self) -> None:
        """Of a run that is over: takes the socket out of the record, and the port is free."""
        self._over.set()
        if self._listener is not None:
            self._listener.close()
        for host in self._backend.request.host_names:
            try:
                os.unlink(self._backend.folder.host(host, DEBUGGER))
            except OSError:
                pass

    def _found(self) -> str:
        """The host whose rank waits; "" once the run is over."""
        while not self._over.wait(LOOK_EVERY_S):
            for host in self._backend.request.host_names:
                if os.path.exists(self._backend.folder.host(host, DEBUGGER)):
                    return host
        return ""

    def _serve(self) -> None:
        """Every connection to the port becomes one to the rank, for as long as the run lasts: an
        editor may leave and come back. One that comes after the rank has ended is closed."""
        assert self._listener is not None
        host = self._found()
        if not host:
            return
        self._listener.settimeout(LOOK_EVERY_S)
        port: int = self._listener.getsockname()[1]
        path = os.path.join(self._backend.folder.path, LAUNCH)
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(launch_json(self._backend, host, self._request.who, port), file, indent=2)
        except OSError as error:
            self.said.append(f"{path} cannot be written: {error.strerror}")
        self.said.append(f"{self._request.who} waits for a debugger on 127.0.0.1:{port}")
        self.said.append(f"for VS Code: cp {path} .vscode/, then Run > Start Debugging")
        folder = self._backend.folder.host(host)
        while not self._over.is_set():
            try:
                person, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            try:
                rank = control.connected(folder, None, DEBUGGER)
            except OSError:  # it has ended
                person.close()
                continue
            for source, target in ((person, rank), (rank, person)):
                threading.Thread(target=_carry, args=(source, target), daemon=True).start()

    def _lend_terminal(self) -> None:
        """What is typed goes to the rank, what it prompts to standard error; once, since a terminal
        has one reader. The end of the input is passed on, for `(Pdb)` to end as anywhere."""
        host = self._found()
        if not host:
            return
        try:
            rank = control.connected(self._backend.folder.host(host), None, DEBUGGER)
        except OSError as error:
            self.said.append(f"{self._request.who} did not take the terminal: {error}")
            return
        self.said.append(
            f"{self._request.who} has this terminal: a breakpoint() in it stops for you; "
            "Ctrl-C ends the job"
        )
        threading.Thread(target=_copy, args=(rank.recv, _writer(2)), daemon=True).start()
        _copy(lambda size: os.read(0, size), rank.sendall)
        _hang_up(rank)


def _carry(source: socket.socket, target: socket.socket) -> None:
    _copy(source.recv, target.sendall)
    _hang_up(target)


def _hang_up(sock: socket.socket) -> None:
    """No more comes from here; the other direction goes on."""
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def _writer(fd: int) -> Callable[[bytes], object]:
    def write(data: bytes) -> None:
        while data:
            data = data[os.write(fd, data) :]

    return write


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    """Until nothing more comes, or nobody takes it any more."""
    try:
        while data := read(1 << 12):
            write(data)
    except OSError:
        pass


def launch_json(backend: Backend, host: str, who: str, port: int) -> dict[str, object]:
    """What VS Code attaches by: the rank runs a copy of the source folder, so names are mapped."""
    mapping = {
        "localRoot": backend.request.source_dir,
        "remoteRoot": os.path.join(backend.base(host), "code"),
    }
    attach = {
        "name": f"muster local: {who}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "pathMappings": [mapping],
        "justMyCode": True,
    }
    return {"version": "0.2.0", "configurations": [attach]}

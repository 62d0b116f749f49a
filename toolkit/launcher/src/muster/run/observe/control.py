"""The control socket of a host: a unix socket in its record, for people of the same user.

A request is one JSON line, so is the answer: `{"do": "state"}`, `{"do": "stop"}`,
`{"do": "stacks", "ranks": "1,last", "all_threads": true}`; the answer has `error` where there is
none. Nothing here ever fails a job: a socket that cannot be made is said once, and the rest goes
on without it.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from muster.run.base.loop import Loop
from muster.types.names import TYPED, did_you_mean
from muster.types.plain import short
from muster.types.shown import parse_ranks
from muster.types.values import NamedTuple

NAME = "control"
MODE = 0o700
REQUEST_S = 5.0  # from the connection to the end of the answer
LINE_BYTES = 1 << 16
RANKS_TEXT = 4096  # characters
MOST_CONNECTIONS = 16
BACKLOG = 128
REST_S = 1.0
STATE, STACKS, STOP = REQUESTS = ("state", "stacks", "stop")
_CREDENTIALS = struct.Struct("3i")


class Inquiry(NamedTuple):
    """What is asked for. `ranks`: whose stacks, as `types.shown.parse_ranks` reads them; "": one of
    each kind."""

    do: str
    ranks: str = ""
    all_threads: bool = False


Answered = Callable[[dict[str, Any]], None]


class Control:
    """The socket in `folder`, from `begin` to `end`.

    `answer(request, done)` is called on the loop's thread and calls `done` once with the answer;
    `warn` takes a sentence for the log.
    """

    def __init__(
        self,
        loop: Loop,
        folder: str,
        answer: Callable[[Inquiry, Answered], None],
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._answer = answer
        self._warn = warn
        self._listener: socket.socket | None = None
        self._connections: set[_Connection] = set()
        self._over = False
        self.users = {os.getuid(), 0}  # who may ask; the owner of the record, too (containers)

    def begin(self) -> None:
        """Makes the socket, on a thread: the record's file system may hang. Raises RuntimeError
        where no thread can be had."""
        threading.Thread(target=self._bind, name="control", daemon=True).start()

    def end(self) -> None:
        """Closes everything; the socket's name goes with it, off this thread."""
        self._over = True
        for connection in list(self._connections):
            connection.close()
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
            self._listener = None
            try:
                remover = threading.Thread(target=self._remove, name="control", daemon=True)
                remover.start()
                remover.join(0.2)
            except RuntimeError:
                pass  # no thread: the name stays, and nobody listens

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def ask(self, request: Inquiry, done: Answered) -> None:
        self._answer(request, done)

    def _bind(self) -> None:
        from muster.run.base.record import make_private

        try:
            make_private(self._folder)
            self.users.add(os.stat(os.path.dirname(self._folder)).st_uid)
            listener = bound(self._folder)
        except Exception as error:  # a defect too: this thread has nobody else to say it
            said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._loop.post(lambda: self._warn(f"there is no control socket: {said}"))
            return
        self._listener = listener
        if self._over:  # since it began; nothing is posted any more
            listener.close()
            self._remove()
            return
        self._loop.post(self._listen)

    def _listen(self) -> None:
        if self._listener is not None:
            self._loop.watch(self._listener.fileno(), self._accept)

    def _remove(self) -> None:
        try:
            os.unlink(os.path.join(self._folder, NAME))
        except OSError:
            pass

    def _accept(self, _events: int) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptors: a listener that stays readable would take all time
            self._loop.forget(self._listener.fileno())
            self._loop.after(REST_S, self._listen)
            return
        sock.setblocking(False)
        if len(self._connections) >= MOST_CONNECTIONS:
            sock.close()
            return
        self._connections.add(_Connection(self._loop, sock, self))


class _Connection:
    """One asker: one request, one answer, at most `REQUEST_S`."""

    def __init__(self, loop: Loop, sock: socket.socket, control: Control) -> None:
        self._loop = loop
        self._sock = sock
        self._control = control
        self._in = b""
        self._out = b""
        self._answered = False
        self._closed = False
        self._timer = loop.after(REQUEST_S, self._expire)
        loop.watch(sock.fileno(), self._ready)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._timer.cancel()
            self._loop.forget(self._sock.fileno())
            self._sock.close()
            self._control.forget(self)

    def _ready(self, _events: int) -> None:
        if self._out:
            self._flush()
            return
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._in += data
        if not data or self._answered:  # gone, or talks on: what it asked for is not worth more
            self.close()
        elif b"\n" in self._in:
            self._answered = True
            self._ask(self._in.partition(b"\n")[0])
        elif len(self._in) > LINE_BYTES:
            self._say(refusal("a request is one line of JSON", "ask with `muster stacks`"))

    def _ask(self, line: bytes) -> None:
        if _asker(self._sock) not in self._control.users:
            users = " or ".join(map(str, sorted(self._control.users)))
            self._say(refusal(f"this job is of another user ({users})", "ask as that user"))
            return
        request = parse(line)
        if isinstance(request, dict):
            self._say(request)
            return
        self._control.ask(request, self._say)

    def _say(self, answer: dict[str, Any]) -> None:
        self._answered = True
        if not self._closed:
            self._out = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
            self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                self._out = self._out[self._sock.send(self._out[: 1 << 18]) :]
        except BlockingIOError:
            self._loop.watch(self._sock.fileno(), self._ready, write=True)
            return
        except OSError:
            pass
        self.close()

    def _expire(self) -> None:
        if not self._answered or not self._out:
            self._say(refusal(f"no answer within {REQUEST_S:g} s", "try again in a moment"))
        self.close()


def parse(line: bytes) -> Inquiry | dict[str, Any]:
    """The request of a line, or the answer to one that cannot be."""
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict) or not isinstance(asked.get("do"), str):
        return refusal("a request is one line of JSON with `do`", "ask with `muster stacks`")
    do, ranks, threads = asked["do"], asked.get("ranks", ""), asked.get("all_threads", False)
    if do not in REQUESTS:
        guess = did_you_mean(do[:60], REQUESTS, likeness=TYPED)
        known = ", ".join(REQUESTS)
        return refusal(f"unknown request {short(do)}{guess}", f"the requests are {known}")
    try:
        if ranks:
            parse_ranks(ranks if isinstance(ranks, str) and len(ranks) < RANKS_TEXT else "too long")
    except ValueError as error:
        return refusal(f"`ranks`: {error}", "write such as 0,last or 0-3")
    return Inquiry(do, ranks or "", threads is True)


def refusal(error: str, fix: str) -> dict[str, Any]:
    """The answer where there is none."""
    return {"error": error, "fix": fix}


def bound(folder: str) -> socket.socket:
    """A listening socket in the folder, in place of one that nobody listens at any more.

    Raises OSError. Its path goes over /proc: one of a unix socket has 108 bytes at most.
    """
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path = f"/proc/self/fd/{at}/{NAME}"
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        except FileNotFoundError:
            pass
        listener.bind(path)
        os.chmod(path, MODE)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(at)
    return listener


def connected(folder: str, limit_s: float | None, name: str = NAME) -> socket.socket:
    """A connection to the socket in the folder, whose calls wait so long at most (None: as long as
    it takes). Raises OSError."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(limit_s)
        sock.connect(f"/proc/self/fd/{at}/{name}")
    except OSError:
        sock.close()
        raise
    finally:
        os.close(at)
    return sock


def listener_pid(folder: str, limit_s: float = REQUEST_S) -> int:
    """The process that listens there, as it counts here; 0 where it cannot be seen from here.
    Raises OSError."""
    with connected(folder, limit_s) as sock:
        return _other_end(sock)[0]


def ask(folder: str, request: Inquiry, limit_s: float = 2 * REQUEST_S) -> dict[str, Any]:
    """The answer of the host whose record's folder it is. Raises OSError, ValueError for an
    answer that is none."""
    by = time.monotonic() + limit_s
    with connected(folder, limit_s) as sock:
        sock.sendall(json.dumps(request._asdict()).encode() + b"\n")
        data = bytearray()
        while not data.endswith(b"\n"):
            sock.settimeout(max(0.01, by - time.monotonic()))
            piece = sock.recv(1 << 18)
            if not piece:
                break
            data += piece
    if not data:
        raise ConnectionError("the connection ended before the answer")
    answer = json.loads(data)
    if not isinstance(answer, dict):
        raise ValueError("an answer that is none")
    return answer


def _asker(sock: socket.socket) -> int:
    """The user of the other end."""
    return _other_end(sock)[1]


def _other_end(sock: socket.socket) -> tuple[int, int]:
    """Its process and its user."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(data)
    return pid, uid

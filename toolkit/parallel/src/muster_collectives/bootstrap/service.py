"""The store that rank 0 serves over TCP in a thread: keys are set once in a while and waited for.

It takes ranks that prove the secret. What others send never ends it: garbage, half frames and slow
strangers lose their connection. Closing never raises and waits for the thread for a bounded time.
Bounds: a value has at most 1 MiB, all of them 256 MiB, an answer 64 MiB, a key 512 bytes. A rank
that has set or asked for a key may not connect again.

A rank sets and asks for any number of keys at once: SET has keys and values in turn, GET how long
to wait and keys; its answer comes when all are there or the time is over, in their order.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress

from muster_collectives.bootstrap.channel import MAX_ASKED_BYTES, MAX_TOLD_BYTES, PROTOCOL
from muster_collectives.runtime.messages import DESCRIPTORS_FIX, NO_DESCRIPTOR
from muster_collectives.wire import (
    ANSWER_BYTES,
    FIRST_KIND,
    NONCE_BYTES,
    Frame,
    FrameError,
    Parser,
)

SET, GET, VALUES, DONE, FULL = range(FIRST_KIND, FIRST_KIND + 5)
MAX_KEY_BYTES = 512
MAX_VALUE_BYTES = 1 << 20
_MAX_TOTAL_BYTES = 256 << 20
WAIT = struct.Struct("!d")
_LENGTH = struct.Struct("!I")
_ABSENT = 0xFFFFFFFF  # in the place of a length
_HELLO_S = 10.0  # a stranger must prove itself within
_MAX_STRANGERS = 256
_CROWDED_S = 1.0  # and of too many within this
_TICK_S = 0.1
_JOIN_S = 5.0
_DRAIN_S = 1.0
_READS_AT_ONCE = 16
_log = logging.getLogger("muster_collectives")


class Peer:
    """A connection of the service. `rank` is -1 until it has proved the secret."""

    def __init__(self, sock: socket.socket, now: float) -> None:
        self.sock = sock
        self.rank = -1
        self.nonce = os.urandom(NONCE_BYTES)
        self.since = now
        self.parser = Parser(PROTOCOL, 0, first=ANSWER_BYTES)
        self.out: deque[memoryview] = deque()
        self._queued = 0

    def queue(self, kind: int, head: bytes, body: bytes = b"") -> None:
        self._queued += 1
        header = PROTOCOL.header(self._queued, kind, len(body), len(head))
        self.out.append(memoryview(header + head + body))


def pack(parts: Iterable[bytes | None]) -> bytes:
    """Each with its length before it; None is there as well, and is not empty."""
    return b"".join(
        _LENGTH.pack(_ABSENT) if part is None else _LENGTH.pack(len(part)) + part for part in parts
    )


def unpack(data: bytearray) -> list[bytes | None]:
    """Raises FrameError."""
    parts: list[bytes | None] = []
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise FrameError("a list of values ends amid a length")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length == _ABSENT:
            parts.append(None)
            continue
        if at + length > len(data):
            raise FrameError("a list of values ends amid one")
        parts.append(bytes(data[at : at + length]))
        at += length
    return parts


class _Waiting:
    """A question for `keys` of which `missing` are not there. `head` is the question's, which the
    answer repeats: a number of the rank's."""

    def __init__(
        self, peer: Peer, head: bytes, keys: list[bytes], missing: set[bytes], until: float
    ) -> None:
        self.peer, self.head, self.keys, self.missing = peer, head, keys, missing
        self.until = until


class _Keys:
    """The keys of the store and who waits for them; used in the service's thread alone."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._total_bytes = 0
        self._waiting: set[_Waiting] = set()
        self._by_key: defaultdict[bytes, set[_Waiting]] = defaultdict(set)

    def frame(self, peer: Peer, frame: Frame) -> None:
        """Raises FrameError to end the connection."""
        if frame.kind == SET:
            parts = unpack(frame.body)
            if len(parts) % 2 or None in parts:
                raise FrameError("a key without its value")
            said = [part or b"" for part in parts]
            self._set(peer, frame.head, dict(zip(_checked(said[::2]), said[1::2], strict=True)))
        elif frame.kind == GET and len(frame.body) >= WAIT.size:
            (wait_s,) = WAIT.unpack_from(frame.body)
            keys = [part or b"" for part in unpack(frame.body[WAIT.size :])]
            self._get(peer, frame.head, _checked(keys), wait_s)
        else:
            raise FrameError(f"frame {frame.kind} is none of a rank's")

    def gone(self, peer: Peer) -> None:
        for each in [each for each in self._waiting if each.peer is peer]:
            self._end(each)

    def tick(self, now: float) -> None:
        """About ten times a second."""
        for each in [each for each in self._waiting if each.until <= now]:
            self._end(each)
            self._answer(each.peer, each.head, each.keys)

    def _set(self, peer: Peer, head: bytes, values: dict[bytes, bytes]) -> None:
        before = sum(len(self._values.get(key, b"")) for key in values)
        total = self._total_bytes + sum(map(len, values.values())) - before
        if total > _MAX_TOTAL_BYTES:
            peer.queue(FULL, head)
            return
        self._total_bytes = total
        self._values.update(values)
        peer.queue(DONE, head)
        for key in values:
            for each in self._by_key.pop(key, ()):
                each.missing.discard(key)
                if not each.missing:
                    self._waiting.discard(each)
                    self._answer(each.peer, each.head, each.keys)

    def _get(self, peer: Peer, head: bytes, keys: list[bytes], wait_s: float) -> None:
        missing = {key for key in keys if key not in self._values}
        if not missing or not wait_s > 0:
            self._answer(peer, head, keys)
            return
        waiting = _Waiting(peer, head, keys, missing, time.monotonic() + wait_s)
        self._waiting.add(waiting)
        for key in missing:
            self._by_key[key].add(waiting)

    def _end(self, waiting: _Waiting) -> None:
        self._waiting.discard(waiting)
        for key in waiting.missing:
            self._by_key[key].discard(waiting)
            if not self._by_key[key]:
                del self._by_key[key]

    def _answer(self, peer: Peer, head: bytes, keys: list[bytes]) -> None:
        values = [self._values.get(key) for key in keys]
        if sum(_LENGTH.size + len(value or b"") for value in values) > MAX_TOLD_BYTES:
            peer.queue(FULL, head)
        else:
            peer.queue(VALUES, head, pack(values))


def _checked(keys: list[bytes]) -> list[bytes]:
    """Raises FrameError."""
    for key in keys:
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise FrameError(f"a key of {len(key)} bytes")
    return keys


class Service:
    """The thread that serves the store's connections. Runs until `close`. Owns the listener."""

    def __init__(self, listener: socket.socket, size: int, secret: bytes) -> None:
        self._listener = listener
        self._size = size
        self._secret = secret
        self._keys = _Keys()
        self._peers: set[Peer] = set()
        self._seen: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._is_ending = threading.Event()
        self._no_fd_at = 0.0  # monotonic; 0: it is not
        self._pid = os.getpid()
        for sock in (listener, self._wake_read, self._wake_write):
            sock.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="collectives-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if os.getpid() != self._pid:  # the thread is the parent's
            return
        self._is_ending.set()
        with suppress(OSError):  # it has ended
            self._wake_write.send(b"w")
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    # --- in the thread

    def _run(self) -> None:
        try:
            while not self._is_ending.is_set():
                self._turn()
            self._drain()
        except Exception:
            _log.exception("%s ended", self._thread.name)
        finally:
            for peer in list(self._peers):
                self._drop(peer)
            for sock in (self._listener, self._wake_read, self._wake_write):
                with suppress(OSError):
                    sock.close()
            with suppress(OSError):
                self._selector.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(_TICK_S):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data is None:
                with suppress(OSError):
                    self._wake_read.recv(4096)
            else:
                self._serve(key.data, events)
        now = time.monotonic()
        listens = self._listener in self._selector.get_map() or now - self._no_fd_at < _TICK_S
        if not listens and self._can_go(self._in_the_way()):
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._keys.tick(now)
        for peer in list(self._peers):
            if peer.rank < 0 and now - peer.since > _HELLO_S:
                self._drop(peer)
            elif peer.out:
                self._flush(peer)

    def _drain(self) -> None:
        """What was said last (a failure, a good-bye) shall arrive."""
        limit = time.monotonic() + _DRAIN_S
        while time.monotonic() < limit and any(peer.out for peer in self._peers):
            for peer in list(self._peers):
                self._flush(peer)
            time.sleep(0.001)

    def _in_the_way(self) -> Peer | None:
        """Of too many strangers the one that has waited longest: it goes once it has had its
        second. Until then newcomers wait in the kernel's queue, so nobody keeps the ranks out."""
        strangers = [peer for peer in self._peers if peer.rank < 0]
        if len(strangers) < _MAX_STRANGERS + self._size:
            return None
        return min(strangers, key=lambda peer: peer.since)

    def _can_go(self, oldest: Peer | None) -> bool:
        return oldest is None or time.monotonic() - oldest.since >= _CROWDED_S

    def _accept(self) -> None:
        oldest = self._in_the_way()
        if not self._can_go(oldest):  # until one can: or each wait would end at once
            self._selector.unregister(self._listener)
            return
        if oldest is not None:
            self._drop(oldest)
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:  # and tries again in a moment
                if not self._no_fd_at:
                    what = f"rank 0's store can take no more ranks: {error.strerror}"
                    _log.warning("%s (fix: %s)", what, DESCRIPTORS_FIX)
                self._no_fd_at = time.monotonic()
                self._selector.unregister(self._listener)
            return
        self._no_fd_at = 0.0
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(sock, time.monotonic())
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)
        peer.out.append(memoryview(PROTOCOL.hello(peer.nonce)))
        self._flush(peer)

    def _serve(self, peer: Peer, events: int) -> None:
        if peer not in self._peers:
            return
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if not events & selectors.EVENT_READ:
            return
        try:
            for _ in range(_READS_AT_ONCE):
                room = peer.parser.room()
                count = peer.sock.recv_into(room)
                if not count:
                    self._drop(peer)
                    return
                frame = peer.parser.took(count)
                if frame is not None:
                    self._take(peer, frame)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, FrameError, ValueError, MemoryError, OverflowError) as error:
            if peer.rank >= 0:
                _log.warning("the connection with rank %d ended: %s", peer.rank, error)
            self._drop(peer)

    def _take(self, peer: Peer, frame: Frame) -> None:
        if peer.rank >= 0:
            self._seen.add(peer.rank)
            self._keys.frame(peer, frame)
            return
        try:
            told = PROTOCOL.read_answer(self._secret, peer.nonce, bytes(frame.body))
            rank = told.rank
            if rank >= self._size:
                raise FrameError(f"rank {rank} of {self._size} cannot be")
            if rank in self._seen:
                raise FrameError(f"rank {rank} is here already")
        except FrameError as error:
            peer.out.append(memoryview(PROTOCOL.refusal(error.message)))
            self._flush(peer)
            raise
        self._replace(rank)
        peer.rank = rank
        peer.parser.max_body_bytes = MAX_ASKED_BYTES
        peer.out.append(memoryview(PROTOCOL.welcome(self._secret, peer.nonce, told)))

    def _replace(self, rank: int) -> None:
        """A rank that has not spoken yet may have given its first connection up and dialled again.
        One that has is never let in twice: what comes in its name later is another life of it."""
        for peer in list(self._peers):
            if peer.rank == rank:
                peer.rank = -1  # the rank is not gone
                self._drop(peer)

    def _flush(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        try:
            while peer.out:
                part = peer.out[0]
                sent = peer.sock.send(part)
                if sent < part.nbytes:
                    peer.out[0] = part[sent:]
                else:
                    peer.out.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
        if self._selector.get_key(peer.sock).events != wanted:
            self._selector.modify(peer.sock, wanted, peer)

    def _drop(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        with suppress(OSError, KeyError, ValueError):
            self._selector.unregister(peer.sock)
        with suppress(OSError):
            peer.sock.close()
        if peer.rank >= 0:
            self._keys.gone(peer)

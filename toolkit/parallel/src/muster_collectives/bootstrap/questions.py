"""Questions of several threads over one connection: each has a number, which the answer repeats.

Of the threads that wait one reads, for all. So nobody waits for another's question, and what comes
late, for a thread that waits no more, is nobody's answer.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from itertools import count

from muster_collectives.bootstrap.channel import Channel
from muster_collectives.wire import Frame, FrameError

NUMBER = struct.Struct("!Q")


class Questions:
    """Requests to rank 0's store over one connection, each with its answer. Owns `channel`. May be
    asked from any thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, Frame | None] = {}  # of who waits; None: not there yet
        self._is_read = False
        self._ended = ""
        self._pid = os.getpid()

    def ask(self, kind: int, body: bytes, timeout_s: float) -> Frame:
        """The answer. Raises OSError, FrameError: the connection is then of no use any more, as it
        is after an exception of a signal handler amid a frame."""
        if os.getpid() != self._pid:  # its locks may be held for ever
            raise ConnectionError("this connection is the parent process's")
        deadline = time.monotonic() + timeout_s
        number = next(self._numbers)
        with self._changed:
            if self._ended:
                raise ConnectionError(self._ended)
            self._answers[number] = None
        try:
            self._send(kind, NUMBER.pack(number), body)
            return self._await(number, deadline)
        finally:
            with self._changed:
                self._answers.pop(number, None)

    def close(self) -> None:
        """Never raises."""
        self._end("it is closed")

    def _send(self, kind: int, head: bytes, body: bytes) -> None:
        try:
            self._channel.send(kind, head, body)
        except BaseException as error:  # the frame may be half sent
            self._end(_text(error))
            raise

    def _await(self, number: int, deadline: float) -> Frame:
        while True:
            with self._changed:
                while not (found := self._answers[number]) and not self._ended and self._is_read:
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                        raise TimeoutError("the other side does not answer")
                if found is not None:
                    return found
                if self._ended:
                    raise ConnectionError(self._ended)
                self._is_read = True
            try:
                self._take(self._channel.receive(deadline))
            except BaseException as error:  # bytes of a frame may be lost
                self._end(_text(error))
                raise
            finally:
                with self._changed:
                    self._is_read = False
                    self._changed.notify_all()

    def _take(self, frame: Frame) -> None:
        if len(frame.head) != NUMBER.size:
            raise FrameError("an answer to no question came")
        (number,) = NUMBER.unpack(frame.head)
        with self._changed:
            if number in self._answers:
                self._answers[number] = frame

    def _end(self, why: str) -> None:
        with self._changed:
            self._ended = self._ended or why
            self._channel.close()
            self._changed.notify_all()


def _text(error: BaseException) -> str:
    if isinstance(error, (OSError, FrameError)):
        return str(error)
    return f"{type(error).__name__} of a signal handler broke a question off"

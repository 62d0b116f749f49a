"""Passes on what ranks write to stdout and stderr: byte for byte, whole lines, in constant memory.

One thread reads all pipes and writes; the supervisor's own lines pass through the same thread, so
that nothing the supervisor does can block on a reader that stopped reading (F58, F59). A second
thread keeps the files of each rank and drops and counts when the disk is slow.

A pump that is `live` writes what `muster local` shows: every line once, as it stands after its
carriage returns, and while it is not complete its state, which ends in a carriage return.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from muster.run.base.evidence import Watcher
from muster.types.errors import InternalError, LaunchError, MusterError

READ_BYTES = 1 << 16
LINE_BYTES = 1 << 16  # a longer line is passed on in pieces
STATE_BYTES = 1024
LIVE_S = 0.05  # between two states of one line
FAILURES = 100  # then the thread gives up


class Stream:
    """One pipe of one process and where its bytes go. `target` -1: on no screen. `is_stderr`: what
    its watcher takes it for, also off the screen. `mask` hides secrets on the screen; what ranks
    write is passed as it is, so they have none."""

    def __init__(
        self,
        fd: int,
        target: int,
        prefix: bytes,
        watcher: Watcher | None,
        keep: Callable[[bytes], None] | None,
        ended: Callable[[], None],
        mask: Callable[[str], str] | None = None,
        is_stderr: bool | None = None,
    ) -> None:
        self.mask = mask
        self.fd = fd
        self.target = target
        self.is_stderr = target == 2 if is_stderr is None else is_stderr
        self.prefix = prefix
        self.watcher = watcher
        self.keep = keep
        self.ended = ended
        self.partial = b""
        self.at_line_start = True
        self.open = b""  # live: what was passed on of the line that is not complete
        self._shown = b""

    def complete(self, data: bytes) -> bytes:
        """The part of all unwritten bytes that may be written now; the rest is kept."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end == 0 and len(self.partial) + len(data) < LINE_BYTES:
            self.partial += data
            return b""
        whole = self.partial + data[:end] if end else self.partial + data
        self.partial = data[end:] if end else b""
        return whole

    def settled(self, block: bytes) -> bytes:
        """The lines that the block completes, each as it stands at its end."""
        whole, end, rest = (self.open + block).rpartition(b"\n")
        if b"\r" in whole:
            whole = b"\n".join(map(_standing, whole.split(b"\n")))
        self.open = _standing(rest) + b"\r" * rest.endswith(b"\r")
        whole += end
        if end:
            self._shown = b""
        if len(self.open) > LINE_BYTES:
            whole, self.open = whole + self.open, b""
        return whole

    def state(self) -> bytes:
        """How the line that is not complete stands now; b"" where that was shown."""
        state = _standing(self.open + self.partial)[:STATE_BYTES]
        if self.mask is not None:
            state = _masked(state, self.mask)
        if state == self._shown or not self.at_line_start:
            return b""
        self._shown = state
        return self.prefix + state + b"\r"

    def prefixed(self, block: bytes) -> bytes:
        """The block with the prefix at the start of each of its lines."""
        if not self.prefix or not block:
            return block
        ends = block.endswith(b"\n")
        body = block[:-1] if ends else block
        start = self.prefix if self.at_line_start else b""
        self.at_line_start = ends
        return start + body.replace(b"\n", b"\n" + self.prefix) + (b"\n" if ends else b"")


class Pump:
    """The thread that writes. `say` adds a line of muster; `close` flushes within a limit."""

    def __init__(self, live: bool = False) -> None:
        self._live = live
        self._changed: set[Stream] = set()
        self._states_at = 0.0
        self._poll = select.epoll()
        self._streams: dict[int, Stream] = {}
        self._incoming: deque[Stream] = deque()
        self._asked: deque[Callable[[], None]] = deque()
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._wake_r, select.EPOLLIN)
        self._closing = False
        self._broken: set[int] = set()
        self.problem = ""  # the first defect of what reads streams beside the screen
        self.failure: Exception | None = None  # why streams or lines may be lost: the job is over
        self._thread = threading.Thread(target=self._run, name="log-pump", daemon=True)
        self._thread.start()

    def add(self, stream: Stream) -> None:
        """Takes over the descriptor of the stream; it is closed at its end."""
        self._incoming.append(stream)
        self._wake()

    def say(self, target: int, line: bytes) -> None:
        """Writes one whole line of muster. It never blocks; the queue has no limit."""
        self._ask(lambda: self._write(target, line))

    def flush(self, limit_s: float) -> bool:
        """Waits until all lines said so far are written; False when that took too long."""
        written = threading.Event()
        self._ask(written.set)
        return written.wait(limit_s)

    def close(self, limit_s: float) -> bool:
        """Writes what is left; False when the reader did not take it within `limit_s`."""
        self._closing = True
        self._wake()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Ends every open stream: reads what is there now and closes it."""
        self._ask(self._finish_all)

    def _ask(self, call: Callable[[], None]) -> None:
        if self.failure is not None and not self._thread.is_alive():
            try:
                call()  # the last words of a job that ends because of it
            except Exception as error:
                self.problem = self.problem or f"{type(error).__name__}: {error}"
            return
        self._asked.append(call)
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_w, b"\0")
        except BlockingIOError:
            pass

    def _run(self) -> None:
        """Goes on after a failure: while the job ends, its ranks must not block on full pipes."""
        for _ in range(FAILURES):
            try:
                self._serve()
                return
            except Exception as error:
                self.failure = self.failure or error

    def _serve(self) -> None:
        while True:
            for fd, _ in self._poll.poll(self._show_states()):
                if fd == self._wake_r:
                    self._answer_wake()
                elif fd in self._streams:
                    self._move(self._streams[fd])
            if self._closing and not self._asked and not self._incoming:
                self._finish_all()
                return

    def _answer_wake(self) -> None:
        try:
            os.read(self._wake_r, 4096)
        except BlockingIOError:
            pass
        while self._incoming:
            stream = self._incoming.popleft()
            os.set_blocking(stream.fd, False)
            self._poll.register(stream.fd, select.EPOLLIN)
            self._streams[stream.fd] = stream
        while self._asked:
            self._asked.popleft()()

    def _move(self, stream: Stream) -> bool:
        """One read; False when the stream has nothing more."""
        try:
            data = os.read(stream.fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end(stream)
            return False
        if stream.watcher is not None:
            stream.watcher.heard_s = time.monotonic()
        block = stream.complete(data)
        if block:
            self._pass_on(stream, block)
        if self._live and stream.target >= 0:
            self._changed.add(stream)
        return True

    def _show_states(self) -> float | None:
        """Writes how open lines stand; returns after how many seconds that is due again."""
        if not self._changed:
            return None
        wait_s = self._states_at + LIVE_S - time.monotonic()
        if wait_s > 0:
            return wait_s
        self._states_at = time.monotonic()
        for stream in self._changed:
            if state := stream.state():
                self._write(stream.target, state)
        self._changed.clear()
        return None

    def _pass_on(self, stream: Stream, block: bytes) -> None:
        try:
            if stream.watcher is not None:
                stream.watcher.feed(block, time.monotonic(), stream.is_stderr)
            if stream.keep is not None:
                stream.keep(block)
        except Exception as error:
            # a defect must not end this thread: without a reader every rank would hang
            stream.watcher = stream.keep = None
            self.problem = self.problem or f"{type(error).__name__}: {error}"
        if stream.target >= 0:
            shown = block if stream.mask is None else _masked(block, stream.mask)
            if self._live:
                shown = stream.settled(shown)
            self._write(stream.target, stream.prefixed(shown))

    def _finish_all(self) -> None:
        for stream in list(self._streams.values()):
            self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        """Reads what the pipe holds now, at most a pipe's worth, and ends the stream."""
        for _ in range(64):
            if not self._move(stream):
                break
        if stream.fd in self._streams:
            self._end(stream)

    def _end(self, stream: Stream) -> None:
        if stream.partial:
            block, stream.partial = stream.partial, b""
            self._pass_on(stream, block)
        self._changed.discard(stream)
        if stream.open or (self._live and not stream.at_line_start):
            self._write(stream.target, stream.prefixed(stream.settled(b"\n")))
        self._poll.unregister(stream.fd)
        del self._streams[stream.fd]
        os.close(stream.fd)
        stream.ended()

    def _write(self, target: int, data: bytes) -> None:
        if target in self._broken:
            return
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:
                select.select([], [target], [])
            except OSError:
                self._broken.add(target)  # the reader is gone: keep draining the ranks
                return


def _standing(line: bytes) -> bytes:
    """What a line shows: the text after its last carriage return, but for those at its end."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _masked(block: bytes, mask: Callable[[str], str]) -> bytes:
    return mask(block.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def pump_error(failure: Exception) -> MusterError:
    """The error of a job whose output can no longer be passed on."""
    what = f"the output of ranks can no longer be passed on: {type(failure).__name__}: {failure}"
    if isinstance(failure, OSError | MemoryError):
        limits = "memory, open files, fs.epoll.max_user_watches"
        return LaunchError(what, f"look at the limits of this machine: {limits}")
    return InternalError(what, "this is a defect of muster: please report it")

"""The run's record: events as JSON lines, and what each rank wrote, in files of bounded size.

One thread writes. When the disk is slow or full it drops and counts; nothing here ever changes an
outcome or blocks a rank.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from muster.types.run_files import EVENTS, LOGS

SCHEMA = 1  # of events: docs/reference/record.md; kinds and fields are only ever added
BACKLOG_BYTES = 2 << 20
EVENTS_BYTES = 32 << 20  # of one host; a line or two more where threads meet
SAMPLES_BYTES = 24 << 20  # of these, for samples
ENDS_BYTES = 2 << 20  # of these, for no others than `ENDING`
ENDING = frozenset({"phase", "failure", "outcome", "left_out"})
_FRESH = os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC  # a link there is not followed
KEEP_TAIL_BYTES = 1 << 20  # per stream on SageMaker, where the record is uploaded with the output


class RankLog:
    """A file that keeps the first and the last `limit` bytes of a stream."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self._limit = limit
        self._fd = os.open(path, os.O_WRONLY | _FRESH, 0o644)
        self._head = 0
        self._ring_fd = -1
        self._after_head = 0

    def write(self, data: bytes) -> None:
        """Raises OSError when the disk does not take it."""
        while data and self._head < self._limit:
            written = os.write(self._fd, data[: self._limit - self._head])
            self._head += written
            data = data[written:]
        if data:
            self._write_ring(data)

    def close(self) -> None:
        """Puts what the ring holds after the head, with a line that says what is left out."""
        try:
            if self._ring_fd >= 0:
                self._join()
        finally:
            if self._ring_fd >= 0:
                os.close(self._ring_fd)
                os.unlink(self.path + ".tail")
            os.close(self._fd)

    def _join(self) -> None:
        left_out = self._after_head - self._limit
        start = self._after_head % self._limit if left_out > 0 else 0
        kept = min(self._after_head, self._limit)
        if left_out > 0:
            _write_all(self._fd, b"\n... muster left out %d bytes here ...\n" % left_out)
        self._copy_ring(start, kept)
        self._copy_ring(0, start)

    def _copy_ring(self, begin: int, end: int) -> None:
        while begin < end:
            piece = os.pread(self._ring_fd, min(1 << 20, end - begin), begin)
            if not piece:
                return
            _write_all(self._fd, piece)
            begin += len(piece)

    def _write_ring(self, data: bytes) -> None:
        if self._ring_fd < 0:
            self._ring_fd = os.open(self.path + ".tail", os.O_RDWR | _FRESH, 0o644)
        while data:
            at = self._after_head % self._limit
            written = os.pwrite(self._ring_fd, data[: self._limit - at], at)
            self._after_head += written
            data = data[written:]


class EventBudget:
    """Which events of a host still go into its record.

    Samples are thinned, for each rank alike: with each tenth of their room that is taken, half as
    many are kept, so that it lasts 100 times as long as without. Others are left out once the
    record is full; how the job ends is kept.
    """

    def __init__(self) -> None:
        self.left_out = {"samples": 0, "events": 0}
        self._used_bytes = 0
        self._sample_bytes = 0
        self._passed_over: dict[int | None, int] = {}  # rank -> samples since the last one kept

    def takes(self, kind: str, rank: int | None) -> bool:
        """Whether this one does; it is counted where not."""
        is_sample = kind == "sample"
        room = EVENTS_BYTES - self._used_bytes - (0 if kind in ENDING else ENDS_BYTES)
        if room > 0 and not is_sample:
            return True
        if is_sample:
            passed = self._passed_over.get(rank, 0)
            room = min(room, SAMPLES_BYTES - self._sample_bytes)
            if room > 0 and passed + 1 >= 1 << 10 * self._sample_bytes // SAMPLES_BYTES:
                self._passed_over[rank] = 0
                return True
            self._passed_over[rank] = passed + 1
        self.left_out["samples" if is_sample else "events"] += 1
        return False

    def took(self, kind: str, size: int) -> None:
        """An event of so many bytes goes there, or lies there already."""
        self._used_bytes += size
        if kind == "sample":
            self._sample_bytes += size


class Recorder:
    """The record of one host: `events.jsonl` and `logs/` in `folder`, which is "" for no record and
    is made, for its owner alone, with the first entry.

    `limit`: bytes kept of the head and of the tail of each stream. `mask` hides secrets in events
    and kept tails."""

    def __init__(
        self,
        host: str,
        folder: str,
        limit: int,
        mask: Callable[[str], str],
    ) -> None:
        self.dropped_bytes = 0
        self.problem = ""
        self._host = host
        self._folder = folder
        self._limit = limit
        self._mask = mask
        self._logs: dict[str, RankLog] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self._backlog = 0
        self._wake = threading.Event()
        self._closing = False
        self._only_tails = False
        self._budget = EventBudget()
        self._lock = threading.Lock()  # streams are kept by the pump's thread, events by another
        self._events_fd = -1
        self._thread: threading.Thread | None = None

    @property
    def folder(self) -> str:
        """Of this host; "" for no record."""
        return self._folder

    def event(self, kind: str, rank: int | None = None, **facts: object) -> None:
        """Adds one event, as docs/reference/record.md has them; its time is now. Any thread may."""
        if not self._folder:
            return
        with self._lock:
            if not self._budget.takes(kind, rank):
                return
        now, clock = time.monotonic(), time.time()
        fields = {"schema": SCHEMA, "t": now, "time": clock, "host": self._host, "rank": rank}
        text = json.dumps({**fields, "kind": kind, **facts}, default=str)
        line = self._mask(text).encode() + b"\n"
        limit = BACKLOG_BYTES + ENDS_BYTES * (kind in ENDING)
        if self._put(len(line), lambda: self._write_event(line), limit):
            with self._lock:
                self._budget.took(kind, len(line))

    def stream_log(self, name: str) -> Callable[[bytes], None] | None:
        """Where a stream's bytes go, e.g. `rank-0.out`; None when nothing is recorded."""
        if not self._folder:
            return None

        def keep(data: bytes) -> None:
            self._put(len(data), lambda: self._write_log(name, data))

        return keep

    def path(self, name: str) -> str:
        """The path of what `types.run_files` names; "" when nothing is recorded."""
        return os.path.join(self._folder, name) if self._folder else ""

    def log_path(self, name: str) -> str:
        """The path shown to people; "" when nothing is recorded."""
        return self.path(os.path.join(LOGS, name))

    def whole_log(self, name: str) -> str:
        """The same; "" also when not all went into the record so far."""
        return "" if self.problem or self.dropped_bytes else self.log_path(name)

    @property
    def left_out(self) -> dict[str, int]:
        """How many samples and other events have not gone into the record for its size."""
        return self._budget.left_out

    def flush(self, limit_s: float) -> bool:
        """Waits until what came so far is written; False when that took too long, or when
        something was left out."""
        written = threading.Event()
        self._put(0, written.set)
        return written.wait(limit_s) and not (self.problem or self.dropped_bytes)

    def close(self, limit_s: float, only_tails: bool = False) -> None:
        """Writes what is queued, for at most `limit_s`.

        `only_tails`: cuts every log to its last MiB and masks secrets in it.
        """
        if any(self.left_out.values()):
            self.event("left_out", **self.left_out)
        self._only_tails = only_tails
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(limit_s)

    def _put(self, size: int, write: Callable[[], None], limit: int = BACKLOG_BYTES) -> bool:
        """Whether it will be written: not beyond so many bytes that wait for the disk."""
        with self._lock:
            if self._backlog + size > limit or not self._runs():
                self.dropped_bytes += size
                return False
            self._backlog += size
            self._queue.append(lambda: self._take(size, write))
        self._wake.set()
        return True

    def _runs(self) -> bool:
        """Whether the thread that writes is there; it is started for the first entry."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="recorder", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the limit of processes counts threads too
                self.problem = str(error)
                return False
            self._thread = thread
        return True

    def _take(self, size: int, write: Callable[[], None]) -> None:
        dropped = 0
        try:
            write()
        except Exception as error:  # a defect of muster too: the record is not worth the job
            self.problem = str(error)
            dropped = size
        with self._lock:
            self._backlog -= size
            self.dropped_bytes += dropped

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                self._queue.popleft()()
            if self._closing:
                break
        for log in self._logs.values():
            try:
                log.close()
                if self._only_tails:
                    self._cut(log.path)
            except OSError as error:
                self.problem = str(error)

    def _cut(self, path: str) -> None:
        with open(path, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - KEEP_TAIL_BYTES))
            text = self._mask(file.read().decode("utf-8", "replace"))
            file.seek(0)
            file.write(text.encode())
            file.truncate()

    def _write_event(self, line: bytes) -> None:
        if self._events_fd < 0:
            make_private(self._folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._events_fd = os.open(os.path.join(self._folder, EVENTS), flags, 0o644)
            earlier = os.fstat(self._events_fd).st_size  # of a container that was started again
            with self._lock:
                self._budget.took("", earlier)
        os.write(self._events_fd, line)

    def _write_log(self, name: str, data: bytes) -> None:
        log = self._logs.get(name)
        if log is None:
            make_private(self._folder)
            os.makedirs(os.path.join(self._folder, LOGS), 0o700, exist_ok=True)
            log = self._logs[name] = RankLog(self.log_path(name), self._limit)
        log.write(data)


def make_private(folder: str) -> None:
    """Makes the folder of one host, and the record's around it, for their owner alone."""
    record = os.path.dirname(folder)
    os.makedirs(os.path.dirname(record), exist_ok=True)
    for path in (record, folder):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]

"""`muster run --attended`: this host's part of a job that a person's `muster submit` attends.

The request comes on stdin, and the end of stdin is a stop: ranks get time to save, and nothing is
left. Code and run lie in a private folder, which goes once the record has been taken over.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from muster.arguments import USAGE_EXIT_CODE, UsageError, tell
from muster.elsewhere.records import pack
from muster.local import frames
from muster.local.backends.netns import kernel
from muster.local.frames import Receiver, Sender
from muster.local.record.layout import ENVIRON
from muster.local.record.runfolder import in_words
from muster.run.child.rank_shim import become_subreaper, descendants, end_tree, reap
from muster.types.errors import STOPPED_EXIT_CODE
from muster.types.files import read_text, write_private
from muster.version import __version__

CODE, RUN = "code.tar.gz", "run"  # in the private folder
MARGIN_S = 5.0  # from the end of the stop's time until nothing is left
KILL_LIMIT_S, TIDY_S = 10.0, 2.0
PIECE = 1 << 16
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

Start = Callable[[list[str]], int]


def attend(start: Start) -> int:
    """0 once the desk has what it wants, 1 where nothing was started.

    `start` becomes `train` by a command line of `muster run`, or returns an exit code.
    """
    out = os.dup(1)
    os.dup2(2, 1)  # whatever is printed here is no frame
    os.write(out, frames.MARK)
    desk, receiver = Sender(out), Receiver(0)
    desk.tell(frames.HELLO, muster=__version__, python=sys.executable, machine=_machine())
    kind, content = receiver.next()
    if kind != frames.REQUEST:
        return 1
    request = frames.fields_of(content)
    folder = ""
    try:
        folder = tempfile.mkdtemp(prefix="muster-job-", dir=request["folder"] or None)
        folder = os.path.abspath(folder)  # before Python 3.12 it is as relative as `dir`
        go = _bring(folder, request, desk, receiver)
    except (OSError, UsageError) as error:
        go = False
        if isinstance(error, OSError):
            why = f"the job cannot be put there: {in_words(error)}"
            error = UsageError(why, "name another folder of the hosts: --set TMPDIR=DIR")
        with suppress(OSError):  # it may be the connection that ended
            desk.tell(frames.REFUSED, why=error.message, fix=error.fix)
    if not go:
        shutil.rmtree(folder, ignore_errors=True)
        return 1
    job = _Job(desk, receiver, float(request["stop_s"]))
    job.begin(folder, request, start)
    code = job.hold()
    with suppress(OSError):  # something may have tidied up here: the record is worth more
        os.unlink(os.path.join(folder, ENVIRON))
    if job.deliver(code, os.path.join(folder, RUN), int(request["most_bytes"])):
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _machine() -> str:
    """The same for every name of this host, and another one in each container."""
    try:
        network = os.readlink("/proc/self/ns/net")
        return f"{read_text('/proc/sys/kernel/random/boot_id').strip()} {network}"
    except OSError:
        return ""


def _bring(folder: str, request: Mapping[str, Any], desk: Sender, receiver: Receiver) -> bool:
    """Writes what `muster run` needs; whether the job is then to start. Raises OSError, UsageError
    where the leader would be looked for in vain."""
    _look_up(request["leader"])
    write_private(os.path.join(folder, ENVIRON), request["environ"])
    with open(os.path.join(folder, CODE), "wb") as code:
        while (frame := receiver.next())[0] == frames.CODE and frame[1]:
            code.write(frame[1])
    if frame[0] != frames.CODE:
        return False
    desk.tell(frames.READY, run=os.path.join(folder, RUN))
    return receiver.next()[0] == frames.START


def _look_up(leader: str) -> None:
    """Raises UsageError where this host, which does not lead, knows no such name."""
    try:
        if leader:
            socket.getaddrinfo(leader, None)
    except OSError as error:
        why = f"it knows no {leader}, the leader ({error.strerror})"
        fix = f"say by which address other hosts reach it, in the file: {leader}=ADDRESS"
        raise UsageError(why, fix) from None


class _Job:
    """The process that becomes `train`, and what it prints, until both have ended.

    The main thread holds it: it alone signals, reaps and decides. Two threads pass on what it
    prints, one hears the desk; they end with their pipes, or with this process.
    """

    def __init__(self, desk: Sender, receiver: Receiver, stop_s: float) -> None:
        self._desk = desk
        self._receiver = receiver
        self._stop_s = stop_s
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._pid = 0
        self._beat = 0.0  # when the desk is to hear the next one
        self._code: int | None = None
        self._pumps: list[threading.Thread] = []
        self.gone = False  # the desk

    def begin(self, folder: str, request: Mapping[str, Any], start: Start) -> None:
        """Forks. The child dies with this process, and its ranks with it."""
        become_subreaper()
        me, ends = os.getpid(), (os.pipe(), os.pipe())
        self._pid = os.fork()
        if not self._pid:
            _child(me, folder, request, start, [end for _, end in ends])
        signal.signal(signal.SIGCHLD, lambda number, frame: self._events.put(b""))
        for number in STOPS:
            signal.signal(number, lambda number, frame: self._events.put(frames.STOP))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        for (source, end), kind in zip(ends, (frames.OUT, frames.ERR), strict=True):
            os.close(end)
            pump = threading.Thread(target=self._pump, args=(source, kind), daemon=True)
            pump.start()
            self._pumps.append(pump)
        threading.Thread(target=self._listen, daemon=True).start()

    def _pump(self, source: int, kind: bytes) -> None:
        """Also once nobody hears it: ranks that save must not wait for a reader."""
        while data := os.read(source, PIECE):
            with suppress(OSError):
                self._desk.send(kind, data)
        os.close(source)

    def _listen(self) -> None:
        """What the desk says; its silence is a stop."""
        while kind := self._receiver.next()[0]:
            self._events.put(kind)
        self.gone = True
        self._events.put(frames.STOP)

    def _next(self, limit: float) -> bytes:
        """The next event, b"" for one that is none of the desk's, or for none for a while."""
        now = time.monotonic()
        if now >= self._beat:
            self._beat = now + frames.BEAT_S
            with suppress(OSError):
                self._desk.beat()
        try:
            return self._events.get(timeout=max(0.0, min(self._beat, limit) - now))
        except queue.Empty:
            return b""

    def hold(self) -> int:
        """The exit code, once nothing is left of the job: that of `train`, which has the time of a
        whole stop once it was asked; what is left then is killed, and counts as stopped."""
        limit = float("inf")
        reap(self._ended)
        while self._code is None and time.monotonic() < limit:
            kind = self._next(limit)
            if kind == frames.STOP and limit == float("inf"):
                limit = time.monotonic() + self._stop_s + MARGIN_S
                os.kill(self._pid, signal.SIGTERM)
            elif kind == frames.KILL:
                limit = time.monotonic()
            reap(self._ended)
        # `train` had its time: what it might still answer is not the job's code
        killed = self._code is None
        late = time.monotonic() + TIDY_S

        def left() -> Iterable[int]:
            """`train` first: what waits above its ranks then ends those, and tidies up."""
            if self._code is None and time.monotonic() < late:
                return [self._pid]
            return descendants(os.getpid()) if time.monotonic() > late else []

        end_tree(lambda: reap(self._ended), left, KILL_LIMIT_S)
        for pump in self._pumps:
            pump.join(KILL_LIMIT_S)
        return STOPPED_EXIT_CODE if killed or self._code is None else self._code

    def _ended(self, pid: int, code: int) -> None:
        """Also of orphans, which are this process's own to take."""
        if pid == self._pid:
            self._code = code if code >= 0 else 128 - code

    def deliver(self, code: int, run: str, most_bytes: int) -> bool:
        """Sends exit code and record; whether the desk has both."""
        if self.gone:
            return False
        try:
            self._desk.tell(frames.ENDED, code=code)
            left_out = pack(run, lambda data: self._desk.send(frames.ARCHIVE, data), most_bytes)
            self._desk.tell(frames.PACKED, left_out=left_out)
        except OSError:
            return False
        limit = time.monotonic() + frames.SILENCE_S
        while not self.gone and time.monotonic() < limit:
            if self._next(limit) == frames.DONE:
                return True
        return False


def _child(
    parent: int, folder: str, request: Mapping[str, Any], start: Start, ends: list[int]
) -> None:
    """Becomes `train`, with stdin empty. Does not return."""
    code = 127
    try:
        kernel.die_with(parent)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in zip((null, *ends), (0, 1, 2), strict=True):
            os.dup2(source, target)
        os.environ.update(request["variables"])
        os.chdir(folder)
        code = start(request["arguments"])
    except UsageError as error:
        fix = f"  {error.fix}\n" if error.fix else ""
        tell(f"muster run on {request['host']}: {error.message}\n{fix}")
        code = USAGE_EXIT_CODE
    except BaseException as error:
        tell(f"muster run on {request['host']}: {error!r}\n")
    finally:
        os._exit(code)

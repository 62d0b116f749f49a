"""One host's ssh client, and the threads that read it."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from muster.arguments import tell
from muster.local import frames
from muster.local.frames import Receiver, Sender
from muster.submit.hosts.listed import Destination
from muster.submit.hosts.records import Unpacker
from muster.types.plain import printable, shortened
from muster.types.values import NamedTuple

ENDED_BY_SSH = 255
KEPT_LINES = 20  # of what ssh says
TIDY_S = 5.0  # for ssh's last words
GONE = b""  # an event: the connection has ended


class Event(NamedTuple):
    """A frame of the host of that number, GONE with the reason as content."""

    host: int
    kind: bytes
    content: bytes


class Printed:
    """What hosts print, on its way to this process's own stdout and stderr.

    `places`: run folders of hosts -> the one here, where the files that muster names will lie.
    """

    def __init__(self) -> None:
        self.places: dict[bytes, bytes] = {}
        self._lock = threading.Lock()

    def show(self, kind: bytes, data: bytes) -> None:
        """A reader that went away ends nothing."""
        stream = sys.stdout if kind == frames.OUT else sys.stderr
        if kind == frames.ERR:
            for there, here in list(self.places.items()):
                data = data.replace(there, here)
        with self._lock, suppress(OSError, ValueError):
            stream.buffer.write(data)
            stream.flush()


class Link:
    """Passes on what a host says: output to the screen, the record to `unpacker`, all else to
    `events`. `give` sends the request and the code once the host has said hello.

    The client is not in this process's group, so that Ctrl-C does not end the connection, which the
    host would take for a stop without anybody there to hear how it ended.
    """

    def __init__(
        self,
        index: int,
        host: Destination,
        argv: list[str],
        give: Callable[[Sender], None],
        unpacker: Unpacker,
        screen: Printed,
        events: queue.SimpleQueue[Event],
    ) -> None:
        self.host = host
        self.unpacker = unpacker
        self.run = ""  # the run folder there
        self._index = index
        self._give = give
        self._screen = screen
        self._events = events
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        self._greeted = False
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self.pid = self._process.pid
        self._sender = Sender(self._process.stdin.fileno())
        self._receiver = Receiver(self._process.stdout.fileno())
        self._words = threading.Thread(target=self._read_words, daemon=True)
        self._words.start()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, kind: bytes) -> None:
        """A frame without content. A host that is gone has an event of its own."""
        with suppress(OSError):
            self._sender.send(kind)

    def beat(self) -> None:
        """Says that the desk is there."""
        with suppress(OSError):
            self._sender.beat()

    def end(self) -> None:
        """Ends the connection, which stops what runs there."""
        with suppress(OSError):
            self._process.terminate()

    def _read_words(self) -> None:
        """What ssh itself says, and a login shell: shown once the host has greeted, before that
        only where it explains why the host did not."""
        assert self._process.stderr
        for raw in self._process.stderr:
            line = printable(raw.decode(errors="replace")).strip()
            if line:
                self._said.append(line)
                if self._greeted:
                    tell(f"{self.host.name}: {line}\n")

    def _read(self) -> None:
        """The thread that hears the host."""
        if self._receiver.find_mark() is None:
            return self._gone()
        self._greeted = True
        self._said.clear()  # a login's words explain nothing any more
        while True:
            kind, content = self._receiver.next()
            if not kind:
                return self._gone()
            if kind in (frames.OUT, frames.ERR):
                self._screen.show(kind, content)
            elif kind == frames.ARCHIVE:
                self.unpacker.take(content)
            else:
                if kind == frames.READY:
                    self.run = str(frames.fields_of(content).get("run"))
                    self._screen.places[self.run.encode()] = self.unpacker.shown.encode()
                elif kind == frames.PACKED:
                    self.unpacker.close()
                self._events.put(Event(self._index, kind, content))
                if kind == frames.HELLO:
                    with suppress(OSError):
                        self._give(self._sender)

    def _gone(self) -> None:
        """The last event of a host, once its client has ended: with ssh's last words."""
        try:
            code = self._process.wait(TIDY_S)
        except subprocess.TimeoutExpired:  # the other end has fallen silent
            self.end()
            code = self._process.wait()
        self._words.join(TIDY_S)
        self.unpacker.close()
        self._events.put(Event(self._index, GONE, self._why(code).encode()))

    def _why(self, code: int) -> str:
        """In ssh's own words, or in those of the host's shell."""
        words = shortened(self._said[-1]) if self._said else ""
        if not words:
            words = shortened(printable(self._receiver.noise().decode(errors="replace")).strip())
        if self._greeted or code == ENDED_BY_SSH or code < 0:
            return words or f"ssh ended with {code}"
        return f"no muster there ({words or f'exit code {code}'})"

"""Passes on the streams of all hosts: whole lines, every byte as it came.

A line that is not complete yet has a state, which a carriage return ends: a progress bar, or
what was printed without a line end. The screen may show it meanwhile; of the line itself what
stands at its end is passed on.

`train` closes a failed job with a block that belongs at the end of the screen; the pump keeps
that block back until the table of ranks has been printed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from muster.local.hosts import HostStream
from muster.types.shown import BLOCK_MARK
from muster.types.values import NamedTuple

MAX_LINE_BYTES = 1 << 20
RECENT_BYTES = 8 << 10
MARK = BLOCK_MARK.encode()
STATE_S = 1.0  # between two states of a line where each is a line of its own
_PREFIX = rb"\[[^\] ]{1,100}\] "


class Open(NamedTuple):
    """A line that is not complete: how it stands, and when it or its state was last passed on."""

    state: bytes
    passed_at: float
    is_new: bool


Place = tuple[HostStream, bytes]  # a stream of a host, and the prefix of one of its ranks


class HostPump:
    """Passes on whole lines of all hosts.

    `write(errors, data)` takes whole lines for stdout (False) or stderr (True).
    """

    def __init__(self, write: Callable[[bool, bytes], None]) -> None:
        self._write = write
        self._partial: dict[HostStream, bytes] = {}
        self._held: dict[int, bytes] = {}
        self._open_line = {False: False, True: False}
        self._open: dict[Place, Open] = {}
        self.recent = b""  # the last lines on stderr

    def feed(self, stream: HostStream, data: bytes) -> None:
        """Bytes of one host's stream, in order."""
        data = self._partial.pop(stream, b"") + data
        end = data.rfind(b"\n") + 1
        if len(data) - end > MAX_LINE_BYTES:
            end = len(data)  # a line of this size is no line
        lines, rest = data[:end], data[end:]
        if b"\r" in data or any(place[0] == stream for place in self._open):
            lines = b"\n".join(self._settle(stream, line) for line in lines.split(b"\n"))
            rest = self._settle_rest(stream, rest)
        if rest:
            self._partial[stream] = rest
        if lines:
            self._pass_on(stream, lines)

    def end(self, stream: HostStream) -> None:
        """The stream ended; a last line may lack its end."""
        rest = self._partial.pop(stream, b"").rstrip(b"\r")
        rest = b"" if rest == _prefix(rest) else rest
        self._open.pop((stream, _prefix(rest)), None)
        left = [state.state for place, state in self._open.items() if place[0] == stream]
        self._open = {p: state for p, state in self._open.items() if p[0] != stream}
        if rest or left:
            self._pass_on(stream, b"\n".join([*left, *filter(None, [rest])]))

    def say(self, text: str) -> None:
        """A line of muster, on stderr."""
        self._emit(True, text.encode("utf-8", "replace") + b"\n")

    def states(self, errors: bool) -> list[bytes]:
        """How the lines that are not complete stand, of what goes to stdout or stderr."""
        found = [(p[0].host, p[1], o.state) for p, o in self._open.items() if p[0].errors == errors]
        return [state for _, _, state in sorted(found)]

    def tick(self, now: float, shown: tuple[bool, ...]) -> None:
        """Passes on as lines, from time to time, the states that nothing else shows. `shown`: the
        streams whose states are shown."""
        for place, one in self._open.items():
            if one.is_new and now - one.passed_at >= STATE_S and place[0].errors not in shown:
                self._open[place] = Open(one.state, now, False)
                self._emit(place[0].errors, one.state + b"\n")

    def edit_blocks(self, edit: Callable[[bytes], bytes]) -> None:
        """Changes the blocks that are kept back; an empty one goes."""
        edited = {host: edit(block) for host, block in self._held.items()}
        self._held = {host: block for host, block in edited.items() if block}

    def release(self, paint: Callable[[bytes], bytes] = bytes) -> None:
        """Writes the blocks that were kept back, the leader's last; `paint` takes first lines."""
        for host in sorted(self._held, reverse=True):
            first, end, rest = self._held.pop(host).partition(b"\n")
            self._emit(True, paint(first) + end + rest)

    def _settle(self, stream: HostStream, line: bytes) -> bytes:
        """The line as it stands at its end; those before it are over."""
        if not line:
            return line
        ending = b"\r" if line.endswith(b"\r") else b""
        *states, last = line[: len(line) - len(ending)].split(b"\r")
        for state in states:
            self._note(stream, state)
        self._open.pop((stream, _prefix(last)), None)
        return last + ending

    def _settle_rest(self, stream: HostStream, rest: bytes) -> bytes:
        """Of what has no line end yet, the part that may become of a line; the last carriage return
        may be the half of a line end."""
        *states, last = rest.split(b"\r")
        for state in states:
            self._note(stream, state)
        return last if last or not states else states[-1] + b"\r"

    def _note(self, stream: HostStream, state: bytes) -> None:
        prefix = _prefix(state)
        place = (stream, prefix)
        before = self._open.get(place)
        if len(state) == len(prefix):
            self._open.pop(place, None)
        elif before is None:
            self._open[place] = Open(state, time.monotonic(), True)
        elif before.state != state:
            self._open[place] = Open(state, before.passed_at, True)

    def _pass_on(self, stream: HostStream, data: bytes) -> None:
        if stream.errors and stream.host in self._held:
            self._held[stream.host] += data
            return
        if stream.errors and MARK in data:
            # a line of a rank begins with its prefix: its text is not muster's
            *before, block = re.split(rb"(?m)^" + re.escape(MARK), data, maxsplit=1)
            if before:
                data, self._held[stream.host] = before[0], block
        if data:
            self._emit(stream.errors, data)

    def _emit(self, errors: bool, data: bytes) -> None:
        """A line that another stream left open is ended before anything else follows it."""
        if self._open_line[errors]:
            data = b"\n" + data
        self._open_line[errors] = not data.endswith(b"\n")
        if errors:
            self.recent = (self.recent + data)[-RECENT_BYTES:]
        self._write(errors, data)


def _prefix(line: bytes) -> bytes:
    """`[algo-1:0] ` of the rank whose line it is, or b""."""
    found = re.match(_PREFIX, line)
    return found[0] if found else b""

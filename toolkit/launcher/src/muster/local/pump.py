"""The streams of all hosts into ours: whole lines, every byte as it came.

`train` closes a failed job with a block that belongs at the end of the screen; the pump keeps
that block back until the table of ranks has been printed.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.local.hosts import Stream

MAX_LINE_BYTES = 1 << 20
RECENT_BYTES = 8 << 10
LAST_BLOCKS = (b"FAILED ", b"STOPPED by ")


class Pump:
    """`write(errors, data)` takes whole lines for stdout (False) or stderr (True)."""

    def __init__(self, write: Callable[[bool, bytes], None]) -> None:
        self._write = write
        self._partial: dict[Stream, bytes] = {}
        self._held: dict[int, bytes] = {}
        self._open_line = {False: False, True: False}
        self.recent = b""  # the last lines on stderr

    def feed(self, stream: Stream, data: bytes) -> None:
        """Bytes of one host's stream, in order."""
        data = self._partial.pop(stream, b"") + data
        end = data.rfind(b"\n") + 1
        if len(data) - end > MAX_LINE_BYTES:
            end = len(data)  # a line of this size is no line
        if end < len(data):
            self._partial[stream] = data[end:]
        if end:
            self._pass_on(stream, data[:end])

    def end(self, stream: Stream) -> None:
        """The stream ended; a last line may lack its end."""
        rest = self._partial.pop(stream, b"")
        if rest:
            self._pass_on(stream, rest)

    def say(self, text: str) -> None:
        """A line of our own, on stderr."""
        self._emit(True, text.encode("utf-8", "replace") + b"\n")

    def release(self) -> None:
        """Writes the blocks that were kept back, the leader's last."""
        for host in sorted(self._held, reverse=True):
            self._emit(True, self._held.pop(host))

    def _pass_on(self, stream: Stream, data: bytes) -> None:
        if stream.errors and stream.host in self._held:
            self._held[stream.host] += data
            return
        start = _block_start(data) if stream.errors else -1
        if start >= 0:
            self._held[stream.host] = data[start:]
            data = data[:start]
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


def _block_start(data: bytes) -> int:
    """Where a closing block begins, or -1. Lines of ranks carry a prefix and never match."""
    places = []
    for head in LAST_BLOCKS:
        if data.startswith(head):
            return 0
        places.append(data.find(b"\n" + head))
    found = [place + 1 for place in places if place >= 0]
    return min(found, default=-1)

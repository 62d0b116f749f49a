"""What a rank's error stream says about its end: the last traceback or abort, when, and its text.

A failing rank is judged by the moment its error began to show, not by its exit: a rank that only
lost its peer often exits first (protocol.md 6). The moment is that of the *last* block of error
lines, since a script may log a traceback, go on for hours, and fail for another reason; blocks
that follow each other closely (chained exceptions, several threads) count as one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TAIL_BYTES = 64 << 10
CHAIN_S = 5.0

# Cheap to search in a block of 64 KiB; only a hit makes us look at lines.
MARKS = (
    b"Traceback (most recent call last)",
    b"terminate called",
    b"Fatal Python error",
    b"Segmentation fault",
    b"core dumped",
    b"CUDA error",
    b"Assertion `",
    b"*** Process received signal ***",
    b"  + Exception Group Traceback",
)

# How a rank fails when another rank or host went away first (gloo, NCCL, muster and its
# parameter servers, Open MPI).
# Patterns are compiled at first use: most jobs never need them.
_PEER_LOST = (
    r"Connection (?:closed by peer|reset by peer|refused)|\bRead error \[|gloo/transport"
    r"|remote process exited or there was a network error|ncclRemoteError"
    r"|NCCL communicator was aborted|PeerError\b|lost connection|has lost communication"
    r"|(?:Server|Worker)LostError\b"
    r"|Broken pipe|store->get\(|wait timeout after|failed to recv, got 0 bytes"
)
_EXCEPTION = rb"(?:[A-Za-z_][\w.<>]*)(?::|$)"
_ABORTS = tuple(mark for mark in MARKS if not mark.endswith(b"call last)"))


class Evidence(NamedTuple):
    """`at_s`: when the last error block began; `summary`: its exception line; `is_open`: nothing
    else was written since, so the rank was probably on its way out."""

    at_s: float
    summary: str
    is_open: bool


class Watcher:
    """Reads what one rank writes; `feed` costs a few substring searches per block."""

    def __init__(self) -> None:
        self.tail = b""
        self._began_s: float | None = None
        self._last_s = 0.0
        self._open = False

    def feed(self, block: bytes, now: float, error_stream: bool) -> None:
        """`block` ends at a line end where possible. Times are monotonic seconds."""
        if not error_stream:
            self._open = False
            return
        self._keep(block)
        if not any(mark in block for mark in MARKS):
            # The lines of a traceback may arrive in several blocks.
            if self._open and not _continues(block):
                self._open = False
            return
        if self._began_s is None or now - self._last_s > CHAIN_S:
            self._began_s = now
        self._last_s = now
        self._open = True

    def _keep(self, block: bytes) -> None:
        """The last lines, whole where there are any: of a secret that is cut a part would stay."""
        if len(self.tail) + len(block) <= TAIL_BYTES:
            self.tail += block
            return
        tail = (self.tail + block)[-TAIL_BYTES:] if len(block) < TAIL_BYTES else block[-TAIL_BYTES:]
        self.tail = tail[tail.find(b"\n") + 1 :] or tail

    def evidence(self) -> Evidence | None:
        """The last error block, or None when there was none."""
        if self._began_s is None:
            return None
        return Evidence(self._began_s, summary(self.tail), self._open)


def looks_like_lost_peer(text: str) -> bool:
    """Whether the error is one that a rank shows because another went away first."""
    return re.search(_PEER_LOST, text) is not None


def _continues(block: bytes) -> bool:
    """Whether every line of the block may belong to a traceback that is being printed."""
    return all(
        not line.strip() or line.startswith((b" ", b"\t")) or re.match(_EXCEPTION, line)
        for line in block.splitlines()
    )


def summary(tail: bytes) -> str:
    """The exception of the last traceback in `tail`, else its last abort line, else ""."""
    lines = tail.split(b"\n")
    starts = [i for i, line in enumerate(lines) if MARKS[0] in line]
    if starts:
        # Prefixes such as `[rank1]: ` stand before every line of some tracebacks.
        prefix = lines[starts[-1]].partition(b"Traceback")[0]
        prefix = prefix.replace(b"+ Exception Group ", b"| ")
        for line in lines[starts[-1] + 1 :]:
            text = line[len(prefix) :] if prefix and line.startswith(prefix) else line
            if text and not text.startswith((b" ", b"\t")) and re.match(_EXCEPTION, text):
                return text.decode("utf-8", "replace").strip()
    for line in reversed(lines):
        if any(mark in line for mark in _ABORTS):
            return line.decode("utf-8", "replace").strip()
    return ""


def last_traceback(tail: bytes) -> str:
    """The last traceback as text with what follows it; without one the last 20 lines."""
    text = tail.decode("utf-8", "replace")
    start = text.rfind("Traceback (most recent call last)")
    if start >= 0:
        return text[text.rfind("\n", 0, start) + 1 :].strip("\n")
    return "\n".join(text.strip("\n").split("\n")[-20:])

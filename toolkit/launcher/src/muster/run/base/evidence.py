"""What a rank's error stream says about its end: the last traceback or abort, when, and its text.

A failing rank is judged by the moment its error began to show, not by its exit: a rank that only
lost its peer often exits first. The moment is that of the *last* block of error lines, since a
script may log a traceback, go on for hours, and fail for another reason; blocks that follow each
other closely (chained exceptions, several threads) count as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from muster.types.values import NamedTuple

TAIL_BYTES = 64 << 10
CHAIN_S = 5.0
CRASH_LINES = 30

# Cheap to search in a block of 64 KiB; only a hit leads to a look at lines.
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

# How a rank fails when another rank or host went away first (gloo, NCCL, torch's store, muster and
# its parameter servers, MPI). Patterns are compiled at first use: most jobs never need them.
_PEER_LOST = (
    r"\bRead error \[|Connection closed by peer \[|gloo/transport|ncclRemoteError"
    r"|remote process exited or there was a network error|NCCL communicator was aborted"
    r"|collective operation timeout|PeerError\b|lost connection to rank|has lost communication"
    r"|(?:Server|Worker)LostError\b"
    r"|store->get\(|wait timeout after \d+ ?ms, keys|[Ff]ailed to recv, got 0 bytes"
)
# What any connection may end with, also one to a database: it is a peer's only where ranks speak
# with each other, or when an address of the job is named.
_CONNECTION = r"Connection (?:closed by peer|reset by peer|refused)|Broken pipe|timed out"
_BETWEEN_RANKS = (
    r"(?i:torch[./]distributed|mpi4py|horovod|muster_|collectives)|\b(?:c10d|gloo|TCPStore|NCCL)\b"
    r"|ProcessGroup|Dist(?:Network|Store|Backend)Error|\bMPI_|\bCollective|errors_impl\.|van\.cc"
)
_EXCEPTION = rb"(?:[A-Za-z_][\w.<>]*)(?::|$)"
_ABORTS = tuple(mark for mark in MARKS if not mark.endswith((b"call last)", b"Traceback")))
_ON_THE_WAY_OUT = b"terminate called without an active exception"
_DUMPED = (b"Thread 0x", b"Current thread", b"Extension modules:")  # lines of faulthandler
# within one line, for the tail of a rank may hold thousands of blank ones
_FRAME = r'^[^\w\n]*(?:\w+[^\w\n]+)?File "([^"\n]+)", line (\d+)(?:,? in (\S+))?'


class Evidence(NamedTuple):
    """The last error block on a rank's error stream.

    `at_s`: when the last error block began; `summary`: its exception line; `is_open`: nothing else
    was written since, so the rank was probably on its way out.
    """

    at_s: float
    summary: str
    is_open: bool


class Watcher:
    """Reads what one rank writes; `feed` costs a few substring searches per block."""

    def __init__(self) -> None:
        self.tail = b""
        self.spoke = False  # on its standard output
        self.heard_s = 0.0  # when it last wrote anything, a part of a line too; 0 until then
        self._began_s: float | None = None
        self._last_s = 0.0
        self._open = False

    def feed(self, block: bytes, now: float, error_stream: bool) -> None:
        """`block` ends at a line end where possible. Times are monotonic seconds."""
        if not error_stream:
            self.spoke = True
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


def looks_like_lost_peer(said: str, words: str = "", addresses: Iterable[str] = ()) -> bool:
    """Whether the error is one that a rank shows because another went away first.

    `said`: the exception; `words`: its traceback; `addresses`: of the job's hosts.
    """
    if re.search(_PEER_LOST, said):
        return True
    if not re.search(_CONNECTION, said):
        return False
    found = frames(words)
    raised_in = found[-1].path if found else ""
    return bool(re.search(_BETWEEN_RANKS, f"{raised_in}\n{said}")) or any(
        re.search(rf"(?<![\d.]){re.escape(address)}(?![\d.]*\d)", said) for address in addresses
    )


class Frame(NamedTuple):
    """A line of a traceback: where, in which function ("" at the top of a syntax error)."""

    path: str
    line: int
    function: str


def frames(text: str) -> list[Frame]:
    """The frames that a traceback or a dump of faulthandler names, in its order."""
    return [
        Frame(path, int(line), function)
        for path, line, function in re.findall(_FRAME, text, re.MULTILINE)
        if len(line) < 10
    ]


def _continues(block: bytes) -> bool:
    """Whether every line of the block may belong to a traceback that is being printed."""
    return all(
        not line.strip() or line.startswith((b" ", b"\t", *_DUMPED)) or re.match(_EXCEPTION, line)
        for line in block.splitlines()
    )


def summary(tail: bytes) -> str:
    """The exception of the last traceback in `tail`, else its last abort line, else "".

    After a traceback an abort counts where the thread that it was in was running Python, unless
    nothing was thrown: threads (gloo's, for one) sometimes abort a process on its way out.
    """
    lines = tail.split(b"\n")
    starts = [i for i, line in enumerate(lines) if MARKS[0] in line]
    aborts = [i for i, line in enumerate(lines) if any(mark in line for mark in _ABORTS)]
    raised = _exception(lines, starts[-1]) if starts else ""
    after = lines[max(starts[-1], aborts[-1]) :] if starts and aborts else []
    if raised and (not _ran_python(after) or any(_ON_THE_WAY_OUT in line for line in lines)):
        return raised
    return _abort(lines, aborts) if aborts else ""


def _ran_python(dump: Sequence[bytes]) -> bool:
    """Whether faulthandler names a line of the thread that crashed."""
    current = [place for place, line in enumerate(dump) if line.startswith(b"Current thread")]
    return bool(current) and any(b'  File "' in line for line in dump[current[0] :][:2])


def _exception(lines: Sequence[bytes], start: int) -> str:
    """What the traceback that begins there ends with."""
    # Prefixes such as `[rank1]: ` stand before every line of some tracebacks.
    prefix = lines[start].partition(b"Traceback")[0]
    prefix = prefix.replace(b"+ Exception Group ", b"| ")
    for line in lines[start + 1 :]:
        text = line[len(prefix) :] if prefix and line.startswith(prefix) else line
        if text and not text.startswith((b" ", b"\t")) and re.match(_EXCEPTION, text):
            return text.decode("utf-8", "replace").strip()
    return ""


def _abort(lines: Sequence[bytes], aborts: Sequence[int]) -> str:
    """The line that says why: not that Python was aborted, but what aborted it."""
    said = [place for place in aborts if not lines[place].lstrip().startswith(b"what():")]
    place = (said or aborts)[-1]
    if lines[place].startswith(b"Fatal Python error: Aborted") and len(said) > 1:
        place = said[-2]
    line = lines[place].decode("utf-8", "replace").strip()
    thrown = re.search(r"terminate called after throwing an instance of '([^']+)'", line)
    after = lines[place + 1].strip() if place + 1 < len(lines) else b""
    if thrown and after.startswith(b"what():"):
        return f"{thrown[1]}: {after[7:].decode('utf-8', 'replace').strip()}"
    return line


def last_traceback(tail: bytes) -> str:
    """The last traceback as text with what follows it; without one the last lines."""
    text = tail.decode("utf-8", "replace")
    start = text.rfind("Traceback (most recent call last)")
    if start >= 0:
        return text[text.rfind("\n", 0, start) + 1 :].strip("\n")
    return last_lines(tail)


def last_lines(tail: bytes) -> str:
    """The last 20 lines; of a crash the dump of the thread that it was in."""
    lines = tail.decode("utf-8", "replace").strip("\n").split("\n")
    dumps = [place for place, line in enumerate(lines) if line.startswith("Fatal Python error: ")]
    if not dumps:
        return "\n".join(lines[-20:])
    dump = lines[dumps[-1] :]
    current = next((i for i, line in enumerate(dump) if line.startswith("Current thread")), 1)
    return "\n".join([dump[0], *dump[current : current + CRASH_LINES]])

"""What a person sees of a run: the hosts' lines, and on a terminal a live table below them.

The table is drawn with rich (the extra `local`) and only on a terminal; elsewhere one plain line
tells each change. Output of the hosts is never touched: the table is wiped before it and drawn
again after it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from muster.local.show.outlet import Outlet
from muster.local.show.progress import Progress
from muster.local.show.pump import HostPump
from muster.types.outcome import ended
from muster.types.plain import printable, wrapped

DRAW_EVERY_S = 0.25
STATES_EVERY_S = 0.05
SHOWN_STATES = 16
GREEN, RED = "\x1b[32m", "\x1b[31m"
SHOWN_RANKS = 8
_PIECES = r"(?s:\x1b\[[0-9;?]*[@-~]|.)"
FLUSH_S = 5.0
RESULT_S = 60.0


class Screen:
    """What `muster local` prints.

    `as_json`: stdout is kept for the summary, all else goes to stderr.
    """

    def __init__(self, as_json: bool, environ: Mapping[str, str]) -> None:
        self._err = Outlet(2)
        same = as_json or (os.isatty(1) and os.isatty(2))
        self._out = self._err if same else Outlet(1)
        self.pump = HostPump(self._write)
        self._environ = environ
        self._live = os.isatty(2) and environ.get("TERM", "dumb") != "dumb"
        self._colours = self._live and not environ.get("NO_COLOR")
        self._table: _Table | None = None
        self._table_lines: list[str] = []
        self._table_at = 0.0
        self._states: list[bytes] = []
        self._drawn = 0
        self._drawn_at = 0.0
        self._last = ""

    @property
    def outlets(self) -> tuple[Outlet, ...]:
        return (self._err,) if self._out is self._err else (self._out, self._err)

    def say(self, text: str) -> None:
        """A line of `muster local` itself."""
        self.pump.say(wrapped(printable(text)))

    def say_verdict(self, line: str, good: bool) -> None:
        """The line that closes a run, in its colour."""
        self.pump.say(self._painted(wrapped(printable(line)), GREEN if good else RED))

    def release(self) -> None:
        """The blocks of hosts that failed, which end the screen."""
        self.pump.release(lambda line: self._painted(line.decode(errors="replace"), RED).encode())

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{text}\x1b[0m" if self._colours else text

    def show(self, progress: Progress, now: float) -> None:
        """Tells how the run stands: redraws lines that are not complete and the table, or says a
        changed headline."""
        self.pump.tick(now, self._drawn_streams())
        if not self._live or self._table_is_missing():
            headline = progress.headline()
            if headline and headline != self._last:
                self._last = headline
                self.say(f"muster local: {headline}")
        if not self._live:
            return
        states = [s for errors in self._drawn_streams() for s in self.pump.states(errors)]
        every_s = DRAW_EVERY_S if states == self._states else STATES_EVERY_S
        if now - self._drawn_at < every_s:
            return
        if self._table is not None and now - self._table_at >= DRAW_EVERY_S:
            self._table_at, self._table_lines = now, self._table.render(progress)
        self._drawn_at, self._states = now, states
        self._draw()

    def _drawn_streams(self) -> tuple[bool, ...]:
        """Those whose open lines are drawn: what goes to the terminal that is drawn on."""
        if not self._live:
            return ()
        return (True, False) if self._out is self._err else (True,)

    def _table_is_missing(self) -> bool:
        """Whether rich, which draws the table, is not installed."""
        if self._table is None and not self._table_at:
            self._table_at = -DRAW_EVERY_S
            self._table = _make_table(self._environ)
        return self._table is None

    def _draw(self) -> None:
        columns, rows = terminal_size()
        room = max(1, min(SHOWN_STATES, rows - 2 - len(self._table_lines)))
        lines = [fitting(state, columns - 1) for state in self._states[-room:]]
        lines += [line.encode() for line in self._table_lines]
        self._err.write(self._wipe() + b"".join(line + b"\n" for line in lines))
        self._drawn = len(lines)

    def clear(self) -> None:
        """Takes what is drawn away; what follows stays."""
        self._err.write(self._wipe())
        self._live = False

    def give_result(self, text: str) -> None:
        """What a program reads on stdout; the run has ended."""
        outlet = Outlet(1)
        outlet.write(text.encode())
        outlet.flush(RESULT_S)

    def flush(self) -> None:
        for outlet in self.outlets:
            outlet.flush(FLUSH_S)

    def _write(self, errors: bool, data: bytes) -> None:
        if self._drawn:
            self._err.write(self._wipe())
            self._drawn_at = 0.0
        (self._err if errors else self._out).write(data)

    def _wipe(self) -> bytes:
        lines, self._drawn = self._drawn, 0
        return b"\x1b[%dA\r\x1b[J" % lines if lines else b""


class _Table:
    """Renders with rich; one line per host."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        import io

        from rich.console import Console

        self._began = time.monotonic()
        # it never writes by itself: a terminal that is gone would end the run
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            no_color=bool(environ.get("NO_COLOR")) or None,
        )

    def render(self, progress: Progress) -> list[str]:
        from rich.table import Table

        columns, rows = terminal_size()
        self._console.width = columns
        height = max(3, rows - 4)
        took = f"{time.monotonic() - self._began:.0f} s"
        table = Table(box=None, pad_edge=False, title_justify="left", header_style="dim")
        for name in ("host", "phase", "ranks", took):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        hosts = list(progress.phases)
        for host in hosts[:height]:
            table.add_row(host, progress.phases[host], ranks_in_words(progress, host), "")
        with self._console.capture() as capture:
            self._console.print(table)
        lines = list(capture.get().splitlines())
        if len(hosts) > height:
            lines.append(f"... and {len(hosts) - height} more hosts")
        return lines


def terminal_size() -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(2)
    except OSError:  # it has just been closed
        columns, rows = 0, 0
    return columns or 80, rows or 24


def fitting(line: bytes, columns: int) -> bytes:
    """The beginning of the line that takes so many columns. Colours stay; other sequences that
    move the cursor go, since they would take it out of the place that is drawn anew."""
    import unicodedata

    text, width = [], 0
    for piece in re.findall(_PIECES, line.decode("utf-8", "replace")):
        if piece.startswith("\x1b"):
            text.append(piece if piece.endswith("m") else "")
            continue
        width += 2 if unicodedata.east_asian_width(piece) in "WF" else 1
        if width > columns:
            break
        text.append(piece if piece.isprintable() else " ")
    colours = any(piece.startswith("\x1b") for piece in text)
    return ("".join(text) + "\x1b[0m" * colours).encode()


def _make_table(environ: Mapping[str, str]) -> _Table | None:
    try:
        return _Table(environ)
    except ImportError:  # the extra `local` is not installed: plain lines
        return None


def ranks_in_words(progress: Progress, host: str) -> str:
    """`0 running, 1 exit 0`, shortened when there are many."""
    ranks = progress.ranks_of(host)
    words = [
        f"{rank.number} {'running' if rank.ended is None else describe(rank.status)}"
        for rank in ranks[:SHOWN_RANKS]
    ]
    if len(ranks) > SHOWN_RANKS:
        words.append(f"and {len(ranks) - SHOWN_RANKS} more")
    return ", ".join(words)


def describe(status: int | None) -> str:
    """An exit status in few words; minus a signal names the signal."""
    return "unknown" if status is None else ended(status)

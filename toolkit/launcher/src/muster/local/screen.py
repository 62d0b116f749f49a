"""What a person sees of a run: the hosts' lines, and on a terminal a live table below them.

The table is drawn with rich (the extra `local`) and only on a terminal; elsewhere one plain line
tells each change. Output of the hosts is never touched: the table is wiped before it and drawn
again behind it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from muster.local.outlet import Outlet
from muster.local.progress import Progress
from muster.local.pump import Pump

DRAW_EVERY_S = 0.25
SHOWN_RANKS = 8
FLUSH_S = 5.0


class Screen:
    """`as_json`: stdout is kept for the summary, all else goes to stderr."""

    def __init__(self, as_json: bool, environ: Mapping[str, str]) -> None:
        self._err = Outlet(2)
        same = as_json or (os.isatty(1) and os.isatty(2))
        self._out = self._err if same else Outlet(1)
        self.pump = Pump(self._write)
        self._environ = environ
        self._live = os.isatty(2) and environ.get("TERM", "dumb") != "dumb"
        self._table: _Table | None = None
        self._drawn = 0
        self._drawn_at = 0.0
        self._last = ""

    @property
    def outlets(self) -> tuple[Outlet, ...]:
        return (self._err,) if self._out is self._err else (self._out, self._err)

    def say(self, text: str) -> None:
        """A line of `muster local` itself."""
        self.pump.say(text)

    def show(self, progress: Progress, now: float) -> None:
        """Tells how the run stands: redraws the table, or says a changed headline."""
        if not self._live:
            headline = progress.headline()
            if headline and headline != self._last:
                self._last = headline
                self.say(f"muster local: {headline}")
            return
        if now - self._drawn_at < DRAW_EVERY_S:
            return
        self._table = self._table or _make_table(self._environ)
        if self._table is None:
            self._live = False
            return
        self._drawn_at = now
        lines = self._table.render(progress)
        self._err.write(self._wipe() + "".join(f"{line}\n" for line in lines).encode())
        self._drawn = len(lines)

    def clear(self) -> None:
        """Takes the table away; what follows stays."""
        self._err.write(self._wipe())
        self._live = False

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
        from rich.console import Console

        self._began = time.monotonic()
        self._console = Console(
            stderr=True, force_terminal=True, no_color=bool(environ.get("NO_COLOR")) or None
        )

    def render(self, progress: Progress) -> list[str]:
        from rich.table import Table

        height = max(3, self._console.height - 4)
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
    if status is None:
        return "unknown"
    if status >= 0:
        return f"exit {status}"
    import signal

    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"

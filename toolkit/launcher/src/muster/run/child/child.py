"""A supervised process of this host, from its shim's registration to the end of its output."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from muster.run.base.evidence import Watcher
from muster.run.base.logs import Pump, Stream
from muster.run.base.loop import Loop
from muster.run.child.shim_handle import ShimHandle

LAST_WORDS_S = 0.5  # how long output may still arrive after an end before the end is judged
KILLED_S = 1.0  # how long what was killed may take to close its output


class Child:
    """A supervised process: a rank, a launcher, a server or an installer.

    What its life means for the job is up to a subclass: `on_start` when its script runs, `on_end`
    when that has ended, `on_last_words` once its output has ended or had LAST_WORDS_S, `on_gone`
    once its output has ended or is given up, all at most once and in this order; `on_lost_shim`
    when its shim is gone and the script may run on. `what`: the process to a reader. `drain_s`: how
    long after its end a process below it may keep its output open; None for as long as it likes.
    """

    has_agent = False  # whether the agent in its Python, if that has one, is of use

    def __init__(self, loop: Loop, what: str, drain_s: float | None) -> None:
        self.what = what
        self.handle: ShimHandle | None = None
        self.watcher = Watcher()
        self.began_s = 0.0  # times of this host's monotonic clock; 0 until then
        self.ended_s = 0.0
        self.gone = False
        self.reported = False  # its last words are there, or were waited for
        self._loop = loop
        self._drain_s = drain_s
        self._open_streams = 0

    def on_start(self) -> None: ...

    def on_lost_shim(self) -> None: ...

    def on_end(self) -> None: ...

    def on_last_words(self) -> None: ...

    def on_gone(self) -> None: ...

    @property
    def runs(self) -> bool:
        return self.handle is not None and not self.handle.ended

    @property
    def ran(self) -> bool:
        """Whether its script has been started, and perhaps has ended."""
        return self.handle is not None and bool(self.handle.pid)

    @property
    def status(self) -> int:
        """The exit code, or minus the signal; 0 while it runs."""
        return (self.handle.status or 0) if self.handle is not None else 0

    def begin(
        self,
        handle: ShimHandle,
        pump: Pump,
        streams: Sequence[Stream],
        argv: Sequence[str],
        environ: Mapping[str, str],
        cwd: str,
    ) -> None:
        """Its shim has registered: starts it. The streams call `stream_ended` at their ends."""
        self.handle, handle.child = handle, self
        self.began_s = time.monotonic()
        self._open_streams = len(streams)
        for stream in streams:
            pump.add(stream)
        if not self.has_agent:
            handle.drop_agent()
        handle.start(argv, environ, cwd)
        if handle.ended:  # its shim died after it had registered and before this call
            self.note_end()

    def stream_ended(self) -> None:
        """Called by each stream at its end, on the thread of the pump."""
        self._loop.post(self._count_stream)

    def changed(self) -> None:
        """Its script started or ended, or its shim is gone."""
        handle = self.handle
        assert handle is not None
        if handle.ended:
            self.note_end()
        elif not handle.connected:
            self.on_lost_shim()
        elif handle.pid:
            self.on_start()

    def note_end(self) -> None:
        """Its script has ended; what it wrote may still be on its way."""
        if self.ended_s:
            return
        self.ended_s = time.monotonic()
        self.on_end()
        if self._open_streams <= 0:
            self.finish()
            return
        self._loop.after(LAST_WORDS_S, self._report)
        if self._drain_s is not None:
            self._loop.after(self._drain_s, self._drain)

    def kill(self) -> None:
        """SIGKILL to it and all that is left below it."""
        if self.handle is not None:
            self.handle.kill()

    def release(self) -> None:
        """Ends it and all that is left below it, and its shim."""
        if self.handle is not None:
            self.handle.release()

    def drain(self) -> None:
        """A process that the script left keeps its output open: kill it."""
        self.kill()
        self._loop.after(KILLED_S, self.finish)

    def finish(self) -> None:
        """Its output has ended, or is not waited for any more."""
        if not self.gone:
            self._report()
            self.gone = True
            self.on_gone()

    def _drain(self) -> None:
        if not self.gone:
            self.drain()

    def _count_stream(self) -> None:
        self._open_streams -= 1
        if self.ended_s and self._open_streams == 0:
            self.finish()

    def _report(self) -> None:
        if not self.reported:
            self.reported = True
            self.on_last_words()

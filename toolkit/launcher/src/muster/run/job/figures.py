"""What was seen of this host's ranks, gathered when they have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.channel.messages import RankEnd
from muster.types.run_files import COLLECTIVES
from muster.types.steps import Log

if TYPE_CHECKING:
    from muster.run.channel.digest import HostDigest


class Figures:
    """The figures of this host's ranks. `provider`: who observes them puts itself there; it is
    asked once, on the loop's thread."""

    def __init__(self, loop: Loop, recorder: Recorder, log: Log) -> None:
        self.provider: Callable[[], HostDigest | None] = lambda: None
        self._loop = loop
        self._recorder = recorder
        self._log = log
        self._began = time.time()

    def gather(self, ends: Sequence[RankEnd], done: Callable[[HostDigest | None], None]) -> None:
        """Calls `done` on the loop, at once where nobody observed; a provider that fails is
        nobody. Ranks that were killed left no waits, so their host does not look for any."""
        try:
            digest = self.provider()
        except Exception as error:
            self._log("record", f"no figures of ranks: {error!r}", level="WARNING")
            digest = None
        folder = self._recorder.path(COLLECTIVES)
        if digest is None or not folder or any(end.forced for end in ends):
            done(digest)
            return
        from muster.run.observe.waits import add_waits

        add_waits(self._loop, digest, folder, self._began, done)

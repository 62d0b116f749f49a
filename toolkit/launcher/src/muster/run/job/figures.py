"""What was seen of this host's ranks, gathered when they have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.channel.messages import RankEnd
from muster.types.run_files import COLLECTIVES, METRICS
from muster.types.steps import Log

if TYPE_CHECKING:
    from muster.run.channel.digest import HostDigest
    from muster.run.observe.sampler import Sampler


class Figures:
    """The figures of this host's ranks. `sampler()`: what has looked at them, None where nothing
    did."""

    def __init__(
        self, loop: Loop, recorder: Recorder, log: Log, sampler: Callable[[], Sampler | None]
    ) -> None:
        self._loop = loop
        self._recorder = recorder
        self._log = log
        self._sampler = sampler
        self._began = time.time()

    def gather(self, ends: Sequence[RankEnd], done: Callable[[HostDigest | None], None]) -> None:
        """Calls `done` on the loop, at once where nothing looked at ranks; a defect changes no
        outcome. Ranks that were killed left no waits, so their host does not look for any."""
        try:
            self._gather(ends, done)
        except Exception as error:
            self._log("record", f"no figures of ranks: {error!r}", level="WARNING")
            done(None)

    def _gather(self, ends: Sequence[RankEnd], done: Callable[[HostDigest | None], None]) -> None:
        sampler = self._sampler()
        if sampler is None:
            done(None)
            return
        from muster.run.observe.rank_figures import digest_of, in_time
        from muster.run.observe.waits import waits_in

        ranks = [end.rank for end in ends]
        metrics, collectives = map(self._recorder.path, (METRICS, COLLECTIVES))
        waited = bool(collectives) and not any(end.forced for end in ends)

        def read() -> HostDigest:
            sampler.end()
            waits = waits_in(collectives, self._began) if waited else {}
            return digest_of(ranks, sampler, metrics, waits, self._began)

        in_time(self._loop, lambda: digest_of(ranks, sampler), read, done)

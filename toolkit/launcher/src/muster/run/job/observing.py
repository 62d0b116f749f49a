"""What observes, as the supervisor has it: made late, and never a reason for an outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.plan.launchplan import LaunchPlan
from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.channel.messages import HostError, Question
from muster.run.child.ranks import HostRanks
from muster.run.job import events as e
from muster.run.job.context import JobContext
from muster.run.job.endpoints import Endpoint
from muster.types.steps import Log

if TYPE_CHECKING:
    from muster.run.observe.observer import Observer
    from muster.run.observe.sampler import Sampler

OBSERVE_S = 0.3  # after the ranks run: what has ended by then is not looked into


class Observing:
    """Makes the observer 0.3 s after the ranks run, or with the first question, and ends it with
    the outcome. It is also what the observer may ask of this host (`observer.ObserverHost`)."""

    def __init__(
        self,
        loop: Loop,
        context: JobContext,
        endpoint: Endpoint,
        ranks: HostRanks,
        recorder: Recorder,
        log: Log,
        mask: Callable[[str], str],
        plan: Callable[[], LaunchPlan | None],
        at_work: Callable[[], bool],
        happen: Callable[[e.Event], None],
    ) -> None:
        self._loop = loop
        self._context = context
        self._endpoint = endpoint
        self._ranks = ranks
        self._recorder = recorder
        self._log = log
        self._mask = mask
        self._plan = plan
        self._at_work = at_work
        self._happen = happen
        self._observer: Observer | None = None
        self._over = False
        endpoint.on_question = self._questioned

    def begin(self) -> None:
        """All ranks of this host run."""
        self._loop.after(OBSERVE_S, self._observe)

    @property
    def sampler(self) -> Sampler | None:
        """What was sampled of the ranks so far; None where nothing was."""
        return self._observer.sampler if self._observer is not None else None

    def end(self) -> None:
        """Nothing is asked or answered from here on; may be called at any time, also twice."""
        observer, self._observer, self._over = self._observer, None, True
        if observer is not None:
            try:
                observer.close()
            except Exception:
                pass  # nothing depends on it

    def _observe(self) -> None:
        plan = self._plan()
        if self._observer is not None or self._over or plan is None:
            return
        try:
            from muster.run.observe.observer import HostPlace, Observer  # trivial jobs go without

            cluster = self._context.cluster
            names = tuple(host.name for host in cluster.hosts)
            self._observer = Observer(
                self._loop,
                HostPlace(cluster.current, cluster.distribution[0], names),
                plan,
                lambda: self._ranks.of_world,
                self._context.deadlines,
                self._recorder,
                self._log,
                self._mask,
                self,
                self._context.throttled_s,
                lambda: (self._endpoint.clock_offset_s, self._endpoint.clock_unsure_s),
            )
        except Exception as error:
            self._over = True
            text = f"a defect of muster: nothing looks into ranks; the job goes on: {error}"
            self._log("observe", text, level="WARNING")

    def _questioned(self, host: int, question: Question) -> None:
        self._observe()
        if self._observer is not None:
            self._observer.heard(host, question)

    # what the observer may ask of this host

    def ask_host(self, host: int, question: Question) -> None:
        """See `ObserverHost`."""
        if not self._over:
            self._endpoint.ask(host, question)

    def stop_job(self, by: str) -> None:
        """See `ObserverHost`."""
        self._loop.post(lambda: self._happen(e.Signalled(by)))

    def job_hangs(self, error: HostError) -> None:
        """See `ObserverHost`."""
        self._loop.post(lambda: self._happen(e.HostFailed(error)))

    def is_at_work(self) -> bool:
        """See `ObserverHost`."""
        return self._at_work()

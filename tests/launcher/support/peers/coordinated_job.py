"""A coordinator with a clock of the test's own, and what it ordered."""

from __future__ import annotations

from collections.abc import Sequence

from muster.run.channel import messages as m
from muster.run.job.coordinator import Coordinator
from muster.types.deadlines import Deadlines
from muster.types.machine import HostFacts
from muster.types.outcome import Outcome, RankFailure

LIMITS = Deadlines()
NAMES = ("algo-1", "algo-2", "algo-3")
HOST_ERROR = m.HostError("InstallError", 101, "pip failed", "", "")


def failure(host: int, at_s: float) -> RankFailure:
    return RankFailure(NAMES[host], host, 7, at_s, "ValueError: x", "tail")


def ended(host: int, *failures: RankFailure, status: int = 0) -> m.HostEnded:
    end = m.RankEnd(rank=host, status=status, duration_s=1.0, stopped=False, forced=False)
    return m.HostEnded((end,), failures, {})


class Job:
    """A coordinator, its clock, and what it ordered."""

    def __init__(self, hosts: int = 3, helpers: Sequence[int] = ()) -> None:
        self.now = 5000.0
        self.hosts = range(hosts)
        self.coordinator = Coordinator(NAMES[:hosts], 0, helpers, LIMITS, self.now)
        self.orders: list[tuple[int | None, m.ToHost]] = []

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.coordinator.tick(self.now)
        self.collect()

    def collect(self) -> None:
        self.orders += [(order.host, order.message) for order in self.coordinator.take_orders()]

    def hear(self, host: int, message: m.ToLeader) -> None:
        self.coordinator.heard(host, message, self.now)
        self.collect()

    def join(self, *hosts: int) -> None:
        for host in hosts or self.hosts:
            self.coordinator.joined(host, self.now)
        self.collect()

    def lose(self, host: int, last_heard: float | None = None) -> None:
        self.coordinator.lost(host, self.now if last_heard is None else last_heard, "why", self.now)
        self.collect()

    def make_ready(self, digest: str = "same") -> None:
        self.join()
        for host in self.hosts:
            self.hear(host, m.StagedHost(facts(host)))
        for host in self.hosts:
            self.hear(host, m.Ready(digest))

    def run(self) -> None:
        self.make_ready()
        for host in self.hosts:
            self.hear(host, m.Registered(1))

    def told(self, kind: type) -> list[m.ToHost]:
        return [message for _, message in self.orders if isinstance(message, kind)]

    @property
    def outcome(self) -> Outcome | None:
        return self.coordinator.outcome

    @property
    def headline(self) -> str:
        assert self.outcome is not None
        return self.outcome.headline


def facts(host: int) -> HostFacts:
    return HostFacts(host, f"10.0.0.{host}", "eth0", 8, 0, 0, False, True, "c", "1", "3.11")


def running(hosts: int = 3, helpers: Sequence[int] = ()) -> Job:
    job = Job(hosts, helpers)
    job.run()
    assert job.coordinator.running
    job.orders.clear()
    return job

"""All hosts on one clock: the leader's monotonic one, from the first thing that the record has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import median

from muster.report.cells import mapping, number, sequence
from muster.report.values import HostRecord
from muster.types.values import NamedTuple

SAME_BOOT_S = 0.05  # clocks of one machine differ by less, whatever its wall clock did meanwhile


class HostClock(NamedTuple):
    """How one host's times become the leader's. `known`: as its events say; else by the wall
    clocks, which are as good as the hosts keep them."""

    begins: tuple[float, ...]  # by the host's clock, when each offset began to hold
    offsets: tuple[float, ...]
    known: bool

    def __call__(self, t: float) -> float:
        return t + self.offsets[max(0, bisect_right(self.begins, t) - 1)]


class Aligned(NamedTuple):
    """`at(host, t)`: seconds since the beginning. `guessed`: hosts aligned by their wall clocks;
    `walls`: wall clock minus monotonic clock, of hosts that say it."""

    clocks: Mapping[str, HostClock]
    began: float
    guessed: tuple[str, ...]
    walls: Mapping[str, float]

    def at(self, host: str, t: float) -> float:
        return self.clocks[host](t) - self.began

    def at_wall(self, host: str, time: float) -> float | None:
        """The same of a time since 1970; None where no record relates the two. Of a host that has
        no events as good as its clock."""
        name = host if host in self.walls else next(iter(self.walls), None)
        return None if name is None else self.at(name, time - self.walls[name])


def align(hosts: Sequence[HostRecord], leader: str) -> Aligned:
    """`leader`: its name, "" when unknown."""
    walls = {host.name: _wall(host) for host in hosts}
    base = next((walls[h.name] for h in hosts if h.name == leader and walls[h.name]), None)
    if base is None:
        base = next((wall for wall in walls.values() if wall), None)
    clocks = {host.name: _clock(host, leader, walls[host.name], base) for host in hosts}
    firsts = [clocks[host.name](min(times)) for host in hosts if (times := _times(host))]
    guessed = [host.name for host in hosts if not clocks[host.name].known and _times(host)]
    known = {name: wall for name, wall in walls.items() if wall is not None}
    return Aligned(clocks, min(firsts, default=0.0), tuple(guessed), known)


def leader_of(summary: Mapping[str, object]) -> str:
    """Its name, "" when unknown."""
    hosts = map(mapping, sequence(summary.get("hosts")))
    return next((str(one.get("name")) for one in hosts if one.get("leader")), "")


def guesses(aligned: Aligned) -> list[str]:
    """Which hosts' times are not as good as the others', in sentences."""
    return [f"{host}: its clock is not in the record, times of it are as good as its wall clock"
            for host in aligned.guessed]  # fmt: skip


def _clock(host: HostRecord, leader: str, wall: float | None, base: float | None) -> HostClock:
    said = [(event.t, offset) for event in host.events if event.kind == "clock"
            if (offset := number(event.fields.get("offset_s"))) is not None]  # fmt: skip
    if said:
        said.sort()
        return HostClock(tuple(t for t, _ in said), tuple(offset for _, offset in said), True)
    if host.name == leader or wall is None or base is None:
        return HostClock((0.0,), (0.0,), True)
    offset = wall - base
    if abs(offset) < SAME_BOOT_S:
        return HostClock((0.0,), (0.0,), True)
    return HostClock((0.0,), (offset,), False)


def _wall(host: HostRecord) -> float | None:
    """Wall clock minus monotonic clock."""
    found = [event.time - event.t for event in host.events if event.time > 0]
    return median(found) if found else None


def _times(host: HostRecord) -> list[float]:
    return [event.t for event in host.events] or [
        sample.t for samples in host.samples.values() for sample in samples
    ]

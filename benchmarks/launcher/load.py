"""What many hosts cost one leader: real processes and sockets, no ranks.

`python -m benchmarks.launcher.load 100 500 1000 2000` prints one line per number of hosts.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.launcher.load_hosts import ADDRESS, IdleFollower, IdleHost, identity
from benchmarks.launcher.processes import cpu_s, memory_kib
from benchmarks.table import Bound, Row, under
from muster.run.base.loop import Loop
from muster.run.channel.messages import Message
from muster.types.deadlines import Deadlines
from tests.support.ports import free_ports

LIMIT_S = 120.0  # of every step
SPARE_FILES = 100  # beside one connection per host
GROWTH = 1.25
LATE_S, LATE = 2.0, "every second one 2 s later"
HEARTBEATS_S = 5.0  # five beats of every host at the default
_BEATS = "heartbeats {:.1%} of a core, "


class Load(NamedTuple):
    """One job of so many hosts, the leader's included. Times as the followers see them, in
    seconds; `go_s` counts from when the last of them came, so it holds join, stage and facts.
    `go_cpu_s`: what all hosts spend until then, the leader's included.
    `peak_kib`: the leader's largest memory per host, while the facts are on their way."""

    hosts: int
    join_s: float
    go_s: float
    go_cpu_s: float
    kib_per_host: float
    peak_kib: float
    heartbeat_share: float  # of a core; NaN when not measured
    stop_s: float
    verdict_s: float
    leave_s: float
    leader_cpu_s: float

    def __str__(self) -> str:
        beats = "" if math.isnan(self.heartbeat_share) else _BEATS.format(self.heartbeat_share)
        return (
            f"{self.hosts:,} hosts: joined {self.join_s:.2f} s, go {self.go_s:.2f} s, "
            f"{self.kib_per_host:.1f} KiB per host (peak {self.peak_kib:.1f}), "
            f"{beats}report to stop {self.stop_s:.3f} s, "
            f"to verdict {self.verdict_s:.3f} s, to left {self.leave_s:.3f} s, "
            f"leader's CPU without heartbeats {self.leader_cpu_s:.2f} s"
        )


class _Side:
    """What one follower hears, counted for all."""

    def __init__(self, counts: Counter[str]) -> None:
        self.host: IdleHost | None = None
        self.end: Callable[[], None] = lambda: None
        self._counts = counts

    def leader_joined(self) -> None:
        assert self.host is not None
        self._counts["joined"] += 1
        self.host.joined()

    def leader_said(self, message: Message) -> None:
        assert self.host is not None
        kind = type(message).__name__
        self._counts[kind] += 1
        self.host.hear(message)
        if kind == "Leave":
            self.end()

    def leader_unreachable(self, why: str) -> None:
        raise RuntimeError(f"a host could not join: {why}")

    def leader_lost(self, why: str) -> None:
        raise RuntimeError(f"a host lost the leader: {why}")

    def leader_silent(self, silent_s: float) -> None:
        raise RuntimeError(f"a host heard nothing for {silent_s:.0f} s")

    def leader_heard_again(self) -> None: ...


def _resolve(done: Callable[[Sequence[str]], None]) -> None:
    done([ADDRESS])


class Crowd:
    """All hosts but the leader's, on one loop."""

    def __init__(self, hosts: int, port: int, nameless: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.followers: list[IdleFollower] = []
        self.hosts: list[IdleHost] = []
        self.loop = Loop()
        for place in range(1, hosts):
            side = _Side(self.counts)
            follower = IdleFollower(
                self.loop, identity(place, nameless), _resolve, port, "", Deadlines(), side
            )
            side.host = IdleHost(place, follower.send)
            side.end = follower.close
            self.followers.append(follower)
            self.hosts.append(side.host)

    def until(self, kind: str) -> float:
        """Runs until every host has seen it; the time then. Raises TimeoutError."""
        end = time.monotonic() + LIMIT_S
        while self.counts[kind] < len(self.followers):
            if time.monotonic() >= end:
                raise TimeoutError(f"{self.counts[kind]} of {len(self.followers)} saw {kind}")
            self.run_for(0.002)
        return time.monotonic()

    def run_for(self, seconds: float) -> None:
        self.loop.after(seconds, self.loop.stop)
        self.loop.run()

    def close(self) -> None:
        for follower in self.followers:
            follower.close()
        self.loop.close()


def measure(
    hosts: int, heartbeats_s: float = HEARTBEATS_S, nameless: bool = False, late_s: float = 0
) -> Load:
    """One job of `hosts` hosts, every second of which comes `late_s` later than the others.

    Raises TimeoutError or RuntimeError when it goes wrong.
    """
    _allow_files(hosts + SPARE_FILES)
    port = free_ports(1)[0]
    with _leader(hosts, port, nameless) as leader:
        crowd = Crowd(hosts, port, nameless)
        try:
            return _one_job(crowd, leader, heartbeats_s, late_s)
        finally:
            crowd.close()


def rows() -> Iterator[Row]:
    """The rows of `make bench-launcher`. Twice the hosts may take twice the time, and no more
    memory each; what each of them takes of the leader may grow by `GROWTH`, since runs differ."""
    load = measure(1000)
    crowd = "1,000 simulated hosts, one leader"
    share = load.heartbeat_share * 100
    yield Row(f"join to go: {crowd}", "s", load.go_s, {}, (under(load.go_s, 15, "s"),), str(load))
    yield _memory_row(crowd, load)
    yield Row(f"heartbeats: {crowd}", "% of a core", share, {}, (under(share, 25, "% of a core"),))
    twice = measure(2000, heartbeats_s=0)
    crowd = "2,000 simulated hosts, one leader"
    limit = under(twice.go_s, 30, "s")
    yield Row(f"join to go: {crowd}", "s", twice.go_s, {}, (limit,), str(twice))
    yield _memory_row(crowd, twice)
    again = [(measure(1000, heartbeats_s=0), measure(2000, heartbeats_s=0)) for _ in range(2)]
    yield _growth_row([(load, twice), *again])


def nameless_rows(rounds: int) -> Iterator[Row]:
    """The rows of `make bench-elsewhere`: hosts without names beside those with them."""
    cases = {"without names": (True, 0.0), "with names": (False, 0.0), LATE: (True, LATE_S)}
    found: dict[str, list[Load]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (nameless, late_s) in cases.items():
            found[name].append(measure(1000, 0, nameless, late_s))
    walls = {name: min(one.go_s for one in loads) for name, loads in found.items()}
    spent = {name: min(one.go_cpu_s for one in loads) for name, loads in found.items()}
    ours, named = "without names", "with names"
    what = "join to go: 1,000 simulated hosts without names"
    must = Bound(f"1.2 times the processor time {named}", spent[ours] <= 1.2 * spent[named])
    for name in (ours, LATE):  # late ones are shown: their time holds heartbeats of those that wait
        told = ", ".join(f"{one} {seconds:.2f}" for one, seconds in spent.items())
        detail = f"best of {rounds}, interleaved; processor seconds of all hosts: {told}"
        where = what if name == ours else f"{what}, {LATE}"
        yield Row(where, "s", walls[name], {named: walls[named]}, (must,) * (name == ours), detail)


def _memory_row(crowd: str, load: Load) -> Row:
    peak = load.peak_kib
    return Row(f"leader's memory per host: {crowd}", "KiB", peak, {}, (under(peak, 64, "KiB"),))


def _growth_row(pairs: Sequence[tuple[Load, Load]]) -> Row:
    """What a host costs the leader when there are twice as many hosts, over what it cost before:
    processor time and memory, of the best run of each. Wall time holds the hosts' work too, which
    is done by one process here, so it is shown and not judged."""
    figures: Mapping[str, Callable[[Load], float]] = {
        "CPU": lambda load: load.leader_cpu_s / load.hosts,
        "memory": lambda load: load.peak_kib,
        "join": lambda load: load.join_s / load.hosts,
        "join to go": lambda load: load.go_s / load.hosts,
    }
    few, many = zip(*pairs, strict=True)
    grown = {name: min(map(of, many)) / min(map(of, few)) for name, of in figures.items()}
    worst = max(grown["CPU"], grown["memory"])
    bound = Bound(f"at most {GROWTH:g} times (linear)", worst <= GROWTH)
    told = ", ".join(f"{name} {factor:.2f}" for name, factor in grown.items())
    what = f"leader's cost per host: {many[0].hosts:,} over {few[0].hosts:,} hosts"
    detail = f"best of {len(pairs)} runs each: {told}; CPU and memory are judged"
    return Row(what, "times", worst, {}, (bound,), detail)


def _one_job(crowd: Crowd, leader: int, heartbeats_s: float, late_s: float) -> Load:
    others = len(crowd.followers)
    empty_kib, start_cpu_s = memory_kib(leader, "VmRSS"), cpu_s(leader)
    crowd_cpu_s = time.process_time()
    if late_s:
        for follower in crowd.followers[1::2]:
            follower.join(LIMIT_S)
        crowd.run_for(late_s)
    began = time.monotonic()
    for follower in crowd.followers[:: 2 if late_s else 1]:
        follower.join(LIMIT_S)
    joined, went = crowd.until("joined"), crowd.until("Go")
    go_cpu_s = cpu_s(leader) - start_cpu_s + time.process_time() - crowd_cpu_s
    crowd.run_for(0.5)  # the answers to Go
    before_s, before = cpu_s(leader), time.monotonic()
    crowd.run_for(heartbeats_s)
    beats_s, beats = cpu_s(leader) - before_s, time.monotonic() - before
    full_kib = memory_kib(leader, "VmRSS")
    reported = time.monotonic()
    crowd.hosts[-1].fail()
    stopped, decided = crowd.until("Stop"), crowd.until("Verdict")
    spent_s = cpu_s(leader) - start_cpu_s - beats_s
    peak_kib = memory_kib(leader, "VmHWM")
    left = crowd.until("Leave")
    return Load(
        hosts=others + 1,
        join_s=joined - began,
        go_s=went - began,
        go_cpu_s=go_cpu_s,
        kib_per_host=(full_kib - empty_kib) / others,
        peak_kib=(peak_kib - empty_kib) / others,
        heartbeat_share=beats_s / beats if heartbeats_s else math.nan,
        stop_s=stopped - reported,
        verdict_s=decided - reported,
        leave_s=left - reported,
        leader_cpu_s=spent_s,
    )


@contextmanager
def _leader(hosts: int, port: int, nameless: bool) -> Iterator[int]:
    """The pid of a leader that listens; afterwards it must have ended well by itself."""
    argv = [sys.executable, "-m", "benchmarks.launcher.load_hosts"]
    argv += map(str, (hosts, port, int(nameless)))
    child = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        assert child.stdout is not None
        if child.stdout.readline() != b"listening\n":
            raise RuntimeError(f"no leader: {' '.join(argv)} ended with {child.wait(LIMIT_S)}")
        yield child.pid
        if child.wait(LIMIT_S) != 0:
            raise RuntimeError(f"the leader ended with {child.returncode}")
    finally:
        child.kill()
        child.communicate()


def _allow_files(count: int) -> None:
    """Raises the soft limit, which the leader inherits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise RuntimeError(f"{count} open files are needed, the hard limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def main() -> int:
    for word in sys.argv[1:] or ["1000"]:
        print(measure(int(word)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What an MPI job costs: nothing to do, and a rank that fails, beside the incumbent and mpirun."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.launcher.mpi.hosts import FAILS, NOOP, Host, MpiJobs
from benchmarks.launcher.software import INCUMBENT, Software
from benchmarks.table import Row, under
from benchmarks.timing import interleaved
from tests.support.venvs import CACHE

MPIRUN = "mpirun, trivial agent"
ONE_HOST_S, TWO_HOSTS_S, SHARE_S, FAILURE_S = 1.5, 2.5, 0.5, 3.0


def rows(software: Software, rounds: int) -> Iterator[Row]:
    # not below /tmp, which every host has for itself
    with tempfile.TemporaryDirectory(prefix="bench-mpi-", dir=CACHE) as folder:
        yield from _rows(MpiJobs(Path(folder), software), rounds)


def _rows(jobs: MpiJobs, rounds: int) -> Iterator[Row]:
    # the incumbent's jobs sleep for minutes: side by side, and over before ours are measured
    with ThreadPoolExecutor(3) as pool:
        begun = [
            pool.submit(jobs.incumbent, script, hosts)
            for script, hosts in ((NOOP, 1), (NOOP, 2), (FAILS, 2))
        ]
        one, two, failed = (future.result() for future in begun)
    yield _one_host(jobs, rounds, _last(_good(one)))
    yield _two_hosts(jobs, rounds, _last(_good(two)))
    yield _failure(jobs, rounds, failed)


def _one_host(jobs: MpiJobs, rounds: int, peer: float) -> Row:
    times = interleaved({"ours": _timed(jobs.ours, 1), "bare": _timed(jobs.bare, 1)}, rounds)
    ours, bare = times["ours"].median, times["bare"].median
    return Row(
        "no-op MPI job, 1 host x 2 ranks",
        "s",
        ours,
        {INCUMBENT: peer, MPIRUN: bare},
        (under(ours, ONE_HOST_S, "s"),),
        f"medians of {rounds}, the incumbent once; Open MPI 4.1, the script imports MPI",
    )


def _two_hosts(jobs: MpiJobs, rounds: int, peer: float) -> Row:
    times = interleaved({"ours": _timed(jobs.ours, 2), "bare": _timed(jobs.bare, 2)}, rounds)
    ours, bare = times["ours"].median, times["bare"].median
    return Row(
        "no-op MPI job, 2 hosts x 2 ranks",
        "s",
        ours,
        {INCUMBENT: peer, MPIRUN: bare},
        (under(ours, TWO_HOSTS_S, "s"), under(ours - bare, SHARE_S, "s", "more than mpirun")),
        f"medians of {rounds}, the incumbent once; until the last host has ended",
    )


def _failure(jobs: MpiJobs, rounds: int, peer: list[Host]) -> Row:
    worst = 0.0
    for _ in range(rounds):
        hosts = jobs.ours(FAILS, 2)
        if [host.code for host in hosts] != [1, 1] or len({host.failure for host in hosts}) != 1:
            raise RuntimeError(f"not the same true end on both hosts: {hosts}")
        if "ValueError: bad batch (algo-2 rank 3" not in hosts[0].failure:
            raise RuntimeError(f"another first line: {hosts[0].failure}")
        worst = max(worst, _last(hosts))
    told = ", ".join(f"host {n} exit {h.code} at {h.ended_s:.1f} s" for n, h in enumerate(peer, 1))
    return Row(
        "a rank of host 2 fails until both hosts have ended",
        "s",
        worst,
        {INCUMBENT: _last(peer)},
        (under(worst, FAILURE_S, "s", "worst"),),
        f"worst of {rounds}, from the start of the job; both hosts say the same true line; "
        f"the incumbent: {told}",
    )


def _timed(job: Callable[[str, int], list[Host]], hosts: int) -> Callable[[], float]:
    return lambda: _last(_good(job(NOOP, hosts)))


def _last(hosts: list[Host]) -> float:
    return max(host.ended_s for host in hosts)


def _good(hosts: list[Host]) -> list[Host]:
    """Raises RuntimeError when a host did not end well."""
    for host in hosts:
        if host.code != 0:
            raise RuntimeError(f"a no-op job ended with {host.code}:\n{host.log[-800:]}")
    return hosts

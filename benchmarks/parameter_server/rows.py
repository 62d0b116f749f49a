"""Rows of the PyTorch parameter server beside torch.distributed.rpc doing the same.

`python -m benchmarks.launcher parameters`. Both have two servers and two workers on loopback, one
thread of torch in each process, and both stay up while they take steps in turns. A step's time is
that of its slower worker. Parameters are checked at the end.
"""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.table import Row, at_least_times
from benchmarks.timing import interleaved
from tests.support.ports import free_ports

SIZE_BYTES = 64 << 20
ROUNDS = 15
PEER = "torch.distributed.rpc"
_ROOT = Path(__file__).parents[2]
_LIMIT_S = 120.0
_ELEMENTS = str(SIZE_BYTES // 4)


class Job:
    """Servers and workers that take a step when they are told. A context manager."""

    def __init__(
        self, servers: Sequence[tuple[str, ...]], workers: Sequence[tuple[str, ...]],
        environs: Sequence[Mapping[str, str]],
    ) -> None:  # fmt: skip
        self._processes = [
            subprocess.Popen(
                [sys.executable, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                cwd=_ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
            )
            for argv, environ in zip((*servers, *workers), environs, strict=True)
        ]  # fmt: skip
        self._workers = self._processes[len(servers) :]

    def __enter__(self) -> Job:
        if any(self._line(worker) != "ready" for worker in self._workers):
            raise RuntimeError("a worker did not become ready")
        return self

    def step(self) -> float:
        """Seconds until the slower worker had the new parameters."""
        for worker in self._workers:
            if worker.stdin is not None:
                worker.stdin.write(b"\n")
                worker.stdin.flush()
        return max(float(self._line(worker)) for worker in self._workers)

    def finish(self) -> None:
        """Raises RuntimeError when a process did not end well, or found wrong parameters."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        codes = [process.wait(_LIMIT_S) for process in self._processes]
        if any(codes):
            raise RuntimeError(f"the processes ended with {codes}")

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _line(self, worker: subprocess.Popen[bytes]) -> str:
        if worker.stdout is None:
            raise RuntimeError("a worker without output")
        if not select.select([worker.stdout], [], [], _LIMIT_S)[0]:
            raise RuntimeError(f"a worker said nothing for {_LIMIT_S:g} s")
        line = worker.stdout.readline().decode().strip()
        if not line:
            raise RuntimeError("a worker ended before its time")
        return line


def ours(transport: str = "") -> Job:
    """Two servers, two workers. `transport` tcp: as between hosts."""
    shared = {
        "PARAMETER_SERVER_ADDRESSES": ",".join(f"127.0.0.1:{port}" for port in free_ports(2)),
        "PARAMETER_SERVER_KEY": secrets.token_hex(32),
        "PARAMETER_SERVER_WORKERS": "2",
        "PARAMETER_SERVER_TRANSPORT": transport,
        "WORLD_SIZE": "2",
    }
    servers = [{**shared, "PARAMETER_SERVER_INDEX": str(number)} for number in range(2)]
    workers = [{**shared, "RANK": str(rank)} for rank in range(2)]
    return Job(
        [("-m", "muster_parameter_server")] * 2,
        [("-m", "benchmarks.parameter_server.ours", _ELEMENTS)] * 2,
        [*servers, *workers],
    )


def peer() -> Job:
    """Ranks 0 and 1 are servers, 2 and 3 workers."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    argv = ("-m", "benchmarks.parameter_server.rpc", _ELEMENTS)
    return Job([argv] * 2, [argv] * 2, [{**shared, "RANK": str(rank)} for rank in range(4)])


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    """The figure of the issue, and what TCP makes of it."""
    with ExitStack() as stack:
        jobs = {"ours": ours(), "tcp": ours("tcp"), PEER: peer()}
        for job in jobs.values():
            stack.enter_context(job)
        began = time.monotonic()
        times = interleaved({name: job.step for name, job in jobs.items()}, rounds)
        took = time.monotonic() - began
        for job in jobs.values():
            job.finish()
    median = {name: times[name].median for name in times}
    detail = (
        f"medians of {rounds} in turns, {took:.0f} s; best: ours {times['ours'].best:.3f}, "
        f"by TCP {times['tcp'].best:.3f}, peer {times[PEER].best:.3f} s"
    )
    what = "PyTorch parameter server: sync push+pull of 64 MiB, 2 workers, 2 servers"
    bound = at_least_times(2, median[PEER], median["ours"])
    yield Row(what, "s", median["ours"], {PEER: median[PEER]}, (bound,), detail)
    yield Row(f"{what}, by TCP", "s", median["tcp"], {PEER: median[PEER]}, ())

"""How long a job goes on after it lost a host: until the last `train` of the others has ended.

All jobs run side by side: they do nothing but wait.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.launcher.jobs import environ
from benchmarks.launcher.software import TORCHRUN
from benchmarks.launcher.trio import HOSTS, trio
from benchmarks.table import Row, under
from muster.types.deadlines import Deadlines

TOLD_S = 37.0
_LIMIT_S = 120.0
_CODE = 102
# the times of torch's own: what survivors of a job under torchrun wait in a collective
_TORCH_TIMEOUTS = """
import json
from torch.distributed import constants as c
times = {"gloo": c.default_pg_timeout, "NCCL": getattr(c, "default_pg_nccl_timeout", None)}
print(json.dumps({name: time.total_seconds() for name, time in times.items() if time}))
"""


class Case(NamedTuple):
    """One way to lose a host, tried once for each entry of `hosts`."""

    what: str
    number: int
    stubborn: bool
    limit_s: float
    hosts: tuple[str, ...]


class Loss(NamedTuple):
    """Seconds from the loss."""

    host: str
    told_s: float
    ended_s: float


SILENT = "a host falls silent until all survivors have ended"
CASES = (
    Case(SILENT, signal.SIGSTOP, False, 40, ("algo-2", "algo-2", "algo-2", "algo-1")),
    Case(f"{SILENT}, ranks ignore SIGTERM", signal.SIGSTOP, True, 60,
         ("algo-2", "algo-2", "algo-1")),
    Case("all processes of a host are killed until all survivors have ended", signal.SIGKILL,
         False, 10, ("algo-2", "algo-2", "algo-2", "algo-1", "algo-1")),
)  # fmt: skip


def rows(folder: Path) -> Iterator[Row]:
    peer = _torch_waits()
    # heartbeats go out every few seconds: losses are spread over the time between two
    gap_s = Deadlines().heartbeat_s / max(len(case.hosts) for case in CASES)
    with ThreadPoolExecutor(sum(len(case.hosts) for case in CASES)) as pool:
        begun = {
            case: [
                pool.submit(_once, folder / f"lost-{kind}-{number}", case, host, number * gap_s)
                for number, host in enumerate(case.hosts)
            ]
            for kind, case in enumerate(CASES)
        }
        for case, futures in begun.items():
            yield _row(case, [future.result() for future in futures], peer)


def _row(case: Case, losses: list[Loss], peer: str) -> Row:
    ended = max(loss.ended_s for loss in losses)
    told = max(loss.told_s for loss in losses)
    each = ", ".join(f"{loss.host} {loss.ended_s:.1f}" for loss in losses)
    detail = (
        f"worst of {len(losses)} with the default time limits, the host and seconds: {each}; "
        f"ranks told after {told:.1f} s at most"
    )
    if case.number == signal.SIGSTOP:
        detail += "; the peer: torch's default timeout of a collective, not waited for"
    peers = {TORCHRUN: peer} if case.number == signal.SIGSTOP else {}
    bounds = (under(ended, case.limit_s, "s"), under(told, TOLD_S, "s", "ranks told"))
    return Row(case.what, "s", ended, peers, bounds, detail)


def _once(folder: Path, case: Case, host: str, delay_s: float) -> Loss:
    """Raises RuntimeError when the survivors do not end with the code for a lost host."""
    others = [name for name in HOSTS if name != host]
    with trio(folder, case.stubborn) as job:
        time.sleep(delay_s)
        began_s = job.strike(host, case.number)
        ended_s = max(job.ended_s(other, _LIMIT_S) for other in others)
        told_s = max(job.told_s(other) for other in others)
        codes = {other: job.cluster.result(other).code for other in others}
    if set(codes.values()) != {_CODE}:
        raise RuntimeError(f"{case.what}: the survivors ended with {codes}")
    return Loss(host, told_s - began_s, ended_s - began_s)


def _torch_waits() -> str:
    """What torch says of itself; nothing of it is run."""
    python = Path(sys.prefix) / "bin" / "python"
    done = subprocess.run(
        [str(python), "-c", _TORCH_TIMEOUTS], env=environ(python.parent),
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return ", ".join(f"{s:g} s ({name})" for name, s in json.loads(done.stdout).items())

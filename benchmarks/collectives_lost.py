"""Rows of a lost rank: from SIGKILL to the exception on the last survivor, ours and gloo's."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator

from benchmarks.table import Row, under
from tests.support import ranks

RANKS, VICTIM = 3, 1
LIMIT_S = 2.0
GIVE_UP_S = 30.0
WAITING, INSIDE = "waiting", "inside"


def rows(rounds: int) -> Iterator[Row]:
    """Survivors that wait for the dead rank, and survivors in the middle of a large sum with it."""
    for state, words in ((WAITING, "while all others wait"), (INSIDE, "inside a 64 MiB sum")):
        times: dict[str, list[float]] = {"muster": [], "gloo": []}
        for _ in range(rounds):
            for backend, found in times.items():
                found.append(_once(backend, state))
        ours, gloo = times["muster"], times["gloo"]
        yield Row(
            f"SIGKILL of a rank {words} until the last survivor's exception", "s", max(ours),
            {"gloo": max(gloo)}, (under(max(ours), LIMIT_S, "s", "worst"),),
            f"worst of {rounds} jobs in turns; ours "
            f"{', '.join(f'{each:.2f}' for each in ours)}; gloo "
            f"{', '.join(f'{each:.2f}' for each in gloo)}; gloo names no rank",
        )  # fmt: skip


def _once(backend: str, state: str) -> float:
    """Seconds. Raises RuntimeError where a survivor was told nothing, or not the name."""
    with tempfile.TemporaryDirectory(prefix="mc-bench-") as folder:
        argv = ["-m", "benchmarks.collectives_lost_rank", backend, state, folder]
        with ranks.started(RANKS, argv) as job:
            job.wait_for("busy", timeout_s=120)
            time.sleep(0.3)  # so that the survivors sleep in the call, as in a real hang
            began = time.monotonic()
            job.send(VICTIM, signal.SIGKILL)
            job.wait(GIVE_UP_S)
            text = ranks.shown([ranks.Ended(0, job.output(rank)) for rank in range(RANKS)])
    told = []
    for rank in set(range(RANKS)) - {VICTIM}:
        line = job_line(text, rank)
        if backend == "muster" and line["ranks"] != [VICTIM]:
            raise RuntimeError(f"rank {rank} was not told who died: {line}")
        told.append(float(str(line["failed_at"])) - began)
    return max(told)


def job_line(text: str, rank: int) -> dict[str, object]:
    """What a rank has said of its exception. Raises RuntimeError where it has not."""
    for line in text.splitlines():
        if line.startswith("{") and json.loads(line)["rank"] == rank:
            found: dict[str, object] = json.loads(line)
            return found
    raise RuntimeError(f"rank {rank} has not been told within {GIVE_UP_S:g} s:\n{text[-2000:]}")

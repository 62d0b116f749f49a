"""Rows of a lost rank: from SIGKILL to the exception on the last survivor, ours and gloo's. And of
a group that a rank aborts, which gloo tells nobody."""

from __future__ import annotations

import json
import signal
import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks.collectives.links import LinksError, links, placed, why_not
from benchmarks.table import Row, under
from tests.collectives.support import ranks

RANKS, VICTIM = 3, 1
NODES, LOCAL = 2, 2
# of two nodes: one beside rank 0, the leader of the other node and the rank beside it
VICTIMS = (1, 2, 3)
LIMIT_S, HEARD_S = 2.0, 0.5
GIVE_UP_S = 30.0
WAITING, INSIDE, IDLE = "waiting", "inside", "idle"
STATES = ((WAITING, "while all others wait"), (INSIDE, "inside a 64 MiB sum"))
Environs = Sequence[dict[str, str]]


def rows(rounds: int) -> Iterator[Row]:
    """Survivors that wait for the dead rank, and survivors in the middle of a large sum with it."""
    for state, words in STATES:
        yield _row(f"SIGKILL of a rank {words}", state, [{}] * RANKS, [VICTIM] * rounds)


def between_nodes(rounds: int) -> Iterator[Row]:
    """The same over the network of two namespaces, where nobody sees the other node's processes."""
    what = f"SIGKILL of a rank of {NODES} nodes x {LOCAL}"
    reason = why_not()
    try:
        if reason:
            raise LinksError(reason)
        with links(NODES):
            environs = placed(NODES, LOCAL)
            victims = [VICTIMS[number % len(VICTIMS)] for number in range(max(3, rounds))]
            for state, words in STATES:
                yield _row(f"{what} {words}", state, environs, victims)
            yield _heard([_once("muster", IDLE, victim, environs) for victim in victims])
    except LinksError as error:
        yield Row(what, "s", None, {}, (), str(error))


def _row(what: str, state: str, environs: Environs, victims: Sequence[int]) -> Row:
    """A job of ours and one of gloo's for each victim, in turns."""
    times: dict[str, list[float]] = {"muster": [], "gloo": []}
    for victim in victims:
        for backend, found in times.items():
            found.append(_once(backend, state, victim, environs))
    ours, gloo = times["muster"], times["gloo"]
    return Row(
        f"{what} until the last survivor's exception", "s", max(ours), {"gloo": max(gloo)},
        (under(max(ours), LIMIT_S, "s", "worst"),),
        f"worst of {len(ours)} jobs in turns, median {statistics.median(ours):.2f} (gloo "
        f"{statistics.median(gloo):.2f}); ours {', '.join(f'{each:.2f}' for each in ours)}; gloo "
        f"{', '.join(f'{each:.2f}' for each in gloo)}; gloo names no rank",
    )  # fmt: skip


def _heard(times: Sequence[float]) -> Row:
    return Row(
        f"abort by a rank of {NODES} nodes x {LOCAL} in no call until the last rank's exception",
        "s", max(times), {}, (under(max(times), HEARD_S, "s", "worst"),),
        f"worst of {len(times)} jobs: {', '.join(f'{each:.2f}' for each in times)}; the aborting "
        "rank keeps its group open; gloo has no such abort",
    )  # fmt: skip


def _once(backend: str, state: str, victim: int, environs: Environs) -> float:
    """Seconds. Raises RuntimeError where a survivor was told nothing, or not the name."""
    size = len(environs)
    argv = ["-m", "benchmarks.collectives.lost_rank", backend, state, str(victim)]
    with ranks.started(size, argv, each_env=environs) as job:
        job.wait_for("busy", timeout_s=120)
        time.sleep(0.3)  # so that the survivors sleep in the call, as in a real hang
        began = time.monotonic()
        job.send(victim, signal.SIGUSR1 if state == IDLE else signal.SIGKILL)
        job.wait(GIVE_UP_S)
        text = ranks.shown([ranks.Ended(0, job.output(rank)) for rank in range(size)])
    told = []
    for rank in set(range(size)) - {victim}:
        line = job_line(text, rank)
        if backend == "muster" and state != IDLE and line["ranks"] != [victim]:
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

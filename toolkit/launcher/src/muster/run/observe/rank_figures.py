"""What each rank of this host has used and done, in a few numbers, for the digest of the host."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping

from muster.run.channel.digest import RankFigures
from muster.run.observe.sampler import Sample

LAST_BYTES = 64 << 10  # of a file of metrics: its last lines are enough for the rate
RATE_LINES = 64


def digest_of(
    ranks: Collection[int],
    samples: Mapping[int, Sample],
    peak_bytes: Mapping[int, int],
    said: Mapping[int, tuple[int | None, float | None]],
    waits_s: Mapping[int, float],
    metrics: str,
) -> tuple[RankFigures, ...]:
    """The figures of these ranks, in their order.

    `samples`, `peak_bytes`: of the sampler; `said`: rank -> step and rate, of agents, which win
    over the files in the folder `metrics` ("" for none); `waits_s`: in collectives. Reads at most
    LAST_BYTES a rank.
    """
    return tuple(
        _figures(rank, samples.get(rank), peak_bytes.get(rank), steps, waits_s.get(rank))
        for rank in ranks
        for steps in (_best(said.get(rank), metrics, rank),)
    )


def _figures(
    rank: int,
    sample: Sample | None,
    peak: int | None,
    steps: tuple[int | None, float | None],
    waits_s: float | None,
) -> RankFigures:
    cpu_s = sample.cpu_s if sample is not None else None
    return RankFigures(rank, cpu_s, peak, *steps, waits_s)


def _best(
    said: tuple[int | None, float | None] | None, metrics: str, rank: int
) -> tuple[int | None, float | None]:
    if said is not None and said[0] is not None:
        return said
    return steps_in(os.path.join(metrics, f"rank-{rank}.jsonl")) if metrics else (None, None)


def steps_in(path: str) -> tuple[int | None, float | None]:
    """The last step that a file of metrics has, and steps per second over its last lines. Lines
    that cannot be read, such as one that was cut, are left out."""
    points = []
    for line in _last_lines(path)[-RATE_LINES:]:
        try:
            entry = json.loads(line)
            time_s, step = float(entry["time"]), entry["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(step, int):
            points.append((time_s, step))
    if not points:
        return None, None
    (time_0, step_0), (time_1, step_1) = points[0], points[-1]
    if time_1 <= time_0 or step_1 < step_0:
        return step_1, None
    return step_1, round((step_1 - step_0) / (time_1 - time_0), 4)


def _last_lines(path: str) -> list[bytes]:
    """Follows no link, and opens nothing but a file: the folder is one that scripts write to."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            return file.read(LAST_BYTES).splitlines()
    except (OSError, ValueError):
        return []

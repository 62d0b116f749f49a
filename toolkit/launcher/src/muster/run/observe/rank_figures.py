"""What each rank of this host has used and done, in a few numbers, for the digest of the host."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from muster.run.base.loop import Loop
from muster.run.channel.digest import HostDigest, RankFigures, is_number
from muster.run.observe.sampler import Sampler
from muster.types.files import open_plain

READ_S = 0.3  # later the end of the job is not held up
LAST_BYTES = 64 << 10  # of a file of metrics: its last lines are enough for the rate
RATE_LINES = 64


def digest_of(
    ranks: Sequence[int],
    sampler: Sampler,
    metrics: str = "",
    waits_s: Mapping[int, float] = MappingProxyType({}),
    since_s: float = 0.0,
) -> HostDigest:
    """The figures of these ranks, in their order: what the sampler saw, `waits_s` in collectives,
    and the steps that they left in the folder `metrics` ("" for none) since then, of which it reads
    at most LAST_BYTES a rank."""
    found = []
    for rank in ranks:
        sample = sampler.last.get(rank)
        cpu_s = sample.cpu_s if sample is not None else None
        path = os.path.join(metrics, f"rank-{rank}.jsonl")
        steps, rate = steps_in(path, since_s) if metrics else (None, None)
        peak = sampler.peak_bytes.get(rank)
        found.append(RankFigures(rank, cpu_s, peak, steps, rate, waits_s.get(rank)))
    return HostDigest(tuple(found))


def in_time(
    loop: Loop,
    at_once: Callable[[], HostDigest],
    read: Callable[[], HostDigest],
    done: Callable[[HostDigest], None],
) -> None:
    """Calls `done` once on the loop, within READ_S: with what `read` gives, which may block and has
    a thread of its own, else with what is known `at_once`."""
    waiting = [done]

    def end(made: Callable[[], HostDigest]) -> None:
        if waiting:
            waiting.pop()(made())

    def run() -> None:
        try:
            digest = read()
        except Exception:  # a defect of muster too: figures are not worth the job
            return
        loop.post(lambda: end(lambda: digest))

    try:
        threading.Thread(target=run, name="figures", daemon=True).start()
    except RuntimeError:  # the limit of processes counts threads too
        end(at_once)
    loop.after(READ_S, lambda: end(at_once))


def steps_in(path: str, since_s: float = 0.0) -> tuple[int | None, float | None]:
    """The last step that a file of metrics has, and steps per second over its last lines, since
    they were last counted anew. Lines that cannot be read, such as one that was cut, are left out,
    and those from before `since_s`, seconds since the epoch: of an earlier start of the
    container."""
    points: list[tuple[float, int]] = []
    for line in _last_lines(path)[-RATE_LINES:]:
        try:
            entry = json.loads(line)
            time_s, step = float(entry["time"]), entry["step"]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
        if math.isfinite(time_s) and time_s >= since_s and is_number(step, int):
            # scripts write here, too
            if points and step < points[-1][1]:
                points.clear()  # it counts anew
            points.append((time_s, step))
    if not points:
        return None, None
    (time_0, step_0), (time_1, step_1) = points[0], points[-1]
    if time_1 <= time_0:
        return step_1, None
    return step_1, round((step_1 - step_0) / (time_1 - time_0), 4)


def _last_lines(path: str) -> list[bytes]:
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            return file.read(LAST_BYTES).splitlines()
    except (OSError, ValueError):
        return []

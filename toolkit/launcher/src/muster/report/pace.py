"""How fast one run went once it was warm, and what its ranks spent a step on. Pure.

Warm-up: of each rank's progress the first tenth, at least up to its second entry, is left out; of a
rank that reported only two times nothing is, and the pace says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from muster.report.cells import mapping, number, sequence, whole
from muster.report.figures import outcome_of_events
from muster.report.values import (
    HostRecord,
    MetricSeries,
    ProgressPoint,
    RankCalls,
    RankMetrics,
    RunRecord,
)
from muster.report.verdict import STARTS
from muster.types.values import NamedTuple

WARM_UP = 0.1  # of the steps of a rank that it reported
WINDOWS = 8
DATA = "data_s"  # a metric: seconds so far in which the rank waited for data
SAME_BATCH = 0.02


class Pace(NamedTuple):
    """One run. `why_not`: why it has no rate, "" where it has one.

    `step_rate`: steps per second of the slowest rank; `sample_rate`: samples per second of all
    ranks, None where one does not report them. `low`, `high`: of the same over windows of the run,
    of samples where they are known. `batch`: samples of a rank per step, where it is the same on
    all. `wait_s`, `talk_s`, `data_s`: seconds of a step, mean over the ranks, in which a rank
    waited for others, was in a collective otherwise, waited for data; None where not known.
    `start_s`: until all ranks ran. `one_machine`: a run of `muster local`.
    """

    name: str
    program: str
    option: str
    backend: str
    ranks: int
    hosts: int
    why_not: str
    step_rate: float
    sample_rate: float | None
    low: float
    high: float
    warm: bool
    batch: float | None
    wait_s: float | None
    talk_s: float | None
    data_s: float | None
    start_s: float | None
    seconds: float | None
    one_machine: bool

    @property
    def rate(self) -> float:
        """Of samples, else of steps."""
        return self.step_rate if self.sample_rate is None else self.sample_rate


def pace_of(record: RunRecord) -> Pace:
    """The pace of a run, or why it has none. Of a run with fewer ranks that reported than it had
    there is none: the samples of the others would be missing from the rate."""
    summary = {**record.summary, **outcome_of_events(record)}
    world = whole(mapping(summary.get("plan")).get("world_size"))
    reported = {rank: one for host in record.hosts for rank, one in host.metrics.items()}
    listed = len(sequence(summary.get("ranks")))
    ranks = world or listed or len(reported)
    steady = [found for one in reported.values() if (found := _steady(one.points))]
    why_not = _unfit(record, mapping(summary.get("outcome")), ranks, len(steady))
    windows = [] if why_not else list(_windows([points for points, _ in steady]))
    rates = [_slope(points) for points, _ in steady] or [(0.0, None)]
    with_samples = all(samples is not None for _, samples in rates)
    whole_rate = _total(rates)
    spread = [_total(one)[with_samples] or 0.0 for one in windows] or [0.0]
    batches = [samples / step for step, samples in rates if samples is not None and step]
    backends = [name for host in record.hosts for name in host.backends]
    local = mapping(summary.get("local"))
    option = str(summary.get("option") or "")
    return Pace(
        name=record.name,
        program=str(summary.get("program") or ""),
        option=option,
        backend=", ".join(dict.fromkeys(backends)),
        ranks=ranks,
        hosts=len(sequence(summary.get("hosts"))) or len(record.hosts),
        why_not=why_not,
        step_rate=whole_rate[0] or 0.0,
        sample_rate=whole_rate[1],
        low=min(spread),
        high=max(spread),
        warm=all(warm for _, warm in steady),
        batch=fmean(batches) if with_samples and alike(batches) else None,
        **_costs(record.hosts, ranks, dict(_digests(summary))),
        start_s=_start_s(mapping(summary.get("phases"))),
        seconds=number(summary.get("seconds")) or number(local.get("seconds")),
        one_machine=bool(local),
    )


def alike(values: Sequence[float]) -> bool:
    """Whether there are any, and all are the same but for rounding."""
    return bool(values) and max(values) - min(values) <= SAME_BATCH * max(values)


def _unfit(record: RunRecord, outcome: Mapping[str, object], ranks: int, steady: int) -> str:
    """Why a run has no rate that can be compared, "" where it has one. A run that was stopped
    is none: what stopped it may have slowed it before."""
    result = str(outcome.get("result") or "")
    if record.live:
        return "it still runs"
    if result != "Succeeded":
        headline = str(outcome.get("headline") or "how it ended is not recorded")
        return f"it {result.lower()}: {headline}" if result else headline
    if not steady:
        return "it has no steps"
    if steady < ranks:
        return f"only {steady} of its {ranks} ranks reported steps"
    return ""


def _steady(points: Sequence[ProgressPoint]) -> tuple[Sequence[ProgressPoint], bool] | None:
    """What is left without the warm-up, and whether there was enough to leave any out. None where
    nothing went on."""
    rising = [one for a, one in zip((None, *points), points, strict=False)
              if a is None or (one.step > a.step and one.time_s > a.time_s)]  # fmt: skip
    if len(rising) < 2:
        return None
    if len(rising) == 2:
        return rising, False
    until = rising[0].step + WARM_UP * (rising[-1].step - rising[0].step)
    first = next(at for at, one in enumerate(rising) if at and one.step >= until)
    return rising[min(first, len(rising) - 2) :], True


def _slope(points: Sequence[ProgressPoint]) -> tuple[float, float | None]:
    """Steps and samples per second."""
    a, b = points[0], points[-1]
    took_s = b.time_s - a.time_s
    samples = None if a.samples is None or b.samples is None else (b.samples - a.samples) / took_s
    return (b.step - a.step) / took_s, samples if samples is None or samples > 0 else None


def _total(rates: Sequence[tuple[float, float | None]]) -> tuple[float | None, float | None]:
    """Of all ranks: the steps of the slowest, the sum of their samples."""
    samples = [one for _, one in rates if one is not None]
    total = sum(samples) if len(samples) == len(rates) else None
    return min((steps for steps, _ in rates), default=None), total


def _windows(
    ranks: Sequence[Sequence[ProgressPoint]],
) -> Iterable[Sequence[tuple[float, float | None]]]:
    """The rates of all ranks in each of up to WINDOWS parts of the run."""
    count = min(WINDOWS, *(len(points) - 1 for points in ranks))
    for at in range(count):
        yield [_slope(points[(len(points) - 1) * at // count :
                             (len(points) - 1) * (at + 1) // count + 1])
               for points in ranks]  # fmt: skip


def _digests(summary: Mapping[str, object]) -> Iterable[tuple[int | None, float]]:
    """What hosts told the leader of each rank's waiting; worth less than their own records."""
    for one in map(mapping, sequence(summary.get("ranks"))):
        waited = number(mapping(one.get("figures")).get("waits_s"))
        if waited is not None:
            yield whole(one.get("rank")), waited


def _costs(
    hosts: Sequence[HostRecord], ranks: int, told: Mapping[int | None, float]
) -> dict[str, float | None]:
    """Means over the ranks, so that shares of them are shares of all the ranks' time. A straggler
    waits for nobody: its own delay is no waiting, but what the records do not explain."""
    waits: list[float] = []
    talks: list[float] = []
    data: list[float] = []
    for host in hosts:
        for rank, one in host.metrics.items():
            steps = _steps(one)
            if steps <= 0:
                continue
            calls = host.calls.get(rank)
            if calls is None and rank in told:
                calls = RankCalls(told[rank], None)
            if calls is not None:
                waits.append(calls.wait_s / steps)
                if calls.time_s is not None:
                    talks.append(max(0.0, calls.time_s - calls.wait_s) / steps)
            waited = _sum_so_far(one.series.get(DATA))
            if waited is not None:
                data.append(waited / steps)
    alone = ranks == 1  # waits for nobody, whatever the record says
    return {
        "wait_s": 0.0 if alone else _mean(waits, ranks),
        "talk_s": 0.0 if alone else _mean(talks, ranks),
        "data_s": _mean(data, ranks),
    }


def _steps(one: RankMetrics) -> float:
    """How many the rank made in this run, which may go on where another one ended; 0 for none."""
    last = one.last_step or 0.0
    if len(one.points) < 2 or one.lines < 2:
        return last
    # the first entry, too, stands at the end of a step, or of as many as between two entries
    made = (last - one.points[0].step) * one.lines / (one.lines - 1)
    return made if made > 0 else last


def _mean(values: Sequence[float], ranks: int) -> float | None:
    """None unless all ranks say it."""
    return fmean(values) if len(values) == ranks else None


def _sum_so_far(series: MetricSeries | None) -> float | None:
    """The last value, where it never fell: else it is no sum."""
    if series is None or series.last is None:
        return None
    falls = any(b.low < a.high for a, b in zip(series.buckets, series.buckets[1:], strict=False))
    return None if falls or len(series.buckets) < 2 else series.last


def _start_s(phases: Mapping[str, object]) -> float | None:
    """Of the slowest host."""
    took = [sum(number(mapping(one).get(name)) or 0.0 for name in STARTS)
            for one in phases.values()]  # fmt: skip
    return max(took, default=None)

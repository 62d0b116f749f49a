"""What a record says, as values. Every text in them is printable and without secrets."""

from __future__ import annotations

from collections.abc import Mapping

from muster.types.values import NamedTuple


class RecordEvent(NamedTuple):
    """One line of events.jsonl. `t`: seconds of the host's monotonic clock; `time`: since 1970."""

    t: float
    time: float
    kind: str
    rank: int | None
    fields: Mapping[str, object]


class SamplePoint(NamedTuple):
    """One look at one rank; sums are since its start. None where the record has none."""

    t: float
    cpu_s: float | None = None
    memory_bytes: float | None = None
    run_delay_s: float | None = None
    throttled_s: float | None = None
    silent_s: float | None = None
    state: str = ""


class Bucket(NamedTuple):
    """Neighbouring values of one metric of one rank. `step`: of the first of them."""

    step: float
    low: float
    high: float


class MetricSeries(NamedTuple):
    """One metric of one rank. `odd_step`: the first at which it was NaN or infinite."""

    buckets: tuple[Bucket, ...]
    last: float | None
    odd_step: float | None


class ProgressPoint(NamedTuple):
    """How far a rank was. `time_s`: since 1970 by its host; `samples`: None where not reported."""

    time_s: float
    step: float
    samples: float | None


class RankMetrics(NamedTuple):
    """What one rank reported. `rate`: steps per second from its first line to its last;
    `sample_rate`: samples. `left_out`: metrics beyond those that are kept. `points`: on the
    way, the first and the last among them."""

    lines: int
    last_step: float | None
    rate: float | None
    sample_rate: float | None
    series: Mapping[str, MetricSeries]
    left_out: int = 0
    points: tuple[ProgressPoint, ...] = ()


class RankCalls(NamedTuple):
    """A rank in muster's collectives, all of its run: seconds in calls, and of these waiting for
    other ranks. `time_s` None where the summary does not say it."""

    wait_s: float
    time_s: float | None


class HostRecord(NamedTuple):
    """One host's part of a record. `calls`: by rank; `backends`: what carried them, in words;
    `tails`: rank -> the last lines of its log; `stacks`: file -> its beginning."""

    name: str
    events: tuple[RecordEvent, ...] = ()
    samples: Mapping[int, tuple[SamplePoint, ...]] = {}
    metrics: Mapping[int, RankMetrics] = {}
    calls: Mapping[int, RankCalls] = {}
    backends: tuple[str, ...] = ()
    tails: Mapping[int, str] = {}
    stacks: Mapping[str, str] = {}


class RunRecord(NamedTuple):
    """A run. `summary`: the leader's, {} where there is none; `command`: the words after `muster
    local`; `missing`: what the record lacks, in sentences; `live`: it has not ended yet;
    `read_at`: when it was read, seconds since 1970."""

    name: str
    summary: Mapping[str, object]
    command: tuple[str, ...]
    hosts: tuple[HostRecord, ...]
    missing: tuple[str, ...]
    live: bool = False
    read_at: float = 0.0


class PhaseSpan(NamedTuple):
    """A host is in a phase, in seconds since the beginning; `ends_s` None: to the end."""

    host: str
    name: str
    begins_s: float
    ends_s: float | None

    @property
    def took_s(self) -> float:
        """0 of one that has not ended."""
        return (self.ends_s or self.begins_s) - self.begins_s


class RankRow(NamedTuple):
    """One rank; None and "" where the record does not say. `good`: it exited 0, or was stopped
    because another failed or had ended. `cpus`: processors used on average. `run_delay_s`: it
    could run and had no processor. `waits_s`: in collectives, for other ranks."""

    rank: int
    host: str
    end: str
    good: bool | None
    begins_s: float | None
    ends_s: float | None
    seconds: float | None
    cpus: float | None
    peak_memory_bytes: float | None
    run_delay_s: float | None
    throttled_s: float | None
    steps: float | None
    rate: float | None
    sample_rate: float | None
    waits_s: float | None

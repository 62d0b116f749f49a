"""The figures of a run: what the page shows and `--json` prints. Pure: a record in, values out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from muster.report import charts
from muster.report.align import Aligned, align, guesses, leader_of
from muster.report.cells import mapping, number, sequence, whole
from muster.report.charts import Chart
from muster.report.metrics import MOST_NAMES
from muster.report.values import (
    HostRecord,
    PhaseSpan,
    RankMetrics,
    RankRow,
    RecordEvent,
    RunRecord,
    SamplePoint,
)
from muster.report.verdict import FirstFailure, RunVerdict, VerdictInput, judge
from muster.types.names import counted, listed
from muster.types.outcome import ended
from muster.types.plain import shortened
from muster.types.values import NamedTuple

SCHEMA = 1
MOST_MOMENTS = 200
MOST_PHASES = 64  # of one host
MOST_METRICS = 64
MOST_FACTS = 24
MOST_TEXT = 600  # characters of one fact or moment


class Moment(NamedTuple):
    """Something that happened at one time: failure, stall, stacks, missing, fault."""

    at_s: float
    host: str
    rank: int | None
    kind: str
    text: str


class Straggler(NamedTuple):
    """A rank that held up the others, as it was last found. `times`: how often it was."""

    rank: int
    host: str
    times: int
    own_s: float | None
    own_p95_s: float | None
    factor: float | None
    cause: str


class MetricEnd(NamedTuple):
    """The last value of a metric, over its ranks."""

    name: str
    ranks: int
    lowest: float | None
    highest: float | None
    odd_step: float | None


class RunFigures(NamedTuple):
    """All that is known of one run. `seconds`: of the whole."""

    schema: int
    name: str
    verdict: RunVerdict
    failure: FirstFailure | None
    facts: Mapping[str, str]
    seconds: float | None
    phases: tuple[PhaseSpan, ...]
    ranks: tuple[RankRow, ...]
    moments: tuple[Moment, ...]
    metrics: tuple[MetricEnd, ...]
    stragglers: tuple[Straggler, ...]
    charts: tuple[Chart, ...]
    tails: Mapping[str, str]
    stacks: Mapping[str, str]
    missing: tuple[str, ...]


def figures_of(record: RunRecord) -> RunFigures:
    """The figures of a run, as far as its record has them; what it lacks is in `missing`."""
    summary = {**record.summary, **outcome_of_events(record)}
    aligned = align(record.hosts, leader_of(summary))
    phases = tuple(phase_spans(record, aligned))
    ranks = _ranks(record, aligned)
    moments = tuple(sorted(_moments(record, aligned)))[:MOST_MOMENTS]
    seconds = number(mapping(summary.get("local")).get("seconds")) or number(summary.get("seconds"))
    if seconds is None:
        seconds = last_time(record, aligned)
    reported = {rank: one for host in record.hosts for rank, one in host.metrics.items()}
    metrics = tuple(_metrics(reported))
    facts = VerdictInput(
        summary=summary,
        live=record.live,
        seconds=seconds,
        hosts=len(record.hosts) or len(sequence(summary.get("hosts"))),
        ranks=ranks,
        phases=phases,
        stalls=tuple(one.text for one in moments if one.kind == "stall"),
        odd=tuple((one.name, one.odd_step) for one in metrics if one.odd_step is not None),
    )
    verdict, failure = judge(facts)
    return RunFigures(
        schema=SCHEMA,
        name=record.name,
        verdict=verdict,
        failure=failure,
        facts=dict(_facts(record, len(ranks))),
        seconds=seconds,
        phases=phases,
        ranks=ranks,
        moments=moments,
        metrics=metrics,
        stragglers=_stragglers(record, {one.rank: one.host for one in ranks}),
        charts=(*charts.of_metrics(reported), *charts.of_samples(record.hosts, aligned)),
        tails={f"rank {rank} on {host.name}": text
               for host in record.hosts for rank, text in sorted(host.tails.items())},
        stacks={f"{host.name}: {file}": text
                for host in record.hosts for file, text in host.stacks.items()},
        missing=(*record.missing, *guesses(aligned), *left_out(record), *_no_room(record, reported),
                 *_no_samples(record, seconds)),
    )  # fmt: skip


def outcome_of_events(record: RunRecord) -> Mapping[str, object]:
    """What any host recorded of the end, where the leader left no summary of its own."""
    if record.summary.get("outcome") and record.summary.get("complete") is not False:
        return {}
    ends = [event for host in record.hosts for event in host.events if event.kind == "outcome"]
    if not ends:
        return {}
    # a rank that lost another failed because of it, whichever was recorded first
    failed = [
        ((event.fields.get("peer_lost") is True, event.time), host.name, event)
        for host in record.hosts
        for event in host.events
        if event.kind == "failure"
    ]
    outcome = dict(ends[-1].fields)
    if failed:
        _, name, event = min(failed, key=lambda one: one[0])
        outcome["first"] = {**event.fields, "host": name, "rank": event.rank}
    return {"outcome": outcome, "complete": True}


def left_out(record: RunRecord) -> Iterator[str]:
    """What full records do not have, in sentences."""
    for host in record.hosts:
        for event in host.events:
            if event.kind == "left_out":
                samples, others = (whole(event.fields.get(name)) or 0
                                   for name in ("samples", "events"))  # fmt: skip
                yield (f"{host.name}: its record was full: {samples:,} samples and {others:,} "
                       "other events are not in it")  # fmt: skip


def _no_room(record: RunRecord, reported: Mapping[int, RankMetrics]) -> Iterator[str]:
    """Metrics and charts that were left out, so that nobody takes the page for all."""
    for host in record.hosts:
        rank, beyond = max(((rank, one.left_out) for rank, one in host.metrics.items()),
                           key=lambda one: one[1], default=(0, 0))  # fmt: skip
        if beyond:
            room = f"a page has room for {MOST_NAMES}"
            yield f"{host.name}: {counted(beyond, 'metric')} of rank {rank}: {room}"
    if undrawn := charts.changing(reported)[charts.MOST_CHARTS :]:
        yield f"charts of {listed(undrawn, 5)}: a page has room for {charts.MOST_CHARTS}"


def _no_samples(record: RunRecord, seconds: float | None) -> Iterator[str]:
    """Said where a run was long enough for samples and has none."""
    if record.hosts and not any(one.samples for one in record.hosts) and (seconds or 0.0) > 30:
        yield "no samples of processor and memory are in the record"


def as_json(value: Any) -> Any:
    """The figures as JSON values: named tuples become objects."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: as_json(one) for name, one in zip(value._fields, value, strict=True)}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): as_json(one) for name, one in value.items()}
    return value


def _facts(record: RunRecord, ranks: int) -> Iterator[tuple[str, str]]:
    summary = record.summary
    plan = mapping(summary.get("plan"))
    hosts = len(sequence(summary.get("hosts"))) or len(record.hosts)
    known = {
        "run": record.name,
        "program": summary.get("program"),
        "command": " ".join(record.command) if record.command else None,
        "distribution": summary.get("option"),
        "hosts": hosts,
        "ranks": plan.get("world_size") or ranks or None,
        "isolation": mapping(summary.get("local")).get("isolation"),
        "muster": summary.get("toolkit"),
    }
    for name, value in mapping(summary.get("platform")).items():
        known.setdefault(name.replace("_", " "), value)
    for name, found in list(known.items())[:MOST_FACTS]:
        if isinstance(found, str | int | float) and found != "":
            yield name, shortened(str(found), MOST_TEXT)


def phase_spans(record: RunRecord, aligned: Aligned) -> Iterator[PhaseSpan]:
    """Of every host, in the order of the record."""
    said = mapping(record.summary.get("phases"))
    for host in record.hosts:
        changes = [(aligned.at(host.name, event.t), str(event.fields.get("name", "?")))
                   for event in host.events if event.kind == "phase"]  # fmt: skip
        for at, (begins, name) in enumerate(changes[:MOST_PHASES]):
            if name in ("done", "ended"):
                continue
            ends = changes[at + 1][0] if at + 1 < len(changes) else None
            yield PhaseSpan(host.name, name, _short(begins), None if ends is None else _short(ends))
    for name in [str(one) for one in said if str(one) not in {h.name for h in record.hosts}]:
        at_s = 0.0
        for phase, took in mapping(said[name]).items():
            took_s = number(took) or 0.0
            yield PhaseSpan(name, str(phase), _short(at_s), _short(at_s + took_s))
            at_s += took_s


def _ranks(record: RunRecord, aligned: Aligned) -> tuple[RankRow, ...]:
    over = {number: one for one in _mappings(record.summary.get("ranks"))
             if (number := whole(one.get("rank"))) is not None}  # fmt: skip
    hosts = {rank: host for host in record.hosts for rank in _ranks_of(host)}
    found = []
    for rank in sorted({*over, *hosts}):
        said, host = over.get(rank, {}), hosts.get(rank)
        name = str(said.get("host") or (host.name if host else "?"))
        found.append(_rank(rank, name, said, host, aligned))
    return tuple(found)


def _rank(
    rank: int, name: str, said: Mapping[str, object], host: HostRecord | None, aligned: Aligned
) -> RankRow:
    begun = _event(host, "rank_started", rank)
    over = _event(host, "rank_ended", rank)
    samples = host.samples.get(rank, ()) if host else ()
    metrics = host.metrics.get(rank) if host else None
    figures = mapping(said.get("figures"))
    status = whole(said.get("status"))
    stopped = bool(said.get("stopped"))
    if status is None and over is not None:
        status, stopped = whole(over.fields.get("status")), bool(over.fields.get("stopped"))
    own = host.name if host else name  # that of its folder, whatever the summary calls it
    begins = None if begun is None else _short(aligned.at(own, begun.t))
    ends = None if over is None else _short(aligned.at(own, over.t))
    seconds = number(said.get("seconds"))
    if seconds is None and begins is not None and ends is not None:
        seconds = ends - begins
    cpu_s = number(figures.get("cpu_s")) or _last(samples, "cpu_s")
    over_s = seconds or (samples[-1].t - begun.t if samples and begun else None)
    return RankRow(
        rank=rank,
        host=name,
        end="" if status is None else ended(status) + ", stopped" * stopped,
        good=None if status is None else status == 0 or stopped,
        begins_s=begins,
        ends_s=ends,
        seconds=None if seconds is None else _short(seconds),
        cpus=cpu_s / over_s if cpu_s is not None and over_s else None,
        peak_memory_bytes=number(figures.get("peak_memory_bytes"))
        or max((one.memory_bytes or 0.0 for one in samples), default=0.0)
        or None,
        run_delay_s=_last(samples, "run_delay_s"),
        throttled_s=_last(samples, "throttled_s"),
        steps=metrics.last_step if metrics else number(figures.get("steps")),
        rate=metrics.rate if metrics and metrics.rate else number(figures.get("rate")),
        sample_rate=metrics.sample_rate if metrics else None,
        waits_s=_waits(host, rank, figures),
    )


def _waits(host: HostRecord | None, rank: int, figures: Mapping[str, object]) -> float | None:
    if host is None:
        return None
    calls = host.calls.get(rank)
    return calls.wait_s if calls else number(figures.get("waits_s"))


def _ranks_of(host: HostRecord) -> set[int]:
    begun = {event.rank for event in host.events if event.kind == "rank_started"}
    return {one for one in begun if one is not None} | {*host.samples, *host.metrics, *host.tails}


def _event(host: HostRecord | None, kind: str, rank: int) -> RecordEvent | None:
    events = host.events if host else ()
    return next((one for one in reversed(events) if one.kind == kind and one.rank == rank), None)


def _last(samples: tuple[SamplePoint, ...], field: str) -> float | None:
    found = (getattr(one, field) for one in reversed(samples))
    return next((one for one in found if one is not None), None)


def _moments(record: RunRecord, aligned: Aligned) -> Iterator[Moment]:
    """What happened and when: failures, standstills, faults, missing hosts, kept stacks."""
    texts = {"stall": "verdict", "failure": "summary", "missing": "text", "stacks": "reason"}
    for host in record.hosts:
        for event in host.events:
            if event.kind in texts or event.kind == "fault":
                text = str(event.fields.get("sentence")
                           or event.fields.get(texts.get(event.kind, "text")) or "")  # fmt: skip
                if event.kind == "failure" and not text:
                    text = ended(whole(event.fields.get("status")) or 0)
                rank = -1 if event.rank is None else event.rank
                text = shortened(text, MOST_TEXT)
                at_s = _short(aligned.at(host.name, event.t))
                yield Moment(at_s, host.name, rank if rank >= 0 else None, event.kind, text)


def _stragglers(record: RunRecord, hosts: Mapping[int, str]) -> tuple[Straggler, ...]:
    """Those that were found most often first."""
    found: dict[int, Straggler] = {}
    for event in (one for host in record.hosts for one in host.events if one.kind == "straggler"):
        if (rank := event.rank) is not None:
            said = event.fields
            found[rank] = Straggler(
                rank,
                hosts.get(rank, "?"),
                1 + (found[rank].times if rank in found else 0),
                number(said.get("own_s")),
                number(said.get("own_p95_s")),
                number(said.get("factor")),
                shortened(str(said.get("cause") or ""), MOST_TEXT),
            )
    return tuple(sorted(found.values(), key=lambda one: (-one.times, one.rank)))


def _metrics(reported: Mapping[int, RankMetrics]) -> Iterator[MetricEnd]:
    for name in charts.names_of(reported)[:MOST_METRICS]:
        series = [one.series[name] for one in reported.values() if name in one.series]
        last = [one.last for one in series if one.last is not None]
        odd = [one.odd_step for one in series if one.odd_step is not None]
        yield MetricEnd(name, len(series), min(last, default=None), max(last, default=None),
                     min(odd, default=None))  # fmt: skip


def last_time(record: RunRecord, aligned: Aligned) -> float | None:
    """How long a run without an end is known to have lasted."""
    if record.live:
        walls = [event.time for host in record.hosts for event in host.events if event.time > 0]
        return _short(max(0.0, record.read_at - min(walls))) if walls else None
    times = [aligned.at(host.name, host.events[-1].t) for host in record.hosts if host.events]
    for host in record.hosts:
        times += [aligned.at(host.name, one[-1].t) for one in host.samples.values()]
    return _short(max(times)) if times else None


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [mapping(one) for one in sequence(value)]


def _short(value: float) -> float:
    return round(value, 3)

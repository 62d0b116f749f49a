"""`muster report --scale`: runs of one program in several sizes -> how well it scales, and what the
gap to the ideal is made of as far as their records say it. Pure. Sizes that were not run have no
figures: nothing is extrapolated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from muster.report.pace import DATA, Pace, alike
from muster.report.verdict import RunVerdict, duration
from muster.types.names import counted, listed
from muster.types.values import NamedTuple

SCHEMA = 1
GOOD = 0.8  # efficiency
UNSEEN = 0.005
WEAK, STRONG, UNKNOWN = "weak", "strong", "unknown"
METRICS_FIX = "call muster.metrics(step=..., samples=...) on every rank after each step"
KINDS = {WEAK: "weak scaling: each rank has the same batch at every size",
         STRONG: "strong scaling: all ranks together have the same batch at every size",
         UNKNOWN: "weak or strong scaling is not known"}  # fmt: skip
REASONS = {"waiting": "waiting for stragglers", "communication": "communication",
           "data": "waiting for data", "rest": "not known"}  # fmt: skip


class CannotScale(Exception):  # noqa: N818 - the caller says it as a usage error
    """The runs say nothing about scaling. Two texts: what is wrong, and the fix."""


class LostShares(NamedTuple):
    """Shares of the ranks' time that the ideal would not have needed; of 1. None where the records
    do not say it. `rest`: what none of the known ones explains, in computation or in those that are
    not known. `beyond`: the known ones are more than is lost."""

    waiting: float | None
    communication: float | None
    data: float | None
    rest: float
    beyond: bool


class ScaleSize(NamedTuple):
    """One size. `rate`: median of its runs, of samples where all sizes report them, else steps;
    `low` and `high`: over its runs, or of one run over its windows. `efficiency`: rate per rank
    over that of the base, None where it cannot be told. `waiting`: share of the ranks' time,
    whatever the ideal. `cost`: of a million samples; `waiting_cost`: of that for waiting."""

    ranks: int
    hosts: int
    runs: tuple[str, ...]
    step_rate: float
    rate: float
    low: float
    high: float
    ideal: float | None
    speedup: float
    efficiency: float | None
    batch: float | None
    loss: LostShares | None
    waiting: float | None
    start_s: float | None
    start_share: float | None
    cost: float | None
    waiting_cost: float | None


class ScaleFigures(NamedTuple):
    """What the page shows and `--json` prints. `unit`: samples or steps; `left_out`: run -> why."""

    schema: int
    name: str
    verdict: RunVerdict
    base: int
    kind: str
    unit: str
    backend: str
    distribution: str
    price: float | None
    sizes: tuple[ScaleSize, ...]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]


def scale(
    paces: Sequence[Pace], price: float | None = None, notes: Sequence[str] = ()
) -> ScaleFigures:
    """`price`: of a host for an hour; `notes`: more to be said. Raises CannotScale."""
    programs = sorted({one.program for one in paces})
    if len(programs) > 1:
        raise CannotScale(
            f"these are runs of different programs: {listed(programs, 4)}",
            "name runs of one program; muster report A B compares two different ones",
        )
    good = [one for one in paces if not one.why_not]
    left_out = {one.name: one.why_not for one in paces if one.why_not}
    sizes = sorted({one.ranks for one in good})
    if len(sizes) < 2:
        raise CannotScale(*_too_few(sizes, left_out))
    groups = [[one for one in good if one.ranks == ranks] for ranks in sizes]
    with_samples = all(one.sample_rate is not None for one in good)
    kind = _kind(groups) if with_samples else UNKNOWN
    base = _size(groups[0], groups[0], with_samples, price)
    found = (base, *(_size(group, groups[0], with_samples, price) for group in groups[1:]))
    options = dict.fromkeys(one.option or "not known" for group in groups for one in group)
    backends = dict.fromkeys(one.backend for group in groups for one in group if one.backend)
    return ScaleFigures(
        schema=SCHEMA,
        name=programs[0] or "a program without a name",
        verdict=_verdict(found, kind),
        base=sizes[0],
        kind=kind,
        unit="samples" if with_samples else "steps",
        backend=", ".join(backends) or "not known",
        distribution=", ".join(options),
        price=price,
        sizes=found,
        left_out=left_out,
        notes=(*notes, *_notes(good, found, with_samples, price)),
    )


def _too_few(sizes: Sequence[int], left_out: Mapping[str, str]) -> tuple[str, str]:
    """What is wrong and the fix, where less than two sizes are left."""
    why = "".join(f"; left out {name}: {why}" for name, why in list(left_out.items())[:4])
    no_steps = any("steps" in one for one in left_out.values())
    fix = METRICS_FIX if no_steps else "name runs of two sizes at least, such as 1 and 2 ranks"
    if not sizes:
        return f"none of the runs can be used{why}", fix
    return f"all runs that can be used have {counted(sizes[0], 'rank')}{why}", fix


def _kind(groups: Sequence[Sequence[Pace]]) -> str:
    """From the samples of each rank per step, which two sizes may share or have in proportion."""
    batches = [one.batch for group in groups for one in group]
    if None in batches:
        return UNKNOWN
    own = [one.batch or 0.0 for group in groups for one in group]
    if alike(own):
        return WEAK
    return STRONG if alike([(one.batch or 0.0) * one.ranks for g in groups for one in g]) else (
        UNKNOWN
    )  # fmt: skip


def _size(
    runs: Sequence[Pace], base: Sequence[Pace], with_samples: bool, price: float | None
) -> ScaleSize:
    """The figures of one size, from its runs. Of several runs the ends are those of their rates:
    what changes from run to run is more than what changes within one."""
    rates = [_rate(one, with_samples) for one in runs]
    rate, ranks = median(rates), runs[0].ranks
    base_rate = median(_rate(one, with_samples) for one in base)
    several, windows = len(runs) > 1, runs[0]
    ideal = base_rate / base[0].ranks * ranks if with_samples else None
    step_s = 1 / median(one.step_rate for one in runs)
    wait_s = _known([one.wait_s for one in runs])
    waiting = None if wait_s is None else min(1.0, wait_s / step_s)
    cost = None
    if price is not None and with_samples:
        cost = price * median(one.hosts for one in runs) / 3600 / rate * 1e6
    starts = [one.start_s for one in runs]
    start_s = _known(starts)
    shares = [one.start_s / one.seconds if one.start_s is not None and one.seconds else None
              for one in runs]  # fmt: skip
    return ScaleSize(
        ranks=ranks,
        hosts=max(one.hosts for one in runs),
        runs=tuple(one.name for one in runs),
        step_rate=1 / step_s,
        rate=rate,
        low=min(rates) if several else min(windows.low, rate),
        high=max(rates) if several else max(windows.high, rate),
        ideal=ideal,
        speedup=rate / base_rate,
        efficiency=None if ideal is None else rate / ideal,
        batch=_known([one.batch for one in runs]),
        loss=None if ideal is None else _loss(runs, base, rate / ideal),
        waiting=waiting,
        start_s=start_s,
        start_share=_known(shares),
        cost=cost,
        waiting_cost=None if cost is None or waiting is None else cost * waiting,
    )


def _rate(one: Pace, with_samples: bool) -> float:
    return one.sample_rate if with_samples and one.sample_rate is not None else one.step_rate


def _known(values: Sequence[float | None]) -> float | None:
    """The mean, where all are known."""
    found = [one for one in values if one is not None]
    return fmean(found) if found and len(found) == len(values) else None


def _loss(runs: Sequence[Pace], base: Sequence[Pace], efficiency: float) -> LostShares:
    """A step takes `step_s`, at the ideal rate `ideal_s`; each cost of the base is part of the
    ideal in proportion, so that only what is more than that is lost by scaling."""
    step_s = 1 / median(one.step_rate for one in runs)
    ideal_s = step_s * efficiency
    scaled = ideal_s * median(one.step_rate for one in base)
    lost = max(0.0, 1 - efficiency)

    def part(field: str) -> float | None:
        now = _known([getattr(one, field) for one in runs])
        then = _known([getattr(one, field) for one in base])
        return None if now is None or then is None else max(0.0, now - then * scaled) / step_s

    waiting, talk, data = part("wait_s"), part("talk_s"), part("data_s")
    known = sum(one or 0.0 for one in (waiting, talk, data))
    return LostShares(waiting, talk, data, max(0.0, lost - known), known > lost + UNSEEN)


def parts(loss: LostShares, efficiency: float) -> list[tuple[str, float]]:
    """What a bar of the lost share shows: reason, and its part of 1. Known ones that are more than
    is lost are drawn in proportion."""
    lost = max(0.0, 1 - efficiency)
    found = [(name, getattr(loss, name) or 0.0) for name in REASONS]
    total = sum(one for _, one in found)
    shrink = min(1.0, lost / total) if total else 0.0
    return [(name, one * shrink) for name, one in found if one * shrink > 0.0]


def _verdict(sizes: Sequence[ScaleSize], kind: str) -> RunVerdict:
    """Of the largest size; the others stand in its reasons."""
    base, top = sizes[0], sizes[-1]
    kind_words = "" if kind == UNKNOWN else f", {kind} scaling"
    if top.efficiency is None:
        return RunVerdict(
            "warn",
            f"How well it scales is not known: {counted(top.ranks, 'rank')} make {top.speedup:.2f} "
            f"times the steps per second of {base.ranks}, of unknown size",
            (f"{KINDS[UNKNOWN]}, since ranks do not report samples.",),
            (f"To know it, {METRICS_FIX}.",),
        )
    headline = (
        f"{counted(top.ranks, 'rank')} reach {top.efficiency:.0%} of the ideal rate: "
        f"{top.speedup:.2f} times that of {counted(base.ranks, 'rank')}{kind_words}"
    )
    why = [_why(one) for one in sizes[1:]]
    level = "good" if top.efficiency >= GOOD else "warn"
    return RunVerdict(level, headline, tuple(why), tuple(_next(top)))


def _why(one: ScaleSize) -> str:
    """One size in words. A loss within the spread of the rate may be chance, and is said to be."""
    efficiency, loss = one.efficiency or 0.0, one.loss
    lost = 1 - efficiency
    who = counted(one.ranks, "rank")
    if lost < -UNSEEN:
        return f"{who}: {-lost:.1%} above the ideal."
    if lost <= UNSEEN or loss is None:
        return f"{who}: as good as the ideal."
    known = [f"{share:.1%} {REASONS[name]}" for name, share in parts(loss, efficiency)]
    noise = (one.high - one.low) / one.rate
    within = f" That is within the spread of its rate ({noise:.1%})." if lost < noise else ""
    return f"{who}: {lost:.1%} lost, {listed(known, 4)}.{within}"


def _next(top: ScaleSize) -> Iterator[str]:
    """What to do about the largest part of what is lost."""
    efficiency, loss = top.efficiency or 0.0, top.loss
    if loss is None or 1 - efficiency <= UNSEEN:
        yield "Nothing to do up to this size; what a larger one does is not known."
        return
    name, _ = max(parts(loss, efficiency), key=lambda one: one[1])
    yield {
        "waiting": f"Find the rank that the others wait for: muster report {top.runs[0]}.",
        "communication": "Send less or less often: a larger batch per rank, or gradients in bf16.",
        "data": "Feed the ranks faster: more workers of the loader, or data nearer to them.",
        "rest": "The records do not say what it is. Of muster's collectives they have waiting and "
        f"communication, of a metric {DATA} (seconds so far spent waiting for data) the data.",
    }[name]


def _notes(
    paces: Sequence[Pace], sizes: Sequence[ScaleSize], with_samples: bool, price: float | None
) -> Iterator[str]:
    """What has to be known to read the figures, by what they were made of."""
    yield (
        "Warm-up is left out of the rates: of each rank the first tenth of its steps, at least up "
        "to its second entry. Waiting, communication and data are means per step of the whole run."
    )
    yield "Nothing is said about sizes that were not run."
    if cold := [one.name for one in paces if not one.warm]:
        yield (
            f"{listed(cold, 4)}: a rank reported its step only twice, so that the warm-up "
            "is in the rate."
        )
    if len({one.option for one in paces}) > 1:
        yield "The sizes differ in their distribution option, too."
    if any(one.one_machine for one in paces):
        yield (
            "Runs of muster local share one machine, its memory and its processors: hosts of "
            "their own may be faster or slower."
        )
    if any(one.loss is not None and one.loss.beyond for one in sizes):
        yield (
            "Waiting, communication and data are together more than is lost at some size: they "
            "ran beside the computation, or before it was warm. Bars show them in proportion."
        )
    if price is not None and not with_samples:
        yield f"The cost of a million samples is not known: {METRICS_FIX}."
    if not any(one.start_s is not None for one in sizes):
        yield "How long the start took is not in the records."
    elif any((one.start_share or 0.0) > 0.3 for one in sizes):
        longest = max(sizes, key=lambda one: one.start_share or 0.0)
        yield (
            f"The start took {duration(longest.start_s or 0.0)}, {longest.start_share:.0%} of "
            f"a run of {counted(longest.ranks, 'rank')}: the rates leave it out."
        )

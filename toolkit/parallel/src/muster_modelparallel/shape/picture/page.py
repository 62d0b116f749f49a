"""The whole page: the plan in figures, drawings, tables and advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from muster_modelparallel.shape.advice import advice
from muster_modelparallel.shape.costs import Ranges
from muster_modelparallel.shape.picture.markup import Markup, element, joined, seconds, size
from muster_modelparallel.shape.picture.timeline import timeline
from muster_modelparallel.shape.picture.tree import memory, tree, unit_bytes
from muster_modelparallel.shape.plan import Plan
from muster_modelparallel.shape.simulate import Timeline
from muster_modelparallel.shape.units import INPUT
from muster_modelparallel.version import __version__

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --paper: #fff; --soft: #eceff3; --line: #c9ced6;
  --text: #1d2129 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --paper: #15181d; --soft: #262b33; --line: #454c57 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1060px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em; margin-bottom: 0 } h2 { font-size: 1.1em; margin: 2em 0 .5em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .15em .8em; text-align: left; border-bottom: 1px solid var(--line) }
.figure { text-align: right; white-space: nowrap } tr.chosen { background: var(--soft);
  font-weight: 600 } tr.problem { opacity: .6 }
svg { display: block } .wide { overflow-x: auto } text { font: 11px system-ui, sans-serif;
  fill: var(--ink); pointer-events: none }
.bubble, .module { fill: var(--soft) } .bytes { fill: #5b8fd6 } .over { fill: #d64545 }
.cap { fill: #d64545 } .backward, .input_backward { filter: brightness(.82) }
.weight_backward { filter: brightness(.68) }
.stage0 { fill: #8ab6f0 } .stage1 { fill: #f2b279 } .stage2 { fill: #93cf96 }
.stage3 { fill: #d9a5e0 } .stage4 { fill: #e8d06c } .stage5 { fill: #7fcfcf }
.stage6 { fill: #ee9a9a } .stage7 { fill: #b3b8c2 }
rect[class^=stage] + text { fill: var(--text) }
"""


def page(plan: Plan, line: Timeline) -> str:
    """HTML that is well-formed XML too and needs no other file. `line`: its simulated step."""
    profile = plan.profile
    costs = [profile.forward_s(at) + profile.backward_s(at) for at in range(len(profile.units))]
    name = f"Plan of {profile.model}"
    found = advice(plan)
    body = (
        element("h1", name),
        element("p", _summary(plan)),
        element("p", plan.why and f"Why these cuts: {plan.why}. ", f"Split {plan.proof}."),
        *(_section("What would help", _list(found)) if found else ()),
        *_section("Stages", _stages(plan)),
        *_section("One step, simulated", timeline(line)),
        *_section("Units by time", tree(plan, costs, seconds, "Units by seconds")),
        *_section("Units by bytes", tree(plan, unit_bytes(plan), size, "Units by bytes")),
        *_section("Bytes of each rank", memory(plan)),
        *(_section("Between stages", _relays(plan)) if plan.relays else ()),
        *(_section("Degrees, microbatches, schedules", _rows(plan)) if plan.alternatives else ()),
        element("p", f"muster {__version__}, plan of model {plan.fingerprint}"),
    )
    head = element(
        "head",
        Markup('<meta charset="utf-8"/>'),
        Markup('<meta name="viewport" content="width=device-width"/>'),
        element("title", name),
        element("style", Markup(_STYLE)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _summary(plan: Plan) -> str:
    profile, ranks = plan.profile, len(plan.rank_bytes)
    how = "measured" if profile.costs == "measured" else "estimated from FLOPs"
    return (
        f"{len(profile.units)} units in {len(plan.stages)} stages on {ranks} ranks, "
        f"{plan.replicas} replicas, {plan.microbatches} microbatches, {plan.schedule}. "
        f"A step takes {seconds(plan.step_s)}, {plan.bubble:.1%} of it is waiting; seconds are "
        f"{how} (threads: {profile.threads}), uncertain by {profile.noise:.0%}."
    )


def _section(title: str, content: Markup) -> tuple[Markup, Markup]:
    return element("h2", title), element("div", content, class_="wide")


def _list(lines: Iterable[str]) -> Markup:
    return element("ul", *(element("li", line) for line in lines))


def _stages(plan: Plan) -> Markup:
    ranges = Ranges(plan.profile, plan.machine, plan.microbatches)
    costs = ranges.stages(plan.cuts, {at: stage.rank for at, stage in enumerate(plan.stages)})
    total = sum(one.forward_s + one.backward_s for one in costs) or 1.0

    def rows() -> Iterator[Sequence[str]]:
        for at, (stage, cost) in enumerate(zip(plan.stages, costs, strict=True)):
            share = f"{(cost.forward_s + cost.backward_s) / total:.1%}"
            names = f"{stage.units[0]} to {stage.units[-1]}" if stage.units[1:] else stage.units[0]
            times = (seconds(cost.forward_s), seconds(cost.backward_s), share)
            held = (size(cost.static_bytes), size(cost.saved_bytes))
            yield (str(at), str(stage.rank), names, str(len(stage.units)), *times, *held)

    heads = "stage|rank|units|number|forward|backward|share|held|per microbatch"
    return _table(heads.split("|"), rows())


def _relays(plan: Plan) -> Markup:
    names = [unit.name for unit in plan.profile.units]
    rows = (
        (
            f"argument {one.leaf}" if one.source == INPUT else f"{names[one.source]}, {one.leaf}",
            f"{one.first} to {one.last}",
            size(one.bytes * plan.profile.microbatches / plan.microbatches),
            "yes" if one.grad else "no",
        )
        for one in plan.relays
    )
    return _table(["tensor", "stages", "each microbatch", "gradient"], rows)


def _rows(plan: Plan) -> Markup:
    chosen = (len(plan.rank_bytes), plan.microbatches, plan.schedule)
    rows, kinds = [], []
    for one in plan.alternatives:
        key = (str(one.pipeline), str(one.replicas), str(one.microbatches), one.schedule)
        figures = (seconds(one.batch_s), f"{one.bubble:.1%}", size(one.rank_bytes), "")
        short = one.problem.partition(":")[0]
        rows.append((*key, *(("", "", "", short) if short else figures)))
        same = (one.pipeline, one.microbatches, one.schedule) == chosen
        kinds.append("problem" if one.problem else "chosen" if same else "possible")
    heads = "pipeline|replicas|microbatches|schedule|a batch|bubble|fullest rank|why not"
    return _table(heads.split("|"), rows, kinds)


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str] = ()
) -> Markup:
    kind = ["text" if head in _TEXT else "figure" for head in heads]
    head = element(
        "tr", *(element("th", one, class_=c) for one, c in zip(heads, kind, strict=True))
    )
    body = []
    for at, row in enumerate(rows):
        cells = (element("td", one, class_=c) for one, c in zip(row, kind, strict=True))
        body.append(element("tr", *cells, class_=kinds[at] if kinds else ""))
    return element("table", head, joined(body))


_TEXT = {"units", "tensor", "stages", "gradient", "schedule", "why not"}
"""Heads of columns that hold words."""

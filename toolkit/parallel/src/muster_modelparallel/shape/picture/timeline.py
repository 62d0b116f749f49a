"""Who does what when in one step: a row for each rank, gaps are the bubble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muster_modelparallel.shape.picture.markup import (
    STAGE_COLORS,
    Markup,
    bar,
    drawing,
    label,
    seconds,
)
from muster_modelparallel.shape.schedule import Kind
from muster_modelparallel.shape.simulate import Span, Timeline

WIDTH, ROW, LEFT = 1000.0, 26.0, 60.0
MOST = 6000
"""Beyond so many actions neighbours of one kind are drawn as one."""

_SAY = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_BACKWARD: "backward, inputs",
    Kind.WEIGHT_BACKWARD: "backward, weights",
}


def timeline(line: Timeline) -> Markup:
    """The simulated step."""
    across = (WIDTH - LEFT) / (line.step_s or 1.0)
    merge = sum(map(len, line.ranks)) > MOST
    parts = []
    for rank, spans in enumerate(line.ranks):
        y = rank * ROW
        parts.append(label(0, y + 16, f"rank {rank}", LEFT))
        parts.append(bar(LEFT, y, WIDTH - LEFT, ROW - 4, "bubble", f"rank {rank} waits"))
        for run in _runs(spans, merge):
            (kind, stage, microbatch), start, _ = run[0]
            end, many = run[-1].end_s, len(run) > 1
            x, width = LEFT + start * across, (end - start) * across
            which = f"microbatches {microbatch} to {run[-1].action.microbatch}"
            which = which if many else f"microbatch {microbatch}"
            when = f"{seconds(start)} to {seconds(end)}"
            title = f"{_SAY[kind]} of {which} in stage {stage}: {when}"
            style = f"stage{stage % STAGE_COLORS} {kind.name.lower()}"
            parts.append(bar(x, y, width, ROW - 4, style, title))
            if not many and width > 14:
                parts.append(label(x + 3, y + 16, str(microbatch), 20))
    height = len(line.ranks) * ROW
    return drawing(WIDTH, height, "Timeline of one step", parts)


def _runs(spans: Sequence[Span], merge: bool) -> Iterator[list[Span]]:
    run: list[Span] = []
    for span in spans:
        same = run and merge and run[-1].action[:2] == span.action[:2]
        if run and not (same and span.start_s <= run[-1].end_s * (1 + 1e-9)):
            yield run
            run = []
        run.append(span)
    if run:
        yield run

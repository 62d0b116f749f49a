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
"""Beyond so many actions those of a stage are drawn as one, where no pixel lies between them."""

_SAY = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_BACKWARD: "backward, inputs",
    Kind.WEIGHT_BACKWARD: "backward, weights",
}


def timeline(line: Timeline) -> Markup:
    """The simulated step."""
    across = (WIDTH - LEFT) / (line.step_s or 1.0)
    gap_s = 1 / across if sum(map(len, line.ranks)) > MOST else None
    parts = []
    for rank, spans in enumerate(line.ranks):
        y = rank * ROW
        parts.append(label(0, y + 16, f"rank {rank}", LEFT))
        parts.append(bar(LEFT, y, WIDTH - LEFT, ROW - 4, "bubble", f"rank {rank} waits"))
        for run in _runs(spans, gap_s):
            (kind, stage, microbatch), start, _ = run[0]
            end = run[-1].end_s
            x, width = LEFT + start * across, (end - start) * across
            what = (
                f"{_SAY[kind]} of microbatch {microbatch}" if not run[1:] else f"{len(run)} actions"
            )
            title = f"{what} in stage {stage}: {seconds(start)} to {seconds(end)}"
            style = f"stage{stage % STAGE_COLORS} {kind.name.lower()}"
            parts.append(bar(x, y, width, ROW - 4, style, title))
            if not run[1:] and width > 14:
                parts.append(label(x + 3, y + 16, str(microbatch), 20))
    height = len(line.ranks) * ROW
    return drawing(WIDTH, height, "Timeline of one step", parts)


def _runs(spans: Sequence[Span], gap_s: float | None) -> Iterator[list[Span]]:
    """Each alone, or where there is a `gap_s` those of a stage between which no more time lies."""
    run: list[Span] = []
    for span in spans:
        same = run and run[-1].action.stage == span.action.stage
        if run and not (same and gap_s is not None and span.start_s - run[-1].end_s <= gap_s):
            yield run
            run = []
        run.append(span)
    if run:
        yield run

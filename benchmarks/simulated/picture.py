"""`make pictures`: the simulated all-reduces of many nodes, out of results/simulated.json."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from benchmarks.simulated.__main__ import RESULTS, SCHEDULES

PICTURE = RESULTS.parents[2] / "docs" / "pictures" / "all-reduce-nodes.svg"
COLOURS = dict(zip(SCHEDULES, ("#1b6ca8", "#c0392b", "#7f8c8d"), strict=True))
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 300, 260, 52, 44, 40
DECADES = (-4, 0)  # of seconds


def draw(found: Any) -> str:
    """A panel for each size: milliseconds by nodes, both on logarithmic axes."""
    sizes = list(dict.fromkeys(row["size_bytes"] for row in found["many"]))
    panels = [
        f'<g transform="translate({place * WIDTH} 0)">'
        f"{_panel([row for row in found['many'] if row['size_bytes'] == size], size)}</g>"
        for place, size in enumerate(sizes)
    ]
    legend = [
        f'<rect x="{LEFT + place * 170}" y="{HEIGHT + 6}" width="12" height="12" fill="{colour}"/>'
        f'<text x="{LEFT + 18 + place * 170}" y="{HEIGHT + 16}">{name}</text>'
        for place, (name, colour) in enumerate(COLOURS.items())
    ]
    width, height = WIDTH * len(sizes), HEIGHT + 28
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f"<title>Simulated all-reduce over many nodes</title>{''.join((*panels, *legend))}</svg>\n"
    )


def _panel(rows: Sequence[Any], size_bytes: int) -> str:
    first, last = rows[0]["nodes"], rows[-1]["nodes"]

    def across(nodes: int) -> float:
        return LEFT + (WIDTH - LEFT - 20) * math.log(nodes / first) / math.log(last / first)

    def up(seconds: float) -> float:
        share = (math.log10(seconds) - DECADES[0]) / (DECADES[1] - DECADES[0])
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    size = f"{size_bytes >> 20} MiB" if size_bytes >> 20 else f"{size_bytes >> 10} KiB"
    parts = [f'<text x="{LEFT}" y="24" font-weight="bold">{size}: ms by nodes of 8 ranks</text>']
    for decade in range(DECADES[0], DECADES[1] + 1):
        y = up(10.0**decade)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 20}" stroke="#dddddd"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{10.0 ** (decade + 3):g}</text>"
        )
    for row in rows:
        x = across(row["nodes"])
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{row["nodes"]:,}</text>'
        )
    for name, colour in COLOURS.items():
        points = [(across(row["nodes"]), up(row["seconds"][name])) for row in rows]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return "".join(parts)


def main() -> None:
    PICTURE.write_text(draw(json.loads(RESULTS.read_text())), encoding="utf-8")
    print(PICTURE.relative_to(RESULTS.parents[2]))


if __name__ == "__main__":
    main()

"""`muster ps`: the ranks of a run, a line each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from muster.arguments import Parser
from muster.commands.live.stacks import add_run, print_answer
from muster.commands.live.there import asked_there
from muster.local import control_client
from muster.run.observe.control import STATE, Inquiry
from muster.run.observe.wording import seconds, text_of
from muster.types.plain import columns

EXAMPLES = """\
examples:
  muster ps            host, rank, pid, step, rate, age of the last output, state
  muster ps --json     the same for programs

Step and rate are those of muster.metrics; a rank of which they are not known has a -.
OWN is the time of a step in which the rank did not wait for others, the median when it was
last looked at (see docs/how-to/symptoms/it-hangs.md), and P95 the 95th percentile; a rank that
holds the others up is marked slow.
"""
HEAD = ("HOST", "RANK", "PID", "STEP", "STEPS/S", "OUTPUT", "CPU", "STATE")


def add_arguments(parser: Parser) -> None:
    parser.description = EXAMPLES
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    """Returns 0. Raises UsageError where nothing answers."""
    if (code := asked_there(args, "ps")) is not None:
        return code
    found = control_client.find(args.run)
    answer = control_client.ask(found, Inquiry(STATE))
    with suppress(KeyError, TypeError):  # another version: below it is said
        control_client.count_here(found, answer["ranks"])
    print_answer(found, answer, args.json, _table)
    return 0


def _table(answer: Mapping[str, Any]) -> str:
    rows = answer["ranks"]
    table = [HEAD, *map(_row, rows)]
    if any(one.get("own_s") is not None for one in rows):
        table = [(*row, *more) for row, more in zip(table, _own(rows), strict=True)]
    lines = columns(table, right=(1, 2, 3, 4, 5, 6, 8, 9))
    if answer.get("silent"):
        lines.append(f"did not answer: {', '.join(map(text_of, answer['silent']))}")
    return "\n".join(lines) + "\n"


def _own(ranks: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Three columns more, with their head."""
    times = [(one.get("own_s"), one.get("own_p95_s")) for one in ranks]
    shown = [tuple("-" if s is None else f"{1000 * s:.3g} ms" for s in both) for both in times]
    slow = ["slow" * bool(one.get("slow")) for one in ranks]
    return [("OWN", "P95", ""), *((*both, mark) for both, mark in zip(shown, slow, strict=True))]


def _row(rank: Mapping[str, Any]) -> tuple[str, ...]:
    step, rate, ended = rank["step"], rank["rate"], rank["ended"] is not None
    return (
        text_of(rank["host"]),
        str(int(rank["rank"])),
        "-" if rank["pid"] is None else str(int(rank["pid"])),
        "-" if step is None else str(int(step)),
        "-" if rate is None else f"{rate:.3g}",
        "-" if ended else f"{seconds(rank['silent_s'])} ago",
        "-" if ended else f"{100 * rank['cpu_share']:.0f} %",
        text_of(rank["state"]),
    )

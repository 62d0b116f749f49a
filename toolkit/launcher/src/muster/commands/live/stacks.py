"""`muster stacks`: who is stuck, and where; one stack of each kind."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from muster.arguments import Parser, UsageError
from muster.commands.live.there import asked_there
from muster.local import control_client
from muster.local.control_client import LiveRun
from muster.run.observe import answers
from muster.run.observe.control import STACKS, Inquiry
from muster.types.shown import parse_ranks

EXAMPLES = """\
examples:
  muster stacks                      who waits for whom, and one stack of each kind
  muster stacks --ranks 1,last       the stacks of these ranks
  muster stacks --all-threads        of all their threads, not of the main one alone

It changes nothing in the job. In a container, or its remote shell, it asks the job that runs there.
"""


def add_arguments(parser: Parser) -> None:
    parser.description = EXAMPLES
    add_run(parser)
    parser.add_argument("--ranks", metavar="RANKS", default="", help="0,last or 0-3 (each kind)")
    parser.add_argument("--all-threads", action="store_true", help="every thread of these ranks")
    parser.add_argument("--json", action="store_true", help="for programs")


def add_run(parser: Parser) -> None:
    """Which run is meant."""
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="which run, by name or folder (the one that runs)"
    )
    parser.add_argument("--here", action="store_true", help="not where a submitted job runs")


def run(args: argparse.Namespace) -> int:
    """Returns 0. Raises UsageError where nothing answers."""
    if args.ranks:
        try:
            parse_ranks(args.ranks)
        except ValueError as error:
            raise UsageError(f"--ranks: {error}", "write such as --ranks 0,last") from None
    if (code := asked_there(args, "stacks")) is not None:
        return code
    found = control_client.find(args.run)
    answer = control_client.ask(found, Inquiry(STACKS, args.ranks, args.all_threads))
    print_answer(found, answer, args.json, answers.as_text)
    return 0


def print_answer(
    run: LiveRun, answer: dict[str, Any], as_json: bool, as_text: Callable[[dict[str, Any]], str]
) -> None:
    """What a run answered, for programs or for people. Raises UsageError where it cannot be
    read."""
    try:
        text = json.dumps(answer) + "\n" if as_json else as_text(answer)
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"{run.name} is of another version of muster", "use --json") from None
    sys.stdout.write(text)

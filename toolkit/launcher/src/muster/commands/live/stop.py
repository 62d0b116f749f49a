"""`muster stop`: ends a run as a stop from outside does, with time for its ranks to save."""

from __future__ import annotations

import argparse
import sys

from muster.arguments import Parser
from muster.commands.live.stacks import add_run
from muster.commands.live.there import asked_there
from muster.local import control_client
from muster.run.observe.control import STOP, Inquiry

EXAMPLES = """\
examples:
  muster stop          the run that runs here: SIGTERM to its ranks, time to save, exit code 143
"""


def add_arguments(parser: Parser) -> None:
    parser.description = EXAMPLES
    add_run(parser)


def run(args: argparse.Namespace) -> int:
    """Returns 0 once the run knows of it. Raises UsageError where nothing answers."""
    if (code := asked_there(args, "stop")) is not None:
        return code
    found = control_client.find(args.run)
    control_client.ask(found, Inquiry(STOP))
    sys.stdout.write(f"stopping {found.name}: its ranks get SIGTERM and time to save\n")
    return 0

"""`muster history`: the runs that were kept; shows, removes and repeats them."""

from __future__ import annotations

import argparse
import json
import os

from muster.arguments import Parser, UsageError, one_of, tell
from muster.local.paths import shown
from muster.local.record import history
from muster.local.record.command_file import LOCAL, for_a_new_run, with_secrets
from muster.local.record.history import LATEST, Run
from muster.local.record.layout import RUNS
from muster.types.plain import columns

LIST, SHOW, REMOVE, AGAIN = ACTIONS = ("list", "show", "remove", "again")
USAGE = """muster history [list] [--json]
       muster history show [RUN] [--json]
       muster history again [RUN]
       muster history remove RUN... [--yes]"""
EXAMPLES = """\
RUN is a name that `muster history` prints, a run folder, or latest.

examples:
  muster history                  the runs of this folder, the newest first
  muster history again            the latest one again, with the same options, in a new folder
  muster history remove 20261121-103956-train --yes
"""
COMMAND_WIDTH = 80


def add_arguments(parser: Parser) -> None:
    parser.usage = USAGE
    parser.description = EXAMPLES
    parser.add_argument(
        "action", metavar="ACTION", nargs="?", default=LIST, type=one_of(*ACTIONS), help="see above"
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", help="which run (latest)")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--yes", action="store_true", help="remove models, checkpoints and output, too"
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0, or the exit code of a job that was run again. Raises UsageError."""
    if args.action == LIST:
        if args.runs:
            raise UsageError(f"list takes no RUN: {args.runs[0]!r}", "did you mean show?")
        _list(args.json)
    elif args.action == REMOVE:
        _remove(args.runs, args.yes)
    elif len(args.runs) > 1:
        raise UsageError(f"{args.action} takes one RUN, got {len(args.runs)}")
    else:
        found = history.find_run(args.runs[0] if args.runs else LATEST)
        if args.action == AGAIN:
            return _again(found)
        _show(found, args.json)
    return 0


def _list(as_json: bool) -> None:
    found = history.runs()
    if as_json:
        print(json.dumps([_document(one) for one in found], indent=2))
        return
    if not found:
        print(f"no runs in {os.path.realpath(RUNS)}")
        return
    rows = [("run", "end", "code", "seconds", "command")]
    for one in found:
        code, took = (
            "-" if value is None else text.format(value)
            for value, text in ((one.code, "{}"), (one.seconds, "{:.1f}"))
        )
        words = _plain(one.command_line.removeprefix("muster local "))
        if len(words) > COMMAND_WIDTH:
            words = words[: COMMAND_WIDTH - 3] + "..."
        rows.append((_plain(one.name), _plain(one.state), code, took, words))
    print("\n".join(columns(rows, right=(2, 3))))


def _show(one: Run, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_document(one), indent=2))
        return
    from muster.local.record.summary import places

    code = "" if one.code is None else f", exit code {one.code}"
    took = "" if one.seconds is None else f", {one.seconds:.1f} s"
    rows = [("run", one.name), ("end", f"{one.state}{code}{took}"), ("started", one.started)]
    rows += [("why", one.headline)] if one.headline and one.code else []
    rows += [("command", one.command_line)]
    rows += [("in", one.command.cwd)] if one.command else []
    for name, value in rows:
        print(f"  {name:<11} {_plain(value)}")
    print("\n".join(places(one.path, one.hosts, None)) if one.hosts else f"  {shown(one.path)}")


def _plain(text: str) -> str:
    """Without what a terminal would obey: it comes from scripts and command lines."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def _document(one: Run) -> dict[str, object]:
    command = one.command._asdict() if one.command else None
    return {**one._asdict(), "name": one.name, "command": command}


def _remove(names: list[str], sure: bool) -> None:
    if not names:
        raise UsageError("remove: which RUN?", "muster history lists them")
    for found in [history.find_run(name) for name in dict.fromkeys(names)]:
        history.remove(found, sure)
        print(f"removed {found.name}")


def _again(one: Run) -> int:
    if one.command is None:
        raise UsageError(f"{one.name} has no command line that can be read")
    if one.command.command != LOCAL:
        raise UsageError(f"{one.name} did not run here", f"type {_plain(one.command_line)}")
    argv = with_secrets(for_a_new_run(one.command.argv), os.environ)
    try:
        os.chdir(one.command.cwd)
    except OSError as error:
        raise UsageError(f"{one.command.cwd}: {error.strerror}") from None
    tell(f"muster history: {_plain(one.command_line)}\n")
    from muster.local.command import run_line

    return run_line(argv)

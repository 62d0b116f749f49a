"""`python -m muster_collectives.bench`: a table, and JSON and a picture where they are asked for.

Ours (`muster` through torch.distributed, `core` called directly, `direct` on registered memory)
beside gloo and Open MPI, in turns within one run. Read the ratios: the times
are those of this machine at this hour. Ends with 1 when a contender failed.

With --tune it compares sizes of our own algorithms instead, and writes those that suit this machine
to $XDG_CONFIG_HOME/muster/collectives.json (~/.config without that variable), which later groups
read. That file counts for machines with as many processors of the same kind; COLLECTIVES_*
variables come before it, and between nodes rank 0's sizes count for all. The largest of --sizes is
that of the sum by which the piece is chosen. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from muster_collectives.runtime import machine
from muster_collectives.runtime.errors import SettingsError
from muster_collectives.runtime.tuning import parse_bytes
from muster_collectives.tools.bench import cases
from muster_collectives.tools.bench.cases import DTYPES, VERBS, Case, Result, Spec, encode, load
from muster_collectives.tools.bench.launch import RunError, find_mpirun, run
from muster_collectives.tools.bench.report import svg, table
from muster_collectives.tools.bench.tune import LEAST_LARGE_BYTES, tune

SIZES = "1K,8K,64K,512K,4M,32M"
PEERS = (cases.GLOO, cases.MPI)


def main() -> int:
    options = _options()
    try:
        if options.tune:
            tune(options.ranks, options.rounds, options.budget_s, max(options.sizes),
                 options.limit_s, options.dry_run)  # fmt: skip
            return 0
        results = load(options.recorded) if options.recorded else _measure(options)
        print(table(results))
        _keep(results, options)
    except RunError as error:
        print(f"bench: {error}", file=sys.stderr)
    except OSError as error:
        print(f"bench: {error.filename}: {error.strerror}", file=sys.stderr)
    except ValueError as error:
        print(f"bench: {options.recorded or 'the picture'}: {error}", file=sys.stderr)
    else:
        return 0
    return 1


def _measure(options: argparse.Namespace) -> list[Result]:
    """Raises RunError."""
    if importlib.util.find_spec("torch") is None:
        raise RunError("torch is not installed; it brings gloo\n  Fix: pip install torch")
    mpirun, missing = find_mpirun() if cases.MPI in options.peers else ("", "")
    if missing:
        print(f"bench: without Open MPI: {missing}", file=sys.stderr)
    names = (cases.OURS, cases.CORE, cases.DIRECT, *options.peers, cases.LIMIT)
    spec = Spec(
        tuple(Case(verb, dtype, size, names) for verb in options.verbs for dtype in options.types
              for size in options.sizes),
        options.rounds, options.budget_s,
    )  # fmt: skip
    return run(spec, options.ranks, mpirun, options.limit_s)


def _keep(results: Sequence[Result], options: argparse.Namespace) -> None:
    """Raises OSError, ValueError. The figures before the picture: they cannot be drawn again."""
    if options.json:
        where = f"{platform.machine()}, {os.cpu_count()} CPUs"
        report = json.dumps(encode(results, where, options.ranks), indent=1)
        Path(options.json).write_text(report + "\n", encoding="utf-8")
    if options.plot:
        Path(options.plot).write_text(svg(results), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m muster_collectives.bench", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--ranks", type=int, help="processes on this machine; default 2, with "
                        "--tune as many as there are processors")  # fmt: skip
    parser.add_argument("--verbs", default="all_reduce", help=f"some of {','.join(VERBS)}")
    parser.add_argument("--types", default="float32", help=f"some of {','.join(DTYPES)}")
    parser.add_argument("--sizes", default=SIZES, help=f"default {SIZES}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"default {','.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=9, help="A B C A B C turns; default 9")
    parser.add_argument(
        "--budget-s", type=float, default=0.3, help="seconds per contender and case"
    )
    parser.add_argument("--limit-s", type=float, default=1200.0, help="seconds for the whole run")
    parser.add_argument("--json", metavar="FILE", help="every round's figures")
    parser.add_argument("--plot", metavar="FILE", help="bus bandwidth over size, SVG")
    parser.add_argument("--from", dest="recorded", metavar="FILE", type=Path,
                        help="a run's --json: show and plot it again, measure nothing")  # fmt: skip
    parser.add_argument("--tune", action="store_true",
                        help="find the sizes that suit this machine, and keep them")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="with --tune: write nothing")
    options = parser.parse_args()
    if options.ranks is None:
        options.ranks = max(2, machine.processors()) if options.tune else 2
    if options.tune and (options.recorded or options.json or options.plot):
        parser.error("--tune goes with --ranks, --sizes, --rounds, --budget-s and --limit-s alone")
    if options.dry_run and not options.tune:
        parser.error("--dry-run goes with --tune")
    if options.recorded and options.json:
        parser.error("--from measures nothing that --json could write")
    for name, known in (("verbs", VERBS), ("types", tuple(DTYPES)), ("peers", PEERS)):
        chosen = tuple(word for word in getattr(options, name).split(",") if word)
        unknown = [word for word in chosen if word not in known]
        if unknown:
            parser.error(f"--{name}: no {', '.join(unknown)}; there are {', '.join(known)}")
        setattr(options, name, chosen)
    try:
        options.sizes = tuple(parse_bytes(word, "--sizes") for word in options.sizes.split(","))
    except SettingsError as error:
        parser.error(error.message)
    if options.ranks < 2 or options.rounds < 1 or min(options.sizes) < 64:
        parser.error("at least 2 ranks, 1 round and 64 bytes")
    if options.tune and max(options.sizes) < LEAST_LARGE_BYTES:
        parser.error("--tune needs one of --sizes to be 1 MiB at least")
    return options


if __name__ == "__main__":
    sys.exit(main())

"""`python -m muster_collectives.bench`: a table, and JSON and a picture where they are asked for.

Ours (`muster` through torch.distributed, `core` called directly, `direct` on registered memory)
beside gloo and Open MPI, on the same buffers, in turns within one run. Read the ratios: the times
are those of this machine at this hour. Ends with 1 when a contender failed.
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

from muster_collectives.runtime.errors import SettingsError
from muster_collectives.runtime.tuning import parse_bytes
from muster_collectives.tools.bench import cases
from muster_collectives.tools.bench.cases import DTYPE_BYTES, VERBS, Case, Result, Spec
from muster_collectives.tools.bench.launch import RunError, find_mpirun, run
from muster_collectives.tools.bench.plot import svg
from muster_collectives.tools.bench.recorded import encode, load
from muster_collectives.tools.bench.report import table

SIZES = "1K,8K,64K,512K,4M,32M"
PEERS = (cases.GLOO, cases.MPI)


def main() -> int:
    options = _options()
    try:
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
        machine = f"{platform.machine()}, {os.cpu_count()} CPUs"
        report = json.dumps(encode(results, machine, options.ranks), indent=1)
        Path(options.json).write_text(report + "\n", encoding="utf-8")
    if options.plot:
        Path(options.plot).write_text(svg(results), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m muster_collectives.bench", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes on this machine; default 2")
    parser.add_argument("--verbs", default="all_reduce", help=f"some of {','.join(VERBS)}")
    parser.add_argument("--types", default="float32", help=f"some of {','.join(DTYPE_BYTES)}")
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
    options = parser.parse_args()
    if options.recorded and options.json:
        parser.error("--from measures nothing that --json could write")
    for name, known in (("verbs", VERBS), ("types", tuple(DTYPE_BYTES)), ("peers", PEERS)):
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
    return options


if __name__ == "__main__":
    sys.exit(main())

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
from pathlib import Path

from muster_collectives.bench import cases
from muster_collectives.bench.cases import DTYPE_BYTES, VERBS, Case, Spec, encode_result
from muster_collectives.bench.launch import RunError, find_mpirun, run
from muster_collectives.bench.plot import svg
from muster_collectives.bench.report import table
from muster_collectives.core.errors import SettingsError
from muster_collectives.core.tuning import parse_bytes

SIZES = "1K,8K,64K,512K,4M,32M"
PEERS = (cases.GLOO, cases.MPI)


def main() -> int:
    options = _options()
    if importlib.util.find_spec("torch") is None:
        print(
            "bench: torch is not installed; it brings gloo\n  Fix: pip install torch",
            file=sys.stderr,
        )
        return 1
    mpirun, missing = find_mpirun() if cases.MPI in options.peers else ("", "")
    if missing:
        print(f"bench: without Open MPI: {missing}", file=sys.stderr)
    names = tuple(
        name for name in (cases.OURS, cases.CORE, cases.DIRECT, *options.peers, cases.LIMIT)
    )
    spec = Spec(
        tuple(Case(verb, dtype, size, names) for verb in options.verbs for dtype in options.types
              for size in options.sizes),
        options.rounds, options.budget_s,
    )  # fmt: skip
    try:
        results = run(spec, options.ranks, mpirun, options.limit_s)
    except RunError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(table(results))
    if options.json:
        report = {
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs", "ranks": options.ranks,
            "results": [encode_result(result) for result in results],
        }  # fmt: skip
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        Path(options.plot).write_text(svg(results), encoding="utf-8")
    return 0


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
    options = parser.parse_args()
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

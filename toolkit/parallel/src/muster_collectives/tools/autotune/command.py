"""`python -m muster_collectives.autotune`: measures, and writes the file that groups then read.

The file is $XDG_CONFIG_HOME/muster/collectives.json (~/.config without that variable). It counts
for machines with as many processors of the same kind; COLLECTIVES_* variables come before it.
Between nodes rank 0's sizes count for all. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from muster_collectives.core import SettingsError
from muster_collectives.runtime import machine, machine_file
from muster_collectives.runtime.settings import current
from muster_collectives.runtime.tuning import encode, parse_bytes
from muster_collectives.tools.autotune.rank import BUDGET_S, LARGE_BYTES, LEAST_LARGE_BYTES, ROUNDS
from muster_collectives.tools.bench.launch import RunError, start


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="mc-tune-") as name:
        output = Path(name) / "found.json"
        words = (output, options.rounds, options.budget_s, options.large_bytes)
        argv = ["-m", "muster_collectives.tools.autotune.rank", *map(str, words)]
        try:
            start(argv, options.ranks, Path(name), limit_s=options.limit_s)
        except RunError as error:
            print(f"autotune: {error}", file=sys.stderr)
            return 1
        found: dict[str, int] = json.loads(output.read_text(encoding="utf-8"))
    before = encode(current().tuning)
    for key, value in found.items():
        print(f"{key:<16} {value:>20}  (was {before[key]})")
    path = machine_file.path_of(os.environ)
    if options.dry_run:
        print(f"nothing written; without --dry-run this goes to {path}")
        return 0
    write(Path(path), found)
    print(f"written to {path}")
    return 0


def write(path: Path, found: dict[str, int]) -> None:
    """Whole or not at all: a group that starts meanwhile reads the old file or the new one."""
    document: dict[str, Any] = {
        "version": machine_file.VERSION, "processors": machine.processors(),
        "machine": platform.machine(), "tuning": found,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        half.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m muster_collectives.autotune", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--ranks", type=int, default=max(2, machine.processors()),
                        help="as jobs on this machine have; default: its processors")  # fmt: skip
    parser.add_argument("--limit-s", type=float, default=600.0, help="seconds for the whole run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns; default {ROUNDS}")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S,
                        help=f"seconds per size and way; default {BUDGET_S}")  # fmt: skip
    parser.add_argument("--large-bytes", default=str(LARGE_BYTES),
                        help="of the sum by which the piece is chosen; default 32M")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="measure and write nothing")
    options = parser.parse_args()
    try:
        options.large_bytes = parse_bytes(options.large_bytes, "--large-bytes")
    except SettingsError as error:
        parser.error(error.message)
    if options.ranks < 2 or options.rounds < 1 or options.large_bytes < LEAST_LARGE_BYTES:
        parser.error(f"at least 2 ranks, 1 round and {LEAST_LARGE_BYTES} large bytes")
    return options


if __name__ == "__main__":
    sys.exit(main())

"""What the latest soak found: jobs broken at random, read from the file that `make soak` writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.table import Bound, Row
from tests.support.venvs import CACHE, CHECKOUT

FOUND = CACHE / "soak.json"
RUNS = 200
_WHAT = "soak: jobs broken at random that kept every promise"


def rows(path: Path = FOUND) -> Iterator[Row]:
    """One row; not run when there is no such file or it does not say what it has to."""
    demand = f"all of at least {RUNS}"
    try:
        found = json.loads(path.read_text())
        ran, good = int(found["runs"]), int(found["ok"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = (
            "run `make soak` first"
            if isinstance(error, FileNotFoundError)
            else f"{path}: {error!r}"
        )
        yield Row(_WHAT, "", None, {}, (Bound(demand, False),), why)
        return
    bound = Bound(demand, good == ran >= RUNS)
    yield Row(_WHAT, f"of {ran}", good, {}, (bound,), _about(found))


def _about(found: Mapping[str, object]) -> str:
    """Where the figure comes from, and whether it is of the present code."""
    told = [f"{name} {found[name]}" for name in ("seconds", "seed", "commit") if name in found]
    present = _commit()
    if present and found.get("commit") and not present.startswith(str(found["commit"])):
        told.append(f"the present commit is {present[:12]}")
    return ", ".join(told)


def _commit() -> str:
    """Of the checkout; "" without git."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=CHECKOUT,
            capture_output=True, text=True, check=False, timeout=10,
        )  # fmt: skip
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

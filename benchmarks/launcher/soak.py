"""What the latest soak found: jobs broken at random, read from the file that `make soak` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.table import Bound, Row
from tests.launcher.soak.summary import commit
from tests.support.venvs import CACHE

FOUND = CACHE / "soak.json"
RUNS = 200
_WHAT = "soak: jobs broken at random that kept every promise"


def rows(path: Path = FOUND) -> Iterator[Row]:
    """One row; not run when there is no such file or it does not say what it has to."""
    demand = f"all of at least {RUNS}, and every kind of fault landed"
    try:
        found = json.loads(path.read_text())
        runs, good, missing = int(found["runs"]), int(found["ok"]), list(found["never_landed"])
        about = _about(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = (
            "run `make soak` first"
            if isinstance(error, FileNotFoundError)
            else f"{path}: {error!r}"
        )
        yield Row(_WHAT, "", None, {}, (Bound(demand, False),), why)
        return
    bound = Bound(demand, good == runs >= RUNS and not missing)
    yield Row(_WHAT, f"of {runs}", good, {}, (bound,), about)


def _about(found: Mapping[str, Any]) -> str:
    """Where the figure comes from, what did not come about, whether it is of the present code."""
    landed = [f"{kind} {n['landed']}/{n['planned']}" for kind, n in found["faults"].items()]
    told = [f"{found['seconds']:.0f} s", f"seed {found['seed']}", f"landed: {' '.join(landed)}"]
    told += [f"{number} not run: {why}" for why, number in found["not_run"].items()]
    told += [f"no {kind} can land: {why}" for kind, why in found["cannot_land"].items()]
    told += [f"no {kind} landed" for kind in found["never_landed"]]
    told.append(f"commit {found['commit'] or 'unknown'}")
    present = commit()
    if present and found["commit"] and found["commit"] != present:
        told.append(f"the present commit is {present}")
    return ", ".join(told)

"""The variables of this package: MODELPARALLEL_*, read from an environment (pure).

A name that begins so and is not known is named once, with the nearest one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from muster_modelparallel.errors import SettingsError, nearest

PREFIX = "MODELPARALLEL_"
KNOWN: Mapping[str, str] = {
    "MODELPARALLEL_OBJECTS_TIMEOUT_S": "seconds that a rank waits for another one in broadcast, "
    "send, recv_from, allgather and the barriers",
    "MODELPARALLEL_PLAN_IN": "a plan file: the model is cut as it says, and nothing is measured",
    "MODELPARALLEL_PLAN_OUT": "a file: the model is planned in place of being trained, and the "
    "plan goes there, its picture beside it; relative to SM_OUTPUT_DATA_DIR if there is one",
    "MODELPARALLEL_RANKS": "the ranks of the job that is planned for; 1 if not set",
}
OBJECTS_TIMEOUT_S = 600.0


class PlanRequest(NamedTuple):
    """A plan is to be written to `out` for a job of `ranks`."""

    out: Path
    ranks: int


class OwnVariables(NamedTuple):
    """What the environment says. `objects_timeout_s` in seconds; `notes` are to be said once.
    `plan`: None in a process that trains. `plan_in`: a plan to cut the model by, or ""."""

    objects_timeout_s: float
    notes: tuple[str, ...]
    plan: PlanRequest | None = None
    plan_in: str = ""


def read_variables(environ: Mapping[str, str]) -> OwnVariables:
    """Raises SettingsError for a value that cannot be used."""
    text = environ.get("MODELPARALLEL_OBJECTS_TIMEOUT_S", "").strip()
    notes = [_unknown(each) for each in sorted(environ) if each.startswith(PREFIX)]
    seconds = _seconds(text) if text else OBJECTS_TIMEOUT_S
    plan_in = environ.get("MODELPARALLEL_PLAN_IN", "").strip()
    if plan_in and not Path(plan_in).is_file():
        raise SettingsError(
            f"MODELPARALLEL_PLAN_IN={plan_in!r} is no file", "name a plan that was written before"
        )
    return OwnVariables(seconds, tuple(filter(None, notes)), _plan(environ), plan_in)


def _plan(environ: Mapping[str, str]) -> PlanRequest | None:
    out, count = (environ.get(PREFIX + name, "").strip() for name in ("PLAN_OUT", "RANKS"))
    if not out:
        return None
    ranks = int(count) if count.isascii() and count.isdigit() else 0 if count else 1
    if not ranks:
        raise SettingsError(
            f"MODELPARALLEL_RANKS={count!r} is no number above 0",
            "set it to the number of ranks of the job that is planned for",
        )
    path = Path(environ.get("SM_OUTPUT_DATA_DIR", ""), out)
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise SettingsError(f"MODELPARALLEL_PLAN_OUT={out!r}: {what}", "name a file, in a folder")
    named = path if path.suffix == ".json" else path.with_name(f"{path.name}.json")
    return PlanRequest(named, ranks)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise SettingsError(
            f"MODELPARALLEL_OBJECTS_TIMEOUT_S={text!r} is no number of seconds above 0",
            f"set it to such a number, or leave it out for {OBJECTS_TIMEOUT_S:g}",
        )
    return value


def _unknown(name: str) -> str:
    if name in KNOWN:
        return ""
    near = nearest(name, KNOWN)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(KNOWN)}"
    return f"{name} is no variable of muster_modelparallel and is ignored; {hint}"

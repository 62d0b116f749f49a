"""The variables of this package: MODELPARALLEL_*, read from an environment (pure).

A name that begins so and is not known is named once, with the nearest one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from muster_modelparallel.errors import SettingsError, nearest

PREFIX = "MODELPARALLEL_"
KNOWN: Mapping[str, str] = {
    "MODELPARALLEL_OBJECTS_TIMEOUT_S": "seconds that a rank waits for another one in broadcast, "
    "send, recv_from, allgather and the barriers",
}
OBJECTS_TIMEOUT_S = 600.0


class OwnVariables(NamedTuple):
    """What the environment says. `objects_timeout_s` in seconds; `notes` are to be said once."""

    objects_timeout_s: float
    notes: tuple[str, ...]


def read_variables(environ: Mapping[str, str]) -> OwnVariables:
    """Raises SettingsError for a value that cannot be used."""
    text = environ.get("MODELPARALLEL_OBJECTS_TIMEOUT_S", "").strip()
    notes = [_unknown(each) for each in sorted(environ) if each.startswith(PREFIX)]
    return OwnVariables(_seconds(text) if text else OBJECTS_TIMEOUT_S, tuple(filter(None, notes)))


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

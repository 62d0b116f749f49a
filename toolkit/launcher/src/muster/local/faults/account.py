"""The last word on the faults of a run: what landed, what the job said then, what is left of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from muster.local.faults.injector import Landing
from muster.types.names import counted, listed

SHOWN_FILES = 4
SHOWN_CHARACTERS = 160


def lines(
    reports: Sequence[Landing],
    outcome: Mapping[str, object] | None,
    exit_code: int,
    saved: Sequence[tuple[str, float]],
) -> list[str]:
    """A block for the screen.

    `outcome`: the event of that kind, None when no host came to it. `saved`: files and when each
    was written, in seconds since 1970.
    """  # fmt: skip
    found = ["faults:"]
    for report in reports:
        how = report.text if report.landed else f"did not land: {report.text}"
        found.append(f"  {report.spec}: {how}")
    landed = [report for report in reports if report.landed]
    said = str((outcome or {}).get("headline") or "").partition("\n")[0][:SHOWN_CHARACTERS]
    at = (outcome or {}).get("t")
    after = ""
    if landed and isinstance(at, (int, float)):
        after = f" {at - landed[0].t:.1f} s after the {'first ' * (len(reports) > 1)}fault"
    who = (outcome or {}).get("host", "the job")
    found.append(f"  {who} said{after}: {said}" if said else "  the job said nothing of a failure")
    found.append(f"  exit code {exit_code}")
    found.append(f"  {_saved(saved, landed)}")
    return found


def _saved(saved: Sequence[tuple[str, float]], landed: Sequence[Landing]) -> str:
    """Which checkpoints and models survived."""
    if not saved:
        return "no checkpoint and no model of this run is left"
    newest = max(time for _, time in saved)
    names = [name for name, _ in sorted(saved, key=lambda one: -one[1])]
    age = ""
    if landed:
        apart = newest - landed[0].time
        age = f", the newest {abs(apart):.1f} s {'after' if apart > 0 else 'before'} the fault"
    return f"left of this run: {listed(names, SHOWN_FILES)} ({counted(len(names), 'file')}{age})"


def saved_since(folders: Iterable[str], began: float) -> list[tuple[str, float]]:
    """Files below the folders, as `folder/name`, that were written since `began` (seconds since
    1970), with their times; what cannot be read is passed over."""
    found = []
    for folder in folders:
        for place, below, names in os.walk(folder):
            below.sort()
            for name in names:
                path = os.path.join(place, name)
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
                if status.st_mtime >= began:
                    shown = os.path.relpath(path, os.path.dirname(folder))
                    empty = "" if status.st_size else " (empty)"  # what a full disk leaves
                    found.append((shown + empty, status.st_mtime))
    return found

"""What hosts have recorded of a run so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from muster.types import events
from muster.types.run_files import EVENTS


def events_in(folder: Path) -> list[dict[str, Any]]:
    """All events of the hosts with a record in this folder, in the order of their times, without a
    line that is half there: its host still runs, or was killed."""
    files = folder.glob(f"*/{EVENTS}")
    lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return sorted(events, key=lambda event: float(event["t"]))


def unlike_the_table(folder: Path) -> list[str]:
    """What of a record is not in the table of events. The last line may be half there."""
    wrong = []
    for file in folder.glob(f"*/{EVENTS}"):
        if not file.is_file() or file.is_symlink():
            continue  # a test put it there
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                wrong += [f"{file}: {what}" for what in events.problems(json.loads(line))]
    return wrong

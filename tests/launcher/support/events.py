"""What hosts have recorded of a run so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def events_in(folder: Path) -> list[dict[str, Any]]:
    """All events of the hosts with a record in this folder, in the order of their times, without a
    line that is half there: its host still runs, or was killed."""
    files = folder.glob("*/events.jsonl")
    lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return sorted(events, key=lambda event: float(event["t"]))

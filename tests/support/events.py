"""What hosts have recorded of a run so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def events_in(folder: Path) -> list[dict[str, Any]]:
    """All events of the record in this folder as they were written, without a line that is half
    there: its host still runs, or was killed."""
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]

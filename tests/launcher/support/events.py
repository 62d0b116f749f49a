"""What hosts have recorded of a run so far, and the table of events that it is to be like.

The table is that of docs/reference/record.md: every kind, its fields, their types.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from muster.run.base.record import SCHEMA
from muster.types.run_files import EVENTS

TABLE = Path(__file__).parents[3] / "docs/reference/record.md"
RESERVED = " (reserved)"  # ends the meaning of a kind that nothing emits yet
_ROW = re.compile(r"^\| (?:\(all\)|`(\w*)`) \| (?:`(\w+)` )?\| (?:(\w+\??) )?\| (.+) \|$", re.M)
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "list": (list,),
    "object": (dict,),
}


class Row(NamedTuple):
    """A row of the table. `kind`: "" for all; `field`: "" where the row is about the kind itself.
    `type`: one of _TYPES, with `?` when the field may be null or absent."""

    kind: str
    field: str
    type: str
    meaning: str


@cache
def table() -> tuple[Row, ...]:
    """All rows, in their order."""
    text = TABLE.read_text().partition("## Events")[2].partition("## summary.json")[0]
    return tuple(Row(*match.groups(default="")) for match in _ROW.finditer(text))


def problems(event: dict[str, Any]) -> list[str]:
    """What the table does not know of one line of events.jsonl, in words; empty when it fits."""
    rows = [row for row in table() if row.kind in ("", event.get("kind"))]
    about = [row.meaning for row in rows if not row.field]
    if not about:
        return [f"kind {event.get('kind')!r} is not in the table"]
    if about[0].endswith(RESERVED):
        return [f"kind {event['kind']} is reserved"]
    known = {row.field: row.type for row in rows if row.field}
    found = [f"field {name} is not in the table" for name in event.keys() - known]
    for name, kind in known.items():
        value = event.get(name)
        if value is None and kind.endswith("?"):
            continue
        if type(value) not in _TYPES[kind.rstrip("?")]:
            found.append(f"{name} is {value!r}, expected {kind}")
    if event.get("schema") != SCHEMA:
        found.append(f"schema {event.get('schema')!r}, expected {SCHEMA}")
    return [f"{event['kind']}: {what}" for what in found]


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
                wrong += [f"{file}: {what}" for what in problems(json.loads(line))]
    return wrong

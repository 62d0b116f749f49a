"""What stub builds leave in the engine's build cache, and its removal: gigabytes that nobody uses
again, since each run has stubs of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from scripts.images.engine import Client

Record = Mapping[str, str]  # as the client prints it
# in the words of the steps that take something from a stub; all others are shared with real builds
STEPS = ("efa.sh", "/build/cuda-efa.txt", "neuron-key.sh", "neuron-venv.sh", "neuron.sh")


def forget(engine: Client, since: datetime) -> None:
    """Removes the stub steps that were made after `since`, and what stands on them; prints each.
    A record goes only when none stands on it, so it takes some passes, while there is progress."""
    mine = stub_records(_records(engine), since)
    while mine:
        for record in mine:
            engine.run("builder", "prune", "--all", "--force", f"--filter=id={_name(record)}")
        left = stub_records(_records(engine), since)
        kept = {_name(record) for record in left}
        gone = [record for record in mine if _name(record) not in kept]
        for record in gone:
            print(
                f"build cache {_name(record)} ({record['Size']}) removed: {record['Description']}"
            )
        mine = left if gone else []


def stub_records(records: Sequence[Record], since: datetime) -> list[Record]:
    """Those of the records, the newest first."""
    names = {
        _name(record)
        for record in records
        if _made(record) >= since and any(step in record["Description"] for step in STEPS)
    }
    # times do not order them: a step's record may be older than the one that it stands on
    while more := {_name(one) for one in records if one["Parent"] in names} - names:
        names |= more
    found = [record for record in records if _name(record) in names]
    return sorted(found, key=_made, reverse=True)


def _name(record: Record) -> str:
    return record["ID"].rstrip("*")  # the star: in use


def _made(record: Record) -> datetime:
    """The engine's clock, to a second: 2026-11-21 19:48:53.695294566 +0000 UTC."""
    text = record["CreatedAt"][:19]
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)


def _records(engine: Client) -> list[Record]:
    text = engine.must("system", "df", "--verbose", "--format={{json .BuildCache}}")
    return [record for record in json.loads(text) or [] if record["CreatedAt"]]

"""What a job has recorded so far, while it runs."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cluster import Cluster


def keep_record(job: Cluster) -> None:
    """Makes the hosts write one record, where the functions below read it."""
    job.environ["MUSTER_RUN_DIR"] = str(job.folder / "run")


def events(job: Cluster) -> list[dict[str, Any]]:
    """All events of all hosts as they were written, without a line that is half there."""
    file = job.folder / "run" / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def ended(job: Cluster) -> list[int]:
    """The ranks whose end was recorded, the first one first: hosts write at their own pace."""
    found = [event for event in events(job) if event["kind"] == "rank_ended"]
    return [event["rank"] for event in sorted(found, key=lambda event: float(event["t"]))]

"""What a job has recorded so far, while it runs: for tests, and for the scripts of its ranks."""

from __future__ import annotations

from typing import Any

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.events import events_in

# For scripts of a job whose record is kept. muster notes when an error came before it keeps the
# text, so whatever fails after `wait_shown` fails later, however slow the machine is.
WAIT_SHOWN = """\
def wait_recorded(name, *words):
    import os, sys, time
    from pathlib import Path
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for path in Path(os.environ["TEST_RUN_DIR"]).glob(name):
            with open(path) as file:
                if any(all(word in line for word in words) for line in file):
                    return
        time.sleep(0.002)
    sys.exit(f"never recorded in {name}: {words}")
def wait_shown(host, rank, text):
    wait_recorded(f"{host}/logs/rank-{rank}.err", text)
def wait_ended(rank):
    wait_recorded("*/events.jsonl", f'"rank": {rank},', '"rank_ended"')
"""


def keep_record(job: Cluster) -> None:
    """Makes the hosts write one record, where the functions below read it."""
    run = str(job.folder / "run")
    job.environ |= {"MUSTER_RUN_DIR": run, "TEST_RUN_DIR": run}  # ranks do not get the first


def events(job: Cluster) -> list[dict[str, Any]]:
    """All events of all hosts."""
    return events_in(job.folder / "run")


def ended(job: Cluster) -> list[int]:
    """The ranks whose end was recorded, the first one first: hosts write at their own pace."""
    found = [event for event in events(job) if event["kind"] == "rank_ended"]
    return [event["rank"] for event in sorted(found, key=lambda event: float(event["t"]))]

"""The record of a run: what its files and folders are called, and where it lies.

One layout everywhere, in a run folder as below `output/data` (docs/reference/record.md):
`summary.json`, and for each host a folder of its name with what is named here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.types.job import Job

RECORD = "muster"  # below output/data, where no run folder was named
SUMMARY = "summary.json"
# in the folder of a host
EVENTS = "events.jsonl"
LOGS = "logs"
STACKS = "stacks"
METRICS = "metrics"
COLLECTIVES = "collectives"
CONTROL = "control"  # a socket
DEBUGGER = "debugger"  # a socket of the rank that is debugged
OF_A_HOST = (EVENTS, LOGS, STACKS, METRICS, COLLECTIVES, CONTROL, DEBUGGER)


def record_folder(job: Job) -> str:
    """The run folder, else a place below the output that the platform uploads; "" for none."""
    if job.settings.run_dir:
        return job.settings.run_dir
    return "" if job.settings.record == "off" else os.path.join(job.paths.output_data, RECORD)


def host_folder(job: Job) -> str:
    """This host's folder in the record; "" for none."""
    folder = record_folder(job)
    return os.path.join(folder, job.cluster.me.name) if folder else ""

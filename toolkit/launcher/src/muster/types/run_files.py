"""The record of a run: what its files and folders are called, and where it lies.

One layout everywhere, in a run folder as below `output/data` (docs/reference/record.md):
`summary.json`, and for each host a folder of its name with what is named here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.types.environment import RUN_FACTS

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
COLLECTIVES_VARIABLES = ("COLLECTIVES_FLIGHT_DIR", "COLLECTIVES_SUMMARY_DIR")  # that name it
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


def of_an_outer_record(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that name a folder in the record of a job around this one."""
    if RUN_FACTS not in environ:
        return ()
    found = ((name, environ.get(name, "")) for name in COLLECTIVES_VARIABLES)
    return tuple(name for name, path in found if os.path.basename(path) == COLLECTIVES)

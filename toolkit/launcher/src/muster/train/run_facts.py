"""The file of the run's facts, which `muster.runtime` reads in ranks. No secret is in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from muster.plan.launchplan import LaunchPlan
from muster.types.environment import RUN_FACTS
from muster.types.files import write_private
from muster.types.job import Job
from muster.types.run_files import METRICS

NAME = "facts.json"
HOST_BYTES = 32 << 20  # of metrics; the rest of a host's 64 MiB is for events, stacks and calls
RANK_BYTES = 8 << 20


def write_facts(
    job: Job, plan: LaunchPlan, began: float, folder: str, record: str
) -> Mapping[str, str]:
    """The variable that names the file, for every rank of this host; none where the disk does not
    take it: scripts then do without. `began`: when this host began, seconds since the epoch;
    `folder`: a private one; `record`: of the run, or ""."""
    platform, me = job.platform, job.cluster.me
    limit_s = platform.max_runtime_s if platform is not None else None
    ranks = [slot.rank for slot in plan.ranks_of(me.host_index)]
    facts = {
        "schema": 1,
        "job": job.id,
        "host": me.name,
        "hosts": [host.name for host in job.cluster.hosts],
        "attempt": platform.attempt if platform is not None else None,
        "spot": platform.spot if platform is not None else None,
        "began": began,
        "deadline": began + limit_s if limit_s else None,
        "world_size": plan.world_size,
        "ranks": ranks,
        "metrics": os.path.join(record, me.name, METRICS) if record else "",
        "metrics_bytes": min(RANK_BYTES, HOST_BYTES // max(1, len(ranks))),
    }
    path = os.path.join(folder, NAME)
    try:
        write_private(path, json.dumps(facts))
    except OSError:
        return {}
    return {RUN_FACTS: path}

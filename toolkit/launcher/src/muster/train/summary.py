"""`summary.json`: what a run was and how it ended, for programs and later reports."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.types.files import write_whole
from muster.types.outcome import Failed, Outcome, Stopped
from muster.types.run_files import SUMMARY

if TYPE_CHECKING:
    from muster.run.job.context import Ending
    from muster.types.job import Job
    from muster.types.masking import Masker

SCHEMA = 1


def summary(job: Job, ending: Ending, toolkit: str) -> dict[str, object]:
    """The summary as a JSON object. Keys are only ever added; `schema` counts the others."""
    plan, ended = ending.plan, ending.ended
    figures = {
        (host, one.rank): dict(zip(one._fields[1:], one[1:], strict=True))
        for host, said in ended.items()
        if said.digest is not None
        for one in said.digest.ranks
    }
    slots = {} if plan is None else {slot.rank: slot for slot in plan.ranks}
    return {
        "schema": SCHEMA,
        "toolkit": toolkit,
        "job": job.id,
        "program": job.program,
        "option": job.distribution.option,
        "hosts": [
            {"name": h.name, "group": h.group, "leader": h == job.cluster.leader}
            for h in job.cluster.hosts
        ],
        "plan": None
        if plan is None
        else {
            "world_size": plan.world_size,
            "master_addr": plan.master_addr,
            "ports": dict(plan.ports),
            "digest": plan.digest if len(job.cluster.hosts) > 1 else "",
        },
        "outcome": outcome_fields(ending.outcome),
        "ranks": [
            {
                "rank": end.rank,
                "host": host,
                "local_rank": slots[end.rank].local_rank if end.rank in slots else None,
                "status": end.status,
                "seconds": end.duration_s,
                "stopped": end.stopped,
                "forced": end.forced,
                "figures": figures.get((host, end.rank)),
            }
            for end, host in sorted((end, host) for host, one in ended.items() for end in one.ranks)
        ],
        "figures_left_out": {
            host: one.digest.left_out
            for host, one in ended.items()
            if one.digest is not None and one.digest.left_out
        },
        "phases": {host: dict(one.phases) for host, one in ended.items()},
        "seconds": round(ending.duration_s, 3),
        "platform": None if job.platform is None else job.platform._asdict(),
    }


def outcome_fields(outcome: Outcome) -> Mapping[str, object]:
    """The outcome by field names."""
    fields: dict[str, object] = {
        "result": type(outcome).__name__,
        "exit_code": outcome.exit_code,
        "headline": outcome.headline,
    }
    if isinstance(outcome, Stopped):
        fields["by"] = outcome.by
    if isinstance(outcome, Failed):
        fields["fix"] = outcome.fix
        fields["also_failed"] = outcome.also_failed
        fields["stopped_ranks"] = outcome.stopped_ranks
        fields["first"] = None if outcome.first is None else outcome.first._asdict()
    return fields


def write_summary(folder: str, content: Mapping[str, object], masker: Masker) -> str:
    """Writes it whole or not at all; returns why it could not be written, or ""."""
    path = os.path.join(folder, SUMMARY)
    text = masker.mask(json.dumps(content, indent=2, default=str))
    try:
        os.makedirs(folder, exist_ok=True)
        write_whole(path, text + "\n")
    except OSError as error:
        return str(error)
    return ""

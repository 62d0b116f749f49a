"""What each host is given: arguments, variables, secret and code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence

from muster.contract.engines.hosts import HOSTS, INDEX, STOP_S
from muster.local import frames
from muster.local.frames import Sender
from muster.local.record import layout
from muster.local.record.runfolder import job_name
from muster.submit import folder
from muster.submit.arguments import run_arguments
from muster.submit.hosts.listed import FOLDER, Destination, in_the_job, leader_of
from muster.submit.hosts.records import MOST_BYTES
from muster.submit.values import Submission
from muster.types.deadlines import variable
from muster.types.files import read_text

ARCHIVE, OUTPUT = "code.tar.gz", "run"  # in the host's private folder


def stop_s(job: Submission) -> float:
    """How long ranks may take from a stop to their end."""
    return STOP_S if job.grace_s is None else job.grace_s


def of_host(job: Submission, hosts: Sequence[Destination], index: int) -> dict[str, object]:
    """The content of the frame REQUEST: all that must not stand on a command line. Files are named
    as they lie in the host's private folder, in which its `muster run` starts."""
    variables: Mapping[str, str] = {
        "MUSTER_ENGINE": "hosts",
        "MUSTER_JOB_NAME": job_name(os.path.basename(job.run)),
        "MUSTER_JOB_SECRET": read_text(os.path.join(job.run, layout.SECRET)).strip(),
        HOSTS: in_the_job(hosts),
        INDEX: str(index),
        variable("stop_total_s"): f"{stop_s(job):g}",
    }
    return {
        "host": hosts[index].name,
        "leader": leader_of(hosts) if index else "",
        "arguments": run_arguments(job.request, ARCHIVE, OUTPUT, layout.ENVIRON),
        "variables": variables,
        "environ": json.dumps(dict(job.request.environ)),
        "folder": job.settings.get(FOLDER, ""),
        "stop_s": stop_s(job),
        "most_bytes": MOST_BYTES,
    }


def give(
    job: Submission,
    hosts: Sequence[Destination],
    index: int,
    moved: Callable[[], object],
    to: Sender,
) -> None:
    """Sends request and code; `moved` is called as it goes on. Raises OSError."""
    to.tell(frames.REQUEST, **of_host(job, hosts, index))
    with open(folder.source(job.run), "rb") as code:
        while data := code.read(frames.MAX_BYTES):
            to.send(frames.CODE, data)
            moved()
    to.send(frames.CODE)

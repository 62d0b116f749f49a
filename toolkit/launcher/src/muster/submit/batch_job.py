"""A multi-node job of AWS Batch as the two requests that make it. Pure.

One definition with one range of nodes, all alike. The main node leads: Batch takes its exit code
for the job's, and ends the others when it ends.
"""

from __future__ import annotations

import json
from typing import Any

from muster.arguments import UsageError
from muster.contract.engines.batch import STOP_S
from muster.submit.arguments import code_elsewhere, run_arguments
from muster.submit.manifest_paths import Roots, change_all
from muster.submit.values import AGAIN, Submission
from muster.types.values import NamedTuple

SECRET = "MUSTER_JOB_SECRET"
MAX_HOSTS, MAX_ATTEMPTS = 1000, 10
MAX_OVERRIDES = 8192  # characters, as ECS counts what a task is told besides its definition
_NEEDED = {"queue": "the job queue", "vcpus": "processors of a node", "memory": "MiB of a node"}
_OWN = (*_NEEDED, "gpus", "secret")
# of what is made, what a job cannot do without: see `change_all`
_KEPT = {
    "container.environment": "name",
    "container.secrets": "name",
    "container.resourceRequirements": "type",
}
_DECIDED = {
    "container.image": "use --image",
    "container.command": "leave it out",
    "definition.jobDefinitionName": "use --name",
    "definition.nodeProperties.numNodes": "use --hosts N",
    "definition.nodeProperties.mainNode": "leave it out: the main node leads",
    "job.jobName": "use --name",
    "job.jobQueue": "use --set queue=NAME",
}


class Requests(NamedTuple):
    """`definition`: for RegisterJobDefinition. `job`: for SubmitJob, less the definition's name and
    the variables that nobody is to read on a screen."""

    definition: dict[str, Any]
    job: dict[str, Any]


def check(job: Submission) -> None:
    """Raises UsageError for what Batch cannot run, or what muster decides."""
    if not job.image:
        raise UsageError("--image is missing: nodes run an image that has muster", "--image IMAGE")
    if job.kind:
        raise UsageError(f"--kind {job.kind}: Batch has one kind of job", "leave it out")
    if not code_elsewhere(job.request.source_dir):
        raise UsageError(
            "Batch hands no code to nodes",
            "have it in the image (--source-dir image:/opt/ml/code) or at S3 (--source-dir "
            "s3://BUCKET/CODE.tar.gz)",
        )
    for name, what in _NEEDED.items():
        if not job.settings.get(name):
            raise UsageError(f"--set {name}=VALUE is missing: {what}", f"--set {name}=...")
    for name in ("vcpus", "memory", "gpus"):
        text = job.settings.get(name, "1")
        if not (text.isascii() and text.isdecimal() and int(text)):
            raise UsageError(f"--set {name}={text}: not a whole number above 0")
    for path in job.settings:
        if path in _DECIDED:
            raise UsageError(f"--set {path}: muster decides it", _DECIDED[path])
    if job.request.hosts > MAX_HOSTS:
        raise UsageError(f"--hosts {job.request.hosts}: a job of Batch has at most {MAX_HOSTS}")
    if job.retries >= MAX_ATTEMPTS:
        what = f"--retries {job.retries}: Batch begins a job at most {MAX_ATTEMPTS} times"
        raise UsageError(what, f"--retries {MAX_ATTEMPTS - 1}")
    folders = {f"--channel {name}": folder for name, folder in job.request.channels.items()}
    folders |= {"--checkpoint": job.request.checkpoint} if job.request.checkpoint else {}
    for option, folder in folders.items():
        if not folder.startswith("/"):
            fix = "mount it by --set container.volumes and container.mountPoints, and name it here"
            raise UsageError(f"{option}: {folder!r} is no folder of a node's container", fix)
    told = pairs({**job.request.environ, SECRET: "0" * 64})
    if len(json.dumps(told, separators=(",", ":"))) > MAX_OVERRIDES:
        raise UsageError(
            f"--env: names and values are more than the {MAX_OVERRIDES} characters that ECS takes",
            "have large ones in the image, in a file or in Secrets Manager (container.secrets)",
        )
    requests(job)


def requests(job: Submission) -> Requests:
    """What to ask for. Raises UsageError for settings that are none."""
    hosts, settings = job.request.hosts, job.settings
    grace_s = STOP_S if job.grace_s is None else job.grace_s
    words = run_arguments(job.request, code_elsewhere(job.request.source_dir))
    amounts = {"VCPU": "vcpus", "MEMORY": "memory", "GPU": "gpus"}
    environ = {"MUSTER_ENGINE": "batch", "MUSTER_STOP_TOTAL_S": f"{grace_s:g}"}
    container: dict[str, Any] = {
        "image": job.image,
        "command": ["muster", "run", *words],
        "environment": pairs(environ),
        "resourceRequirements": [
            {"type": kind, "value": settings[name]}
            for kind, name in amounts.items()
            if name in settings
        ],
        # else 64 MiB, of which NCCL and data loaders soon have too little
        "linuxParameters": {"sharedMemorySize": max(1, int(settings["memory"]) // 2)},
    }
    if settings.get("secret"):
        container["secrets"] = [{"name": SECRET, "valueFrom": settings["secret"]}]
    definition: dict[str, Any] = {
        "jobDefinitionName": f"muster-{job.name}",
        "type": "multinode",
        "nodeProperties": {
            "numNodes": hosts,
            "mainNode": 0,
            "nodeRangeProperties": [{"targetNodes": f"0:{hosts - 1}", "container": container}],
        },
        "retryStrategy": retry_strategy(job.retries),
    }
    asked: dict[str, Any] = {"jobName": job.name, "jobQueue": settings["queue"]}
    roots: Roots = {"definition": {"definition": definition}, "job": {"job": asked}}
    roots["container"] = {"container": container}
    changes = {path: value for path, value in settings.items() if path not in _OWN}
    change_all(roots, changes, _KEPT)
    return Requests(definition, asked)


def retry_strategy(retries: int) -> dict[str, Any]:
    """By the main node's exit code, which is the job's: the first rule that fits counts, and there
    may be five. Without the last one everything would be tried again."""
    again = [{"onExitCode": str(code), "action": "RETRY"} for code in sorted(AGAIN)]
    lost = {"onStatusReason": "Host EC2*", "action": "RETRY"}
    rules = [lost, *again, {"onReason": "*", "action": "EXIT"}]
    return {"attempts": retries + 1, "evaluateOnExit": rules}


def pairs(environ: dict[str, str]) -> list[dict[str, str]]:
    """Variables as Batch writes them."""
    return [{"name": name, "value": value} for name, value in environ.items()]

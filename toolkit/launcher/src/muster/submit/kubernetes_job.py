"""A job of Kubernetes as the objects that make it. Pure.

A Secret has what nobody else is to read, a ConfigMap the packed code, and one volume shows both to
the pods. Pods find one another by a headless Service; of the leader all know the name, and the
others prove by the secret that they belong to the job. Everything has one name and one label.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from typing import Any

from muster.arguments import UsageError
from muster.contract.engines.kubernetes import STOP_S
from muster.local.record.layout import ENVIRON, SECRET  # the Secret has them by these names
from muster.local.request import Request
from muster.submit.arguments import code_elsewhere, run_arguments
from muster.submit.manifest_paths import Roots, change_all
from muster.submit.values import AGAIN, Submission
from muster.types.names import TYPED, did_you_mean, listed
from muster.types.values import NamedTuple

KINDS = {
    "job": "jobs.batch",
    "jobset": "jobsets.jobset.x-k8s.io",
    "trainjob": "trainjobs.trainer.kubeflow.org",
}
INSTANCE = "app.kubernetes.io/instance"
MAX_CODE_BYTES = 900 << 10  # of the 1 MiB that an object may have, where base64 does not count
MARGIN_S = 5  # from the end of the ranks' time to SIGKILL
# in place of secrets, which are nowhere printed; too short for one, so that a document which
# somebody applies as it is never starts
LEFT_OUT = "set by muster"
TOLD, BASE = "/etc/muster", "/opt/ml"
CODE = "source.tar.gz"
RUNTIME = "torch-distributed"
_MAX_LABEL = 63
_CLAIM = re.compile(r"pvc:(?P<claim>[a-z0-9][a-z0-9.-]*)(/(?P<path>.+))?")
_TTL, LEAST_TTL_S = "spec.ttlSecondsAfterFinished", 60
# of `--set`: what would contradict what the hosts are told, or has an option
_DECIDED = {
    "metadata.name": "use --name",
    "container.image": "use --image",
    **dict.fromkeys(("spec.completions", "spec.parallelism", "spec.trainer.numNodes"), "--hosts N"),
    **dict.fromkeys(("spec.completionMode", "container.command", "container.args"), "leave it out"),
    "pod.terminationGracePeriodSeconds": "use --grace SECONDS",
}


# of what is made, what a job cannot do without: see `change_all`
_OWN = {
    "metadata.labels": "",
    "pod.containers": "name",
    "pod.volumes": "name",
    "container.env": "name",
    "container.volumeMounts": "mountPath",
    "spec.trainer.env": "name",
}
_INNER = "replicatedJobs[0].template.spec.template"
_TEMPLATES = {  # of the pods
    "job": "spec.template",
    "jobset": f"spec.{_INNER}",
    "trainjob": f"spec.runtimePatches[0].trainingRuntimeSpec.template.spec.{_INNER}",
}


class Mounted(NamedTuple):
    """A folder of the pods: a claim's, or "" for one that they have. `readonly`: of a claim."""

    path: str
    claim: str = ""
    below: str = ""
    readonly: bool = False


def check(job: Submission) -> None:
    """Raises UsageError for what no cluster could run, or what muster decides."""
    if not job.image:
        raise UsageError("--image is missing: pods run an image that has muster", "--image IMAGE")
    if job.kind not in ("", *KINDS):
        guess = did_you_mean(job.kind, KINDS, likeness=TYPED)
        raise UsageError(f"--kind {job.kind}: no such kind of job{guess}", f"{listed(KINDS)}")
    for path in job.settings:
        if path in _DECIDED:
            raise UsageError(f"--set {path}: muster decides it", _DECIDED[path])
    ttl = job.settings.get(_TTL, "")
    if ttl.isdecimal() and int(ttl) < LEAST_TTL_S:
        why = f"--set {_TTL}={ttl}: how the job ended would be gone before anybody asks"
        raise UsageError(why, f"give it {LEAST_TTL_S} s or more")
    objects(job, b"")


def refuse_large(size_bytes: int) -> None:
    """Raises UsageError for packed code that a ConfigMap cannot hold."""
    if size_bytes > MAX_CODE_BYTES:
        raise UsageError(
            f"the packed code is larger than {MAX_CODE_BYTES >> 10} KiB, the most that a ConfigMap "
            "takes",
            "name what is no code in .musterignore, or have it in the image (--source-dir "
            "image:/srv/code) or at S3 (--source-dir s3://BUCKET/CODE.tar.gz)",
        )


def object_name(job: Submission) -> str:
    """Of all that is made: the job's name and its mark, so that pods have labels of DNS for their
    names."""
    longest = _pod_name(job, "", job.request.hosts - 1).partition(".")[0]
    if job.kind not in ("", "job"):
        longest += "-abcde"  # JobSet measures a pod's whole name, not its host name
    room = _MAX_LABEL - len(longest) - len(job.mark) - 1
    return f"{job.name[:room].rstrip('-')}-{job.mark}"


def objects(job: Submission, code: bytes) -> list[dict[str, Any]]:
    """All of them, the Secret first and the job last. `code`: packed, b"" where the pods have it
    elsewhere. Raises UsageError for settings and folders that cannot be."""
    name = object_name(job)
    labels = {
        "app.kubernetes.io/name": job.name,
        INSTANCE: name,
        "app.kubernetes.io/managed-by": "muster",
    }
    secret = dict.fromkeys((SECRET, *([ENVIRON] * bool(job.request.environ))), LEFT_OUT)
    made: list[dict[str, Any]] = [_object("v1", "Secret", stringData=secret, type="Opaque")]
    if code:
        packed = {CODE: base64.b64encode(code).decode()}
        made.append(_object("v1", "ConfigMap", binaryData=packed))
    kind = job.kind or "job"
    if kind == "job":  # the others make theirs by themselves
        service = {
            "clusterIP": "None",
            "selector": {INSTANCE: name},
            "publishNotReadyAddresses": True,  # hosts find one another before they are ready
        }
        made.append(_object("v1", "Service", spec=service))
    main, pod, container = _MAKERS[kind](job, name, labels, bool(code))
    made.append(main)
    for one in made:
        one["metadata"] = {"name": name, "labels": dict(labels)}
    roots: Roots = {"metadata": main, "spec": main, "pod": {"pod": pod}}
    roots["container"] = {"container": container}
    change_all(roots, job.settings, {**_OWN, f"{_TEMPLATES[kind]}.metadata.labels": ""})
    if pod.get("hostNetwork") is True:  # else names are asked of the node's servers
        pod.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    if space := main["metadata"].get("namespace"):
        for one in made:
            one["metadata"]["namespace"] = space
    return made


def folder_of(text: str, option: str, at: str, readonly: bool = False) -> Mounted:
    """A folder of the pods as an option names it: a path there, or pvc:CLAIM[/FOLDER], which is
    mounted at `at`. Raises UsageError."""
    if text.startswith("/"):
        return Mounted(text)
    found = _CLAIM.fullmatch(text)
    below = (found["path"] or "").strip("/") if found else ""
    if not found or ".." in below.split("/"):
        fix = "write a folder of the pods, /data/train, or of a claim, pvc:CLAIM/train"
        raise UsageError(f"{option}: {text!r} is no folder in a pod", fix)
    return Mounted(at, found["claim"], below, readonly)


def inner_name(kind: str, name: str) -> str:
    """Of the Indexed Job that makes the pods."""
    return name + {"jobset": "-hosts-0", "trainjob": "-node-0"}.get(kind, "")


def _pod_name(job: Submission, name: str, index: int) -> str:
    """As all pods of the job resolve it."""
    return f"{inner_name(job.kind, name)}-{index}.{name}"


def _object(version: str, kind: str, **fields: object) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, **fields}


def _indexed_job(
    job: Submission, name: str, labels: Mapping[str, str], code: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(the job, its pods' spec, their container), as all makers return them.

    Kubernetes gives each pod an index, a host name and a name of DNS below the service's.
    """
    container = _container(job, name, code)
    pod = {"subdomain": name, **_pod(job, name, code, container)}
    hosts = job.request.hosts
    # a host that is lost ends all pods with the same code, and each of them counts
    spec = {
        "completions": hosts,
        "parallelism": hosts,
        "completionMode": "Indexed",
        "backoffLimit": job.retries * hosts,
        "podFailurePolicy": _failure_policy(),
        "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
    }
    return _object("batch/v1", "Job", spec=spec), pod, container


def _job_set(
    job: Submission, name: str, labels: Mapping[str, str], code: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """All pods begin again together, by JobSet's own restarts.

    The job inside never retries by itself: it fails, by its policy or by its first pod that ends
    with a code worth a retry, and JobSet tells the two apart by the reason.
    """
    main, pod, container = _indexed_job(job, name, labels, code)
    del pod["subdomain"]  # JobSet's, as the service is
    inner = {**main["spec"], "backoffLimit": 0}
    rule = {
        "name": "noRetry",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    spec = {
        "failurePolicy": {"maxRestarts": job.retries, "rules": [rule]},
        "replicatedJobs": [{"name": "hosts", "replicas": 1, "template": {"spec": inner}}],
    }
    return _object("jobset.x-k8s.io/v1alpha2", "JobSet", spec=spec), pod, container


def _train_job(
    job: Submission, name: str, labels: Mapping[str, str], code: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The cluster's runtime has the pods' template and decides on retries: this patches it.

    A patch may add volumes, mounts and variables; the runtime's replicated job and container are
    both called `node`, and it sets PET_NNODES and the like, by which `muster run` knows its place.
    """
    whole = _container(job, name, code)
    container = {"name": "node", "volumeMounts": whole["volumeMounts"]}
    kept = ("terminationGracePeriodSeconds", "volumes")
    pod = {key: value for key, value in _pod(job, name, code, container).items() if key in kept}
    pod["containers"] = [container]
    template = {"metadata": {"labels": dict(labels)}, "spec": pod}
    patched = {"name": "node", "template": {"spec": {"template": template}}}
    patch = {
        "manager": "muster.submit/command",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patched]}}},
    }
    given = {key: whole[key] for key in ("image", "command", "args")}
    # of a host, the runtime sets MASTER_ADDR and the like; muster needs no more than these
    apart = ("MUSTER_HOST_COUNT", "MUSTER_LEADER")
    environ = [one for one in whole["env"] if one["name"] not in apart]
    spec = {
        "runtimeRef": {"name": RUNTIME},
        "trainer": {"numNodes": job.request.hosts, **given, "env": environ},
        "runtimePatches": [patch],
    }
    return _object("trainer.kubeflow.org/v1alpha1", "TrainJob", spec=spec), pod, container


_MAKERS = {"job": _indexed_job, "jobset": _job_set, "trainjob": _train_job}


def _failure_policy() -> dict[str, Any]:
    """The table of docs/reference/exit-codes.md: the first rule that fits a failed pod counts.

    A pod that was evicted is made anew for nothing; a code that no retry helps ends the job, and
    any other one counts against `backoffLimit`.
    """
    codes = {"containerName": "muster", "operator": "NotIn", "values": sorted(AGAIN)}
    disrupted = {"type": "DisruptionTarget", "status": "True"}  # drained or preempted
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [disrupted]},
            # the schemas of 1.28 and before ask for conditions in every rule
            {"action": "FailJob", "onExitCodes": codes, "onPodConditions": []},
        ]
    }


def _pod(job: Submission, name: str, code: bool, container: dict[str, Any]) -> dict[str, Any]:
    """The pods' spec; what is mounted is the last of the container to be made."""
    grace_s = STOP_S if job.grace_s is None else job.grace_s
    told: list[dict[str, Any]] = [{"secret": {"name": name}}]
    if code:
        told.append({"configMap": {"name": name}})
    volumes = [
        {"name": "muster", "projected": {"sources": told, "defaultMode": 0o444}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [
        {"name": "muster", "mountPath": TOLD, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if not f"{code_elsewhere(job.request.source_dir)}/".startswith(f"{BASE}/"):
        # so that an image needs none that can be written, nor a root file system that can be
        volumes.append({"name": "base", "emptyDir": {}})
        mounts.append({"name": "base", "mountPath": BASE})
    claims: dict[str, str] = {}
    for one in (*_channels(job.request).values(), *_checkpoint(job.request)):
        if not one.claim:
            continue
        volume = claims.setdefault(one.claim, f"claim-{len(claims)}")
        mount: dict[str, Any] = {"name": volume, "mountPath": one.path}
        mounts.append(
            mount
            | ({"subPath": one.below} if one.below else {})
            | ({"readOnly": True} if one.readonly else {})
        )
    for claim, volume in claims.items():
        volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": claim}})
    container["volumeMounts"] = mounts
    return {
        "restartPolicy": "Never",  # podFailurePolicy needs it
        "terminationGracePeriodSeconds": math.ceil(grace_s) + MARGIN_S,
        "enableServiceLinks": False,  # variables of a service that is called muster-...
        "automountServiceAccountToken": False,  # a script needs no right to the cluster
        "volumes": volumes,
        "containers": [container],
    }


def _container(job: Submission, name: str, code: bool) -> dict[str, Any]:
    """`muster run` as PID 1, so that the kubelet's SIGTERM reaches it.

    The leader is named although `muster run` would find it in /etc/hosts: in pods with the node's
    network (`hostNetwork`) that file is the node's. Of a failure before `train` has begun, such as
    a wrong option, the kubelet shows the end of the log.
    """
    grace_s = STOP_S if job.grace_s is None else job.grace_s
    environ = {
        "MUSTER_ENGINE": "kubernetes",
        "MUSTER_HOST_COUNT": str(job.request.hosts),
        "MUSTER_LEADER": _pod_name(job, name, 0),
        "MUSTER_JOB_SECRET_FILE": f"{TOLD}/{SECRET}",
        "MUSTER_STOP_TOTAL_S": f"{grace_s:g}",
    }
    request = job.request._replace(
        channels={key: one.path for key, one in _channels(job.request).items()},
        checkpoint=next((one.path for one in _checkpoint(job.request)), None),
    )
    source = f"{TOLD}/{CODE}"
    words = ["run", *run_arguments(request, source, environ=f"{TOLD}/{ENVIRON}")]
    return {
        "name": "muster",
        "image": job.image,
        "command": ["muster"],
        "args": [word.replace("$", "$$") for word in words],  # else $(NAME) is a variable's value
        "env": [{"name": key, "value": value} for key, value in environ.items()],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [],
    }


def _channels(request: Request) -> dict[str, Mounted]:
    """Where the pods have each channel. Raises UsageError."""
    return {
        name: folder_of(text, f"--channel {name}", f"/mnt/channels/{name}", readonly=True)
        for name, text in request.channels.items()
    }


def _checkpoint(request: Request) -> list[Mounted]:
    """Where the pods have the folder that outlives them, if there is one. Raises UsageError."""
    if not request.checkpoint:
        return []
    return [folder_of(request.checkpoint, "--checkpoint", "/mnt/checkpoint")]

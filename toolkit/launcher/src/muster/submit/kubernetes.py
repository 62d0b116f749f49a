"""Jobs of Kubernetes by kubectl, in the user's own context and namespace.

Both are kept with the job, so that it is found again when the user has moved on to others. Names of
what was made need not be kept: one label has them all.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from typing import Any

from muster.arguments import UsageError, tell
from muster.local import preparation
from muster.local.record.layout import KUBERNETES_OBJECTS
from muster.submit import client, folder, kubernetes_job
from muster.submit.arguments import code_elsewhere
from muster.submit.kubernetes_job import INSTANCE, KINDS, inner_name
from muster.submit.kubernetes_logs import PodLogs
from muster.submit.values import (
    AGAIN,
    LOST,
    QUEUED,
    RUNNING,
    JobOutput,
    JobState,
    Submission,
    Submitted,
)
from muster.types.errors import FAILED, STOPPED, STOPPED_EXIT_CODE, SUCCEEDED

__all__ = ["cancel", "check", "hand_over", "inside", "let_end", "output", "render", "state", "tidy"]

KILLED = 128 + 9
_BEGIN = "---\n"  # of a document
INDEX = "batch.kubernetes.io/job-completion-index"
_SUCCEEDED, _FAILED = ("Complete", "Completed"), ("Failed",)
_WARNING = "Warning: "  # of the cluster, which kubectl prints before what went wrong
# of a job that its failure policy ended; it is still there when the pod is gone with its node
_ENDED_BY = re.compile(r"failed with exit code (\d+) matching FailJob rule")
_FOUND = '{.kind}{" "}{.metadata.namespace}{" "}{.metadata.uid}{" "}{.apiVersion}{"\\n"}'


def check(job: Submission) -> None:
    """See `SubmitTarget`."""
    kubernetes_job.check(job)
    packed(job)


def render(job: Submission) -> str:
    """The objects as documents of YAML (of one List kubectl lets the cluster judge less), with the
    packed code and without secrets. Raises UsageError for code that a ConfigMap cannot hold."""
    return in_yaml(kubernetes_job.objects(job, packed(job)))


def in_yaml(objects: list[dict[str, Any]]) -> str:
    """A document each, in JSON, which is YAML."""
    return "".join(f"{_BEGIN}{json.dumps(one, indent=1)}\n" for one in objects)


def packed(job: Submission) -> bytes:
    """The code, b"" where the pods have it elsewhere. Raises UsageError."""
    if code_elsewhere(job.request.source_dir):
        return b""
    with tempfile.TemporaryDirectory(prefix="muster-submit-") as place:
        archive = os.path.join(place, kubernetes_job.CODE)

        def check_size() -> None:
            if os.path.exists(archive):
                kubernetes_job.refuse_large(os.path.getsize(archive))

        left_out = (job.run, *filter(None, [job.request.checkpoint]))
        try:
            preparation.pack_into(job.request, archive, left_out, check_size)
            check_size()
            with open(archive, "rb") as file:
                return file.read()
        except OSError as error:
            raise UsageError(f"the code cannot be packed: {error.strerror}") from None


def hand_over(job: Submission, text: str) -> Submitted:
    """Has the cluster judge the whole document, then make it. What was made before an error is
    deleted again.

    Secrets are put in only now, and go to kubectl by stdin: they are on no command line and in no
    file but the run folder's own of mode 600.
    """
    folder.write_private(os.path.join(job.run, KUBERNETES_OBJECTS), text)
    objects = [json.loads(one) for one in text.split(_BEGIN)[1:]]
    told, main = objects[0]["stringData"], objects[-1]
    for key in told:  # the run folder has files of the same names
        with open(os.path.join(job.run, key), encoding="utf-8") as file:
            told[key] = file.read().strip()
    name, space = main["metadata"]["name"], main["metadata"].get("namespace", "")
    # no run: in a pod muster finds its only one
    where = {"kind": job.kind or "job", "run": "", "namespace": space}
    code, out, _ = client.outcome(["kubectl", "config", "current-context"])
    if not code and out.strip():  # in a pod there is none
        where["context"] = out.strip()
    submitted = Submitted("kubernetes", name, job.name, job.request.hosts, job.run, where)
    whole = in_yaml(objects)
    create = [*_kubectl(submitted, "create"), "-f", "-"]
    _try(create, whole)
    try:
        made = client.answer([*create, "-o", f"jsonpath={_FOUND}"], whole)
        rows = [line.split() for line in made.splitlines()]
        _, space, uid, version = next(row for row in rows if row and row[0] == main["kind"])
        submitted = submitted._replace(where={**where, "namespace": space})
        owner = {"apiVersion": version, "kind": main["kind"], "name": name, "uid": uid}
        _own(submitted, [one["kind"] for one in objects[:-1]], owner)
    except BaseException as error:
        if said := _quietly(_deletion(submitted)):
            tell(f"muster submit: what was made of {name} may be there still: {said}\n")
        if isinstance(error, (StopIteration, ValueError)):
            raise UsageError(f"kubectl create: it made no {main['kind']}") from None
        raise
    return submitted


def state(job: Submitted) -> JobState:
    """What the job's conditions say; its exit code is the failed pods'."""
    found = _items(job, f"{KINDS[job.where['kind']]},pods")
    pods = [one for one in found if one.get("kind") == "Pod"]
    jobs = [one for one in found if one.get("kind") != "Pod"]
    if not jobs:
        return JobState(LOST, None, "the cluster has no such job")
    status = jobs[0].get("status", {})
    conditions = {
        one["type"]: one for one in status.get("conditions", []) if one.get("status") == "True"
    }
    if any(name in conditions for name in _SUCCEEDED):
        return JobState(SUCCEEDED, 0)
    for name in _FAILED:
        if name in conditions:
            ended = _ENDED_BY.search(str(conditions[name].get("message", "")))
            code = int(ended[1]) if ended else exit_code(pods, _container(job))
            why = str(conditions[name].get("reason", ""))
            return JobState(STOPPED if code == STOPPED_EXIT_CODE else FAILED, code, why)
    if jobs[0]["metadata"].get("deletionTimestamp"):
        return JobState(RUNNING, None, "it is being deleted")
    if "Suspended" in conditions:
        return JobState(QUEUED, None, "Suspended")
    if any(pod.get("status", {}).get("phase") == "Running" for pod in pods):
        return JobState(RUNNING, None, _waits_for(job, pods))
    return JobState(QUEUED, None, _waits_for(job, pods))


def exit_code(pods: list[dict[str, Any]], container: str) -> int | None:
    """The first that a retry does not help, since it ends the job, else the last one. Of each host
    its last pod counts: earlier ones are of attempts that began again.

    Once a job has failed the cluster ends the other pods: with 143, or 137 at the end of their
    grace period. Neither is the job's code while there is another.
    """
    last: dict[str, tuple[str, int]] = {}
    for place, pod in enumerate(pods):
        host = pod.get("metadata", {}).get("annotations", {}).get(INDEX, f"pod {place}")
        for one in pod.get("status", {}).get("containerStatuses", []):
            ended = one.get("state", {}).get("terminated")
            if ended and one.get("name") == container:
                end = str(ended.get("finishedAt", "")), int(ended.get("exitCode") or 0)
                last[host] = max(last.get(host, end), end)
    ends = sorted(end for end in last.values() if end[1])
    final = [code for _, code in ends if code not in (*AGAIN, KILLED)]
    if final:
        return final[0]
    ends.sort(key=lambda end: (end[1] != KILLED, end[1] not in (KILLED, STOPPED_EXIT_CODE)))
    return ends[-1][1] if ends else None


def _waits_for(job: Submitted, pods: list[dict[str, Any]]) -> str:
    """Why the first pod that is to run does not; of none at all, why there is none. Reasons without
    a message, such as ContainerCreating, are the last choice."""
    if not pods:
        return _warned(job, "Job", inner_name(job.where["kind"], job.job_id))
    plain = ""
    for pod in pods:
        status = pod.get("status", {})
        if status.get("phase") != "Pending":
            continue
        waits = [one.get("state", {}).get("waiting", {}) for one in _of_containers(status)]
        waits += [one for one in status.get("conditions", []) if one.get("type") == "PodScheduled"]
        for one in waits:
            if one.get("reason") and one.get("message"):
                return client.in_a_sentence(f"{one['reason']} {one['message']}")
            plain = plain or str(one.get("reason") or "")
        if warned := _warned(job, "Pod", pod["metadata"]["name"]):
            return warned
    return plain


def _of_containers(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]


def _warned(job: Submitted, kind: str, name: str) -> str:
    """The last warning about an object: of a quota, a policy or a mount no status tells. "" without
    one, or without the right to see it."""
    about = f"--field-selector=type=Warning,involvedObject.kind={kind},involvedObject.name={name}"
    try:
        code, out, _ = client.outcome([*_kubectl(job, "get"), "events", about, "-o", "json"])
        found = [] if code else json.loads(out)["items"]
        found.sort(key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
        return client.in_a_sentence(f"{found[-1]['reason']} {found[-1]['message']}")
    except (UsageError, LookupError, ValueError, TypeError):
        return ""


def cancel(job: Submitted) -> None:
    """Deletes the job, and what was made with it. Pods get SIGTERM and the grace period."""
    client.answer(_deletion(job))
    folder.keep_code(job, STOPPED_EXIT_CODE)


def tidy(job: Submitted) -> None:
    """Deletes the job, and what was made with it."""
    client.answer(_deletion(job))


def let_end(job: Submitted) -> None:
    """For Kubernetes 143 is worth another attempt. How often a Job begins again can be changed
    while it runs, which of the other kinds cannot be said: to the failures that it has had, since a
    Job with more ends at once. Without the right to, it is stopped all the same."""
    why = ""
    if job.where["kind"] == "job":
        failed = sum(one.get("status", {}).get("failed", 0) for one in _items(job, KINDS["job"]))
        once = json.dumps({"spec": {"backoffLimit": failed}})
        patch = [*_kubectl(job, "patch"), f"job/{job.job_id}", "--type=merge", "-p", once]
        if not (why := _quietly(patch)):
            return
        why = f" ({why})"
    tell(f"muster stop: the job may begin again{why}; muster submit --cancel {job.run} ends it\n")


def output(job: Submitted) -> JobOutput:
    """The logs of all pods, line by line."""
    pods = [*_kubectl(job, "get"), "pods", "-l", f"{INSTANCE}={job.job_id}", "-o", "json"]
    return PodLogs(pods, [*_kubectl(job, "logs"), f"--container={_container(job)}", "--follow"])


def inside(job: Submitted) -> list[str]:
    """`kubectl exec` in the pod of index 0. Raises UsageError where it does not run."""
    for pod in _items(job, "pods"):
        about = pod["metadata"]
        first = about.get("annotations", {}).get(INDEX) == "0"
        if first and pod.get("status", {}).get("phase") == "Running":
            into = [about["name"], f"--container={_container(job)}"]
            return [*_kubectl(job, "exec"), *into, "--", "muster"]
    raise UsageError(
        f"no pod of {job.job_id} with index 0 runs", f"muster submit --status {job.run}"
    )


def _container(job: Submitted) -> str:
    """Ours, beside which a cluster may put others. A TrainJob has its runtime's."""
    return "node" if job.where["kind"] == "trainjob" else "muster"


def _kubectl(job: Submitted, verb: str) -> list[str]:
    """kubectl where the job is. The verb comes first: errors are named by it."""
    where = ("context", "namespace")
    return ["kubectl", verb, *(f"--{key}={job.where[key]}" for key in where if job.where.get(key))]


def _items(job: Submitted, kinds: str) -> list[dict[str, Any]]:
    """What the cluster has of the job. Raises UsageError."""
    asked = [*_kubectl(job, "get"), kinds, "-l", f"{INSTANCE}={job.job_id}", "-o", "json"]
    try:
        return list(json.loads(client.answer(asked))["items"])
    except (ValueError, KeyError, TypeError):
        raise UsageError("kubectl get: the answer is no list") from None


def _try(create: list[str], document: str) -> None:
    """Raises UsageError, in the cluster's words, for what it would not take; then nothing of it is
    there."""
    code, out, err = client.outcome([*create, "--dry-run=server", "-o", "name"], document)
    lines = err.splitlines()
    for line in [line for line in lines if line.startswith(_WARNING)]:  # of a policy on pods
        tell(f"muster submit: kubectl create: {client.in_a_sentence(line)}\n")
    rest = "\n".join(line for line in lines if not line.startswith(_WARNING))
    said = client.in_a_sentence(rest or out)
    if code and "does not support dry run" not in said:  # a hook of the cluster
        old = "podFailurePolicy" in err
        fix = "before Kubernetes 1.26: --retries 0 --set spec.podFailurePolicy=null" if old else ""
        raise UsageError(f"kubectl create: {said}", fix)


def _own(job: Submitted, kinds: list[str], owner: dict[str, str]) -> None:
    """Makes the rest go when the job goes, however it does. Without the right to, labels tell
    --cancel what else there is."""
    rest = [f"{kind.lower()}/{job.job_id}" for kind in kinds]
    patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
    argv = [*_kubectl(job, "patch"), *rest, "--type=merge", "-p", patch]
    if said := _quietly(argv):
        tell(f"muster submit: {', '.join(rest)} stay until --cancel: {said}\n")


def _deletion(job: Submitted) -> list[str]:
    """Deletes by the label, also what is owned by nobody. In the foreground: the job is gone when
    its pods are, and until then --status says that it is being deleted."""
    kinds = f"{KINDS[job.where['kind']]},services,secrets,configmaps"
    argv = [*_kubectl(job, "delete"), kinds, "-l", f"{INSTANCE}={job.job_id}"]
    return [*argv, "--cascade=foreground", "--wait=false"]


def _quietly(argv: list[str]) -> str:
    """What went wrong, or ""."""
    try:
        code, out, err = client.outcome(argv)
    except UsageError as error:
        return str(error)
    return client.in_a_sentence(err or out) if code else ""

"""Jobs of AWS Batch by boto3, which is an extra and imported here only.

Batch knows a job by one id, and its nodes by `ID#0`, `ID#1`, ...: exit codes and the names of log
streams are the nodes'. Credentials are as boto3 finds them, and no question waits for longer than
two tries of 25 s.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

from muster.arguments import UsageError
from muster.local.record.layout import BATCH_REQUESTS, SECRET
from muster.submit import batch_job, client, folder
from muster.submit.batch_job import check
from muster.submit.values import (
    LOST,
    QUEUED,
    RUNNING,
    JobOutput,
    JobState,
    Submission,
    Submitted,
)
from muster.types.errors import FAILED, STOPPED, STOPPED_EXIT_CODE, SUCCEEDED

__all__ = ["cancel", "check", "hand_over", "inside", "output", "render", "state", "tidy"]

LOG_GROUP = "/aws/batch/job"
EVERY_S = 3.0  # logs are asked for
MOST = 16  # nodes whose output is shown
_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # a job that is there may be left out of an answer
_WORDS = {
    **dict.fromkeys(("SUBMITTED", "PENDING", "RUNNABLE"), QUEUED),
    **dict.fromkeys(("STARTING", "RUNNING"), RUNNING),
    "SUCCEEDED": SUCCEEDED,
}


def render(job: Submission) -> str:
    """Both requests in JSON, without secrets and the values of --env."""
    asked = batch_job.requests(job)
    made = {"RegisterJobDefinition": asked.definition, "SubmitJob": asked.job}
    return json.dumps(made, indent=1) + "\n"


def hand_over(job: Submission, text: str) -> Submitted:
    """Registers a revision of the definition, and submits. Variables go with the job alone, since
    definitions stay and are read by more people."""
    folder.write_private(os.path.join(job.run, BATCH_REQUESTS), text)
    asked = json.loads(text)
    environ = dict(job.request.environ)
    if not job.settings.get("secret"):
        with open(os.path.join(job.run, SECRET), encoding="utf-8") as file:
            environ[batch_job.SECRET] = file.read().strip()
    nodes = f"0:{job.request.hosts - 1}"
    told = {"targetNodes": nodes, "containerOverrides": {"environment": batch_job.pairs(environ)}}
    overrides = asked["SubmitJob"].setdefault("nodeOverrides", {})
    overrides.setdefault("nodePropertyOverrides", []).append(told)
    service = _client("batch")
    made = _answer(service, "register_job_definition", **asked["RegisterJobDefinition"])
    definition = made["jobDefinitionArn"]
    try:
        found = _answer(service, "submit_job", **asked["SubmitJob"], jobDefinition=definition)
    except (UsageError, KeyboardInterrupt) as error:
        lost = error if isinstance(error, UsageError) else _UnansweredError("interrupted")
        found = _taken(service, asked["SubmitJob"], definition, lost)
        if lost is not error:
            with suppress(UsageError):  # else it is kept as any other
                _end(service, found["jobId"])
                raise
    where = {"region": service.meta.region_name, "definition": definition, "run": ""}
    return Submitted("batch", found["jobId"], job.name, job.request.hosts, job.run, where)


def _taken(
    service: Any, asked: dict[str, Any], definition: str, error: UsageError
) -> dict[str, Any]:
    """The job, where Batch took it and only the answer was lost: the revision is that job's alone.
    Raises the error that came in place of the answer."""
    name, queue = asked["jobName"], asked["jobQueue"]
    named = [{"name": "JOB_NAME", "values": [name]}]
    with suppress(UsageError):  # of no use to the person
        if isinstance(error, _UnansweredError):
            jobs = _answer(service, "list_jobs", jobQueue=queue, filters=named)["jobSummaryList"]
            for one in jobs:
                if one.get("jobDefinition") == definition:
                    return dict(one)
        _answer(service, "deregister_job_definition", jobDefinition=definition)
    if isinstance(error, _UnansweredError):
        fix = (
            f"Batch may have taken it: look for {name} in the queue {queue} before you submit again"
        )
        raise UsageError(error.message, fix) from None
    raise error


def state(job: Submitted) -> JobState:
    """What Batch says; the exit code is the main node's, and so is the reason of a failure."""
    asked = [job.job_id, _node(job, 0)]
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        found = _answer(_client("batch", job), "describe_jobs", jobs=asked)["jobs"]
        if found:
            break
    return judged({one["jobId"]: one for one in found}, job.job_id, _node(job, 0))


def judged(found: dict[str, dict[str, Any]], job_id: str, main: str) -> JobState:
    """The state of a job, of which Batch told this by ids."""
    if job_id not in found:
        return JobState(LOST, None, "Batch knows no such job (any more)")
    told = found[job_id]
    word = _WORDS.get(told["status"], FAILED)
    why = client.in_a_sentence(told.get("statusReason") or told["status"])
    if word == SUCCEEDED:
        return JobState(word, 0)
    if word != FAILED:
        return JobState(word, None, why)
    reason = found.get(main, {}).get("container", {}).get("reason")  # no image, no memory
    why = client.in_a_sentence(reason) if reason else why
    code = _exit_code(found.get(main, {}))
    code = _exit_code(told) if code is None else code
    ended = told.get("isTerminated") or told.get("isCancelled") or code == STOPPED_EXIT_CODE
    return JobState(STOPPED, STOPPED_EXIT_CODE, why) if ended else JobState(FAILED, code, why)


def _exit_code(told: dict[str, Any]) -> int | None:
    """Of the last attempt that has one."""
    attempts = (told, *reversed(told.get("attempts", [])))
    codes = (one.get("container", {}).get("exitCode") for one in attempts)
    return next((code for code in codes if type(code) is int), None)


def cancel(job: Submitted) -> None:
    """Batch ends all nodes: SIGTERM, then SIGKILL after the time that its instances give."""
    _end(_client("batch", job), job.job_id)


def _end(service: Any, job_id: str) -> None:
    _answer(service, "terminate_job", jobId=job_id, reason="cancelled by muster submit")


def tidy(job: Submitted) -> None:
    """Nothing is left."""


def let_end(job: Submitted) -> None:
    """No stop reaches a node but by the end of its job."""


def output(job: Submitted) -> JobOutput:
    """The nodes' streams in CloudWatch."""
    return NodeLogs(job)


def inside(job: Submitted) -> list[str]:
    """Raises UsageError: Batch has no way into a node that needs no preparation."""
    raise UsageError(
        "muster cannot look into a job of AWS Batch",
        f"muster submit --follow {job.run} shows what it prints, --cancel {job.run} ends it",
    )


class NodeLogs:
    """A `JobOutput`, asked for now and then: each question takes as long as CloudWatch does."""

    def __init__(self, job: Submitted) -> None:
        self._job = job
        self._asked = -EVERY_S
        self._tokens: dict[str, str] = {}  # stream -> where to go on

    def more(self) -> None:
        """Passes on what is new; nothing where CloudWatch does not answer."""
        now = time.monotonic()
        if now - self._asked < EVERY_S:
            return
        self._asked = now
        try:
            for stream in self._streams():
                self._pass_on(stream)
        except UsageError:
            return  # --status says what is wrong

    def rest(self) -> None:
        """Once more."""
        self._asked = -EVERY_S
        self.more()

    def _streams(self) -> list[str]:
        """Of the nodes that have begun to print."""
        nodes = [_node(self._job, index) for index in range(min(self._job.hosts, MOST))]
        found = _answer(_client("batch", self._job), "describe_jobs", jobs=nodes)["jobs"]
        names = (one.get("container", {}).get("logStreamName") for one in found)
        return [name for name in names if name]

    def _pass_on(self, stream: str) -> None:
        """From where the last question ended. At the end of a stream CloudWatch gives the token
        back that it was asked with."""
        service = _client("logs", self._job)
        while True:
            token = self._tokens.get(stream)
            more = {"nextToken": token} if token else {"startFromHead": True}
            about = {"logGroupName": LOG_GROUP, "logStreamName": stream}
            found = _answer(service, "get_log_events", **about, **more)
            for event in found["events"]:
                sys.stdout.buffer.write(f"{event['message']}\n".encode(errors="replace"))
            sys.stdout.flush()
            self._tokens[stream] = found["nextForwardToken"]
            if found["nextForwardToken"] == token or not found["events"]:
                return


def _node(job: Submitted, index: int) -> str:
    """The id of a node; 0 is the main one."""
    return f"{job.job_id}#{index}"


def _client(service: str, job: Submitted | None = None) -> Any:
    """Raises UsageError without boto3, or without a region. `job`: that is there. What makes one is
    asked once: a second try, after an answer that was lost, would make two of it."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        fix = "python -m pip install 'muster-training[batch]'"
        raise UsageError("AWS Batch is asked by boto3, which is not installed here", fix) from None
    # boto3 itself reads AWS_DEFAULT_REGION alone
    region = (job.where.get("region") if job is not None else None) or os.environ.get("AWS_REGION")
    limits = Config(
        connect_timeout=10,
        read_timeout=15,
        retries={"total_max_attempts": 1 if job is None else 2, "mode": "standard"},
    )
    try:
        return boto3.client(service, region_name=region or None, config=limits)
    except (BotoCoreError, ValueError) as error:
        raise UsageError(f"AWS: {client.in_a_sentence(str(error))}", "set AWS_REGION") from None


def _answer(service: Any, action: str, **request: Any) -> dict[str, Any]:
    """Raises UsageError in the service's own words, _UnansweredError where there were none."""
    from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

    try:
        found: dict[str, Any] = getattr(service, action)(**request)
    except (ClientError, ParamValidationError) as error:  # the latter is boto3's own, in many lines
        raise UsageError(f"AWS: {client.in_a_sentence(' '.join(str(error).split()))}") from None
    except BotoCoreError as error:
        raise _UnansweredError(f"AWS: {client.in_a_sentence(str(error))}") from None
    return found


class _UnansweredError(UsageError):
    """What was asked for may have been done all the same."""

"""Jobs of Slurm by its own commands: sbatch, squeue, scontrol, scancel, srun."""

from __future__ import annotations

import os
import re
import shlex

from muster.arguments import UsageError, tell
from muster.local.record.layout import BATCH_SCRIPT, EARLIER, ENGINE_LOG
from muster.submit import client, folder, slurm_script
from muster.submit.follow import FileTail
from muster.submit.slurm_script import check, render
from muster.submit.values import (
    AGAIN,
    ENDED,
    LOST,
    QUEUED,
    RUNNING,
    JobOutput,
    JobState,
    Submission,
    Submitted,
)
from muster.types.errors import FAILED, STOPPED, STOPPED_EXIT_CODE, SUCCEEDED, word_of

__all__ = ["cancel", "check", "hand_over", "inside", "let_end", "output", "render", "state", "tidy"]

_WORDS = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"), QUEUED),
    **dict.fromkeys(("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED"), RUNNING),
    **dict.fromkeys(("RESIZING", "SIGNALING", "STAGE_OUT"), RUNNING),
    "COMPLETED": SUCCEEDED,
    "CANCELLED": STOPPED,
}

# of a job in which a person submits another; the excepted ones are about the controller
_INHERITED = re.compile("SQUEUE_|SLURM_(?!(CONF|CONF_SERVER|CLUSTERS|JWT|TIME_FORMAT)$)")
_UNOPENED = "0:53"  # of a script that never began: slurmd could not open its output
_SPELT = {"array": "SBATCH_ARRAY_INX", "mem": "SBATCH_MEM_PER_NODE", "time": "SBATCH_TIMELIMIT"}
_SPELT["clusters"] = "SLURM_CLUSTERS"


def hand_over(job: Submission, text: str) -> Submitted:
    """Keeps the script in the run folder, and gives it to sbatch."""
    path = os.path.join(job.run, BATCH_SCRIPT)
    folder.write_private(path, text)
    try:
        said = client.answer(["sbatch", "--parsable", path], environ=_environ(job))
        rows = (line.strip() for line in reversed(said.splitlines()))  # a wrapper's own come first
        found: str | None = next((row for row in rows if re.fullmatch(r"\d+(;\S+)?", row)), "")
        if not found:
            raise UsageError(f"sbatch said {client.in_a_sentence(said)!r}, not a job's number")
    except UsageError as error:  # Slurm may have taken the job, and the answer was lost
        if (found := _taken(job)) is None and not error.fix:
            error.fix = f"look for {job.name} in the queue before you submit again: it may be there"
        if not found:
            raise
    except KeyboardInterrupt:
        if not (found := _taken(job)) or _taken_back(found):
            raise
    number, _, cluster = found.partition(";")
    where = {"muster": shlex.join(slurm_script.beside(job, number))}
    if cluster:
        where["cluster"] = cluster
    return Submitted("slurm", number, job.name, job.request.hosts, job.run, where)


def _environ(job: Submission) -> dict[str, str]:
    """Without what would overrule --set or muster: sbatch's variables count for more than the lines
    of a script, and those of a job around this one would be the new job's."""
    given = {*job.settings, *slurm_script.DECIDED, "requeue", "no-requeue"}
    names = {f"SBATCH_{name.upper().replace('-', '_')}" for name in given}
    names |= {_SPELT[name] for name in given if name in _SPELT}
    names |= {name for name in os.environ if _INHERITED.match(name)}
    return {name: value for name, value in os.environ.items() if name not in names}


def _taken_back(number: str) -> bool:
    """Whether the job of somebody who did not wait for its number has gone."""
    try:
        _end(number)
    except UsageError as error:
        tell(f"muster submit: {error.message}; the job stays in the queue\n")
        return False
    tell(f"muster submit: cancelled slurm job {number}\n")
    return True


def _taken(job: Submission) -> str | None:
    """The number of the queued job that has this run folder, "" where there is none, None where the
    queue does not answer. An earlier one that had it may be there while its nodes tidy up."""
    earlier = folder.read(os.path.join(job.run, EARLIER))
    known = earlier.job_id if earlier else ""
    try:
        asked = ["squeue", "-h", f"--name={job.name}", "-o", "%i %Z"]
        said = client.answer(asked, environ=_environ(job))
        rows = (line.split(" ", 1) for line in said.splitlines())
        return next((number for number, at in rows if at == job.run and number != known), "")
    except (UsageError, ValueError):
        return None


def state(job: Submitted) -> JobState:
    """What the queue says, or of a job that has left it its own summary, or what the controller
    remembers. Accounting is not needed."""
    if job.code is not None:  # another job may have its number by now
        return JobState(word_of(job.code), job.code)
    asked = ["squeue", *_cluster(job), "-h", f"--jobs={job.job_id}", "-o", "%T %r"]
    code, out, err = client.outcome(asked)
    if code and "Invalid job id" not in err:
        raise UsageError(f"squeue: {client.in_a_sentence(err or out)}")
    word, _, why = out.strip().partition(" ")
    if word and not code and (found := _WORDS.get(word, FAILED)) not in ENDED:
        return JobState(found, None, "" if why == "None" else why)
    code, out, err = client.outcome(["scontrol", *_cluster(job), "-o", "show", "job", job.job_id])
    if code and "Invalid job id" not in err:
        raise UsageError(f"scontrol: {client.in_a_sentence(err or out)}")
    shown = dict(one.split("=", 1) for one in out.split() if "=" in one)
    word = shown.get("JobState", word)
    if _WORDS.get(word) in (QUEUED, RUNNING):  # it came back meanwhile
        return JobState(_WORDS[word], None, word)
    if shown.get("ExitCode") == _UNOPENED and folder.summary_code(job.run) is None:
        log = os.path.join(job.run, ENGINE_LOG)
        fix = "all nodes must share the run folder, and the job's user must have the right to write"
        return JobState(FAILED, 1, f"the node could not open {log}: {fix}")
    return JobState(*_ended(job, word, shown.get("ExitCode", "")), word)


def _ended(job: Submitted, word: str, exit_code: str) -> tuple[str, int | None]:
    """The job's own word counts, since a batch script may end otherwise than its job; but one that
    was to begin again was cancelled while it waited for that."""
    own = folder.summary_code(job.run)
    if word == "CANCELLED" and (own is None or own in AGAIN):
        return STOPPED, STOPPED_EXIT_CODE
    if own is None:
        code, _, signal = exit_code.partition(":")
        if not (code.isdecimal() and signal.isdecimal()):
            return (_WORDS.get(word, FAILED) if word else LOST), None
        own = int(code) or (128 + int(signal) if int(signal) else 0)
        if word == "COMPLETED" or own:
            return _WORDS.get(word, FAILED), own
        return FAILED, 1
    return word_of(own), own


def cancel(job: Submitted) -> None:
    """By scancel: the cluster's KillWait is the time that ranks have."""
    _end(*_cluster(job), job.job_id)


def _end(*words: str) -> None:
    """Whatever somebody lets scancel leave alone, about which it says nothing."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SCANCEL_")}
    client.answer(["scancel", *words], environ=environ)


def tidy(job: Submitted) -> None:
    """Nothing is left."""


def let_end(job: Submitted) -> None:
    """The batch script begins again only where Slurm asked for the stop."""


def output(job: Submitted) -> JobOutput:
    """The file that Slurm writes in the run folder."""
    return FileTail(os.path.join(job.run, ENGINE_LOG))


def inside(job: Submitted) -> list[str]:
    """A step beside the job's own, on its first node."""
    srun, *words = shlex.split(job.where["muster"])
    return [srun, *_cluster(job), *words]


def _cluster(job: Submitted) -> list[str]:
    return [f"--clusters={job.where['cluster']}"] if "cluster" in job.where else []

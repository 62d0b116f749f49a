"""Hosts by ssh as an engine: a job that is attended from its beginning to its end."""

from __future__ import annotations

import os
import shlex
import signal

from muster.arguments import UsageError
from muster.local.record import layout, runfolder
from muster.submit import client
from muster.submit.arguments import run_arguments
from muster.submit.follow import FileTail
from muster.submit.hosts.attend import Attendance
from muster.submit.hosts.listed import Destination, attended, read_hosts, ssh
from muster.submit.hosts.request import ARCHIVE, OUTPUT
from muster.submit.values import LOST, RUNNING, JobOutput, JobState, Submission, Submitted
from muster.types.errors import word_of


def check(job: Submission) -> None:
    """See `SubmitTarget`."""
    hosts = read_hosts(job.where)
    if job.request.hosts != len(hosts):
        what = f"--hosts {job.request.hosts}: {job.where} names {len(hosts)}"
        raise UsageError(what, "leave out --hosts: all hosts of the file are used")
    for option, value in (("--image", job.image), ("--kind", job.kind)):
        if value:
            fix = "leave it out; --python FILE names the hosts' Python"
            raise UsageError(f"{option} {value}: on hosts reached by ssh no container runs", fix)


def render(job: Submission) -> str:
    """What is run on each host, and what it is told there."""
    lines = [
        shlex.join([*ssh(one, job.settings), attended(job.python)]) for one in read_hosts(job.where)
    ]
    arguments = run_arguments(job.request, ARCHIVE, OUTPUT, layout.ENVIRON)
    lines += ["# by stdin, with the code, a secret and the values of --env:"]
    return "\n".join([*lines, "# " + shlex.join(["muster", "run", *arguments])]) + "\n"


def hand_over(job: Submission, text: str) -> Submitted:
    """Runs the job to its end. `text` is for people: hosts get a request of their own."""
    client.need("ssh")
    return Attendance(job, read_hosts(job.where)).run()


def state(job: Submitted) -> JobState:
    """By what the run folder says, and whether somebody attends it."""
    if job.code is not None:
        return JobState(word_of(job.code), job.code)
    try:
        attended = not runfolder.is_free(job.run)
    except OSError:
        attended = False
    if not attended:
        return JobState(LOST, None, "the `muster submit` that attended it is gone, which stops it")
    return JobState(RUNNING, None, f"attended by {_attendant(job)}")


def cancel(job: Submitted) -> None:
    """As Ctrl-C in the terminal of its `muster submit`, which must be one of this machine."""
    found = state(job)
    if found.word != RUNNING:
        raise UsageError(f"it does not run any more: {found.word}")
    if job.where.get("machine") != os.uname().nodename:
        raise UsageError(f"it is {found.why}", "press Ctrl-C there, or cancel it there")
    try:
        os.kill(int(job.where["process"]), signal.SIGTERM)
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"{_attendant(job)} cannot be told: {error}") from None


def tidy(job: Submitted) -> None:
    """Nothing is left."""


def let_end(job: Submitted) -> None:
    """Nobody begins it again."""


def output(job: Submitted) -> JobOutput:
    """Nothing: it has gone to the terminal."""
    if state(job).word == RUNNING:
        fix = "look there, or wait for its end; muster ps RUN and muster stacks RUN work meanwhile"
        raise UsageError(f"the job's output goes to {_attendant(job)}", fix)
    return FileTail(os.devnull)


def inside(job: Submitted) -> list[str]:
    """A second connection to the leader, from the folder in which the first was made."""
    settings = {k[4:]: v for k, v in job.where.items() if k.startswith("set ")}
    leader = Destination(job.where["leader"], "")
    there = ["sh", "-c", 'cd -- "$0"; exec "$@"', job.where.get("folder", ".")]
    return [*there, *ssh(leader, settings), shlex.quote(job.where["python"]), "-m", "muster"]


def _attendant(job: Submitted) -> str:
    return f"process {job.where.get('process')} on {job.where.get('machine')}"

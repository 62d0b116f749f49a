"""What is handed to an engine, what is kept of it, and what every engine must be able to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from muster.local.request import Request
from muster.types.errors import FAILED, STOPPED, STOPPED_EXIT_CODE, SUCCEEDED
from muster.types.values import NamedTuple

QUEUED, RUNNING, LOST = "queued", "running", "lost"
ENDED = (SUCCEEDED, FAILED, STOPPED, LOST)
# exit codes worth another attempt: a lost host, a launcher that did not start, a stop from outside
AGAIN = frozenset((102, 106, STOPPED_EXIT_CODE))


class Submission(NamedTuple):
    """A job of `request.hosts` hosts as it is to be handed over.

    `name`: a label of DNS. `run`: the run folder, absolute. `python`: what runs muster where there
    is no `image`. `kind`: of job or of container, where the engine has several. `settings`: of the
    engine's own file, as --set gave them; "" for a flag. `grace_s`: from a stop to its end; None
    for the engine's usual time. `retries`: how often a job may begin again. `where`: what followed
    the engine's name in --on, such as a file. `mark`: six digits that no other job has; zeros of
    one that is not handed over.
    """

    request: Request
    name: str
    run: str
    python: str
    image: str = ""
    kind: str = ""
    settings: Mapping[str, str] = {}
    grace_s: float | None = None
    retries: int = 0
    where: str = ""
    mark: str = "000000"


class Submitted(NamedTuple):
    """A job that an engine has, as submitted.json in the run folder keeps it.

    `where`: what the engine's client needs to find the job again, such as a namespace. `code`: how
    the job ended, once that is known: its engine may forget it.
    """

    engine: str
    job_id: str
    name: str
    hosts: int
    run: str
    where: Mapping[str, str] = {}
    code: int | None = None


class JobState(NamedTuple):
    """Of a job at its engine. `word`: queued, running, or one of ENDED. `code`: the job's exit
    code, once it is known. `why`: the engine's own word for it."""

    word: str
    code: int | None = None
    why: str = ""


class JobOutput(Protocol):
    """What a job prints, on its way to stdout."""

    def more(self) -> None:
        """Passes on what is new, without waiting."""

    def rest(self) -> None:
        """Passes on what is left, once the job has ended."""


class SubmitTarget(Protocol):
    """An engine as `muster submit` needs it. What the user can mend is a UsageError; no question
    to the engine's client takes longer than `client.LIMIT_S`."""

    def check(self, job: Submission) -> None:
        """Refuses what can never run, before anything is made."""

    def render(self, job: Submission) -> str:
        """The engine's own file. Pure."""

    def hand_over(self, job: Submission, text: str) -> Submitted:
        """Gives the rendered file to the engine's client."""

    def state(self, job: Submitted) -> JobState:
        """What has become of the job."""

    def cancel(self, job: Submitted) -> None:
        """Ends the job as the engine ends jobs."""

    def tidy(self, job: Submitted) -> None:
        """Removes what the engine keeps of a job that has ended, where it keeps something that a
        person would have to remove."""

    def let_end(self, job: Submitted) -> None:
        """Sees to it that a job that is stopped does not begin again."""

    def output(self, job: Submitted) -> JobOutput:
        """What the job prints from its beginning on."""

    def inside(self, job: Submitted) -> list[str]:
        """The command `muster`, run where the job's leader runs."""

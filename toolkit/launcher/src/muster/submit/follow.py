"""Shows a submitted job until it has ended: what it prints, and what becomes of it."""

from __future__ import annotations

import os
import sys
import time

from muster.arguments import UsageError, tell
from muster.local.paths import shown
from muster.submit import folder
from muster.submit.values import ENDED, LOST, JobState, SubmitTarget, Submitted
from muster.types.errors import STOPPED, STOPPED_EXIT_CODE, word_of

POLL_S = 1.0
LOOK_S = 0.1
PATIENCE_S = 180.0  # with an engine that does not answer
FORGETS_S = 30.0  # an engine may forget a job that ended longer ago
INTERRUPTED = 130
MAX_READ_BYTES = 1 << 20


def follow(target: SubmitTarget, job: Submitted) -> int:
    """The job's exit code: 1 where nobody knows it, 130 where the person stops looking. Raises
    UsageError where the engine stays silent."""
    output = target.output(job)
    last: JobState | None = None
    answered, asked_again = time.monotonic(), False
    seen = time.time()  # by a clock that goes on while this machine sleeps
    try:
        while True:
            found = last
            try:
                found = state_of(target, job)
                answered = time.monotonic()
                if found.word == LOST and last is not None and 0 <= time.time() - seen < FORGETS_S:
                    # no engine forgets a job between two looks: somebody has deleted it
                    found = JobState(STOPPED, STOPPED_EXIT_CODE, found.why)
                    folder.keep_code(job, STOPPED_EXIT_CODE)
                seen = time.time()
            except UsageError as error:
                if time.monotonic() - answered > PATIENCE_S:
                    raise
                if last is None and not asked_again:
                    tell(f"muster submit: {error.message}; asking again\n")
                asked_again = True
            if found is not None and found != last:
                last = found
                tell(f"muster submit: {in_words(job, found)}\n")
            if found is not None and found.word in ENDED:
                output.rest()
                return 1 if found.code is None else found.code
            until = time.monotonic() + POLL_S
            while time.monotonic() < until:
                output.more()
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        tell(f"muster submit: the job goes on; muster submit --cancel {shown(job.run)} ends it\n")
        return INTERRUPTED


def state_of(target: SubmitTarget, job: Submitted) -> JobState:
    """What has become of the job. How it ended is kept: `muster history` asks no engine, and an
    engine forgets. Raises UsageError."""
    found = target.state(job)
    if found.word == LOST and job.code is not None:
        return JobState(word_of(job.code), job.code)
    if found.word in ENDED and found.code is not None:
        folder.keep_code(job, found.code)
    return found


def in_words(job: Submitted, state: JobState) -> str:
    """One line."""
    text = f"{job.engine} job {job.job_id}: {state.word}"
    if state.code:
        text += f", exit code {state.code}"
    return text + (f" ({state.why})" if state.why else "")


class FileTail:
    """A file that grows, possibly on another machine, passed on to stdout."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._seen = 0

    def more(self) -> None:
        """Passes on what is new."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
        while data := os.pread(self._fd, MAX_READ_BYTES, self._seen):
            self._seen += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def rest(self) -> None:
        """Passes on what is left, and closes the file."""
        for _ in range(2):  # on NFS one that is opened anew has what others wrote last
            self.more()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

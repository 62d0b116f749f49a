"""Shows a submitted job until it has ended: what it prints, and what becomes of it."""

from __future__ import annotations

import os
import sys
import time

from muster.arguments import UsageError, tell
from muster.local.paths import shown
from muster.submit.values import ENDED, JobState, SubmitTarget, Submitted

POLL_S = 1.0
LOOK_S = 0.1
PATIENCE_S = 180.0  # with an engine that does not answer
INTERRUPTED = 130
MAX_READ_BYTES = 1 << 20


def follow(target: SubmitTarget, job: Submitted) -> int:
    """The job's exit code: 1 where nobody knows it, 130 where the person stops looking. Raises
    UsageError where the engine stays silent."""
    output = target.output(job)
    last: JobState | None = None
    answered = time.monotonic()
    try:
        while True:
            try:
                found = target.state(job)
                answered = time.monotonic()
            except UsageError:
                if time.monotonic() - answered > PATIENCE_S:
                    raise
                found = last or JobState("unknown")
            if found != last:
                last = found
                tell(f"muster submit: {in_words(job, found)}\n")
            if found.word in ENDED:
                output.rest()
                return 1 if found.code is None else found.code
            until = time.monotonic() + POLL_S
            while time.monotonic() < until:
                output.more()
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        name = shown(job.run)
        tell(f"muster submit: the job goes on; muster submit --cancel {name} ends it\n")
        return INTERRUPTED


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

    def more(self) -> None:
        """Passes on what is new."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
        while data := os.read(self._fd, MAX_READ_BYTES):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def rest(self) -> None:
        """Passes on what is left, and closes the file."""
        self.more()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

"""Asks a tool of the machine a question, with a time limit that holds."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence


class Question:
    """A tool that was started with a question; its output, at most a few kB, is the answer."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.started = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                argv,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            pass  # a tool for another machine, say: it has nothing to report

    def answer(self, deadline: float) -> str | None:
        """What it printed; "" when it failed; None when it did not end before `deadline`.

        A tool that hangs in its driver cannot be killed at once: it is then not waited for.
        """
        process = self._process
        if process is None:
            return ""
        try:
            output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            return output.decode(errors="replace") if process.returncode == 0 else ""
        except subprocess.TimeoutExpired:
            process.kill()
            self._let_go(process)
            return None

    @staticmethod
    def _let_go(process: subprocess.Popen[bytes]) -> None:
        if process.stdout:
            process.stdout.close()
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            process.returncode = -9  # no ResourceWarning: the reaper takes it when it ends

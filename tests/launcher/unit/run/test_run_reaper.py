"""Taking the status of a killed child never waits without a limit."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from muster.run.base.reaper import reap


def test_a_child_that_does_not_end_is_left_after_the_limit() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        reap(child.pid, 0.05)  # as one in uninterruptible sleep, it does not go
        assert os.waitpid(child.pid, os.WNOHANG) == (0, 0)
        os.kill(child.pid, signal.SIGKILL)
        reap(child.pid, 10)
        with pytest.raises(ChildProcessError):
            os.waitpid(child.pid, os.WNOHANG)
        reap(child.pid, 10)  # and one that is reaped already is no error

"""Processes of the fork server: waited for within a time, and told how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.forkserver import ForkServer
from tests.support.waiting import wait_until

LIMIT_S = 60.0


def test_who_waits_for_a_process_gives_up_in_time_and_hears_of_its_end_later(
    tmp_path: Path,
) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text("import sys\nprint('here', *sys.argv[1:], flush=True)\nwhile True: pass\n")
    server = ForkServer(os.environ, "json")
    process = server.start([str(script), "one"], os.environ, out)
    try:
        wait_until(lambda: out.exists() and out.read_text() == "here one\n", LIMIT_S)
        for limit_s in (0.0, 0.1):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(limit_s)
    finally:
        os.kill(process.pid, signal.SIGKILL)
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    server.close()

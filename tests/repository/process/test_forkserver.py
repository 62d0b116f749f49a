"""Processes of the fork server: waited for within a time, and told how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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


ENDS = r"""
import atexit, ctypes, sys, threading, time, types
class Speaks:
    def __del__(self): print("its module was taken apart", flush=True)
mine = types.ModuleType("mine")
sys.modules["mine"], mine.held = mine, Speaks()
del mine
atexit.register(print, "its exit handler was called", flush=True)
def works():
    time.sleep(0.2)
    print("its thread came to an end", flush=True)
threading.Thread(target=works).start()
ctypes.CDLL(None).printf(b"what C had to write\n")
sys.exit(7)
"""


def test_a_fork_ends_as_an_interpreter_does(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(ENDS)
    server = ForkServer(os.environ, "json", "decimal")
    assert server.start([str(script)], os.environ, out).wait(LIMIT_S) == 7
    server.close()
    fresh = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert sorted(out.read_text().splitlines()) == sorted(fresh.stdout.splitlines())
    assert len(fresh.stdout.splitlines()) == 4 and fresh.returncode == 7

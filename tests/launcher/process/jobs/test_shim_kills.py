"""The kill of a rank's tree asks for its own children only, however many processes there are."""

from __future__ import annotations

import subprocess
import sys

# an orphan for each child; the grandchildren become the shim's when their parents are killed
KILLS = """\
import os, socket, sys, time
from muster.run.child.rank_shim import Shim, become_subreaper, reap
become_subreaper()
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        time.sleep(600)
asked = []
sys.addaudithook(lambda event, arguments: event in ("os.listdir", "os.scandir") and
                 asked.append(arguments[0]))
near, _far = socket.socketpair()
shim = Shim(near, 0)
shim.running = False
shim.kill_tree()
print(asked, reap(shim.ended))
"""


def test_a_kill_reads_no_list_of_all_processes() -> None:
    """64 shims that look through /proc every few milliseconds would use up the time to kill in."""
    end = subprocess.run(
        [sys.executable, "-c", KILLS], capture_output=True, text=True, timeout=60, check=False
    )
    assert end.stdout == "[] False\n", end.stderr

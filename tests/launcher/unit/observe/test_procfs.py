"""What the kernel says of real processes, and that nothing is asked for in vain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.run.base import procfs
from tests.support.waiting import wait_until

GONE = 2**22 + 7  # above the kernel's highest pid
LOCKS = """
import fcntl, sys
file = open(sys.argv[1], "w")
{call}
"""


def started(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ends_up(process: subprocess.Popen[bytes], words: str) -> None:
    try:
        wait_until(lambda: procfs.waits_for(process.pid) == words, 20, lambda: words)
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_reads_is_named_with_what_it_reads(tmp_path: Path) -> None:
    fifo = tmp_path / "shard 7"
    os.mkfifo(fifo)
    both = os.open(fifo, os.O_RDWR)
    try:
        ends_up(started("import sys; open(sys.argv[1], 'rb').read()", str(fifo)), f"reading {fifo}")
    finally:
        os.close(both)


def test_a_process_that_opens_a_pipe_nobody_writes_to_is_named_with_its_path(
    tmp_path: Path,
) -> None:
    fifo = tmp_path / "nobody"
    os.mkfifo(fifo)
    ends_up(started("import sys; open(sys.argv[1], 'rb')", str(fifo)), f"opening {fifo}")


@pytest.mark.parametrize("call", ["fcntl.flock(file, 2)", "fcntl.lockf(file, 2)"])
def test_a_process_that_waits_for_a_lock_is_named_with_the_file(tmp_path: Path, call: str) -> None:
    path = tmp_path / "cache.lock"
    path.touch()
    script = LOCKS.format(call=call)
    holder = started(f"{script}\nprint(1, flush=True); sys.stdin.read()", str(path))
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        ends_up(started(script, str(path)), f"waiting for a lock on {path}")
    finally:
        holder.kill()
        holder.communicate()


def test_sockets_sleep_and_children_have_words() -> None:
    ends_up(started("import time; time.sleep(600)"), "sleeping")
    ends_up(
        started("import socket; both = socket.socketpair(); both[0].recv(1)"), "reading a socket"
    )
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    ends_up(started(child), "waiting for a child process")


def test_processor_time_memory_and_run_delay_are_those_of_the_process() -> None:
    with started("data = bytearray(64 << 20)\nwhile True: pass") as busy:
        wait_until(lambda: procfs.processor_s(busy.pid) > 0.3, 30)
        seen = procfs.stat(busy.pid)
        assert seen is not None
        assert seen.state in "RS"
        assert seen.parent == os.getpid()
        assert 64 << 20 < seen.memory_bytes < 256 << 20
        assert procfs.peak_bytes(busy.pid) > 64 << 20
        if os.path.exists("/proc/self/schedstat"):
            assert busy.pid in procfs.run_delays_s(busy.pid)
        assert not procfs.is_dying(busy.pid)
        busy.kill()


def test_trees_are_what_is_below_each_root() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with started(script) as parent:

        def below() -> list[int]:
            return procfs.trees(procfs.processes(), [parent.pid])[parent.pid]

        wait_until(lambda: len(below()) == 1, 20)
        everything = procfs.trees(procfs.processes(), [os.getpid(), GONE])
        assert {parent.pid, *below()} <= set(everything[os.getpid()])
        assert everything[GONE] == []
        os.kill(below()[0], 9)
        parent.kill()


@pytest.mark.parametrize("pid", [GONE, -1, 0])
def test_of_a_process_that_is_not_there_nothing_is_known(pid: int) -> None:
    assert procfs.stat(pid) is None
    assert (procfs.processor_s(pid), procfs.moved_bytes(pid), procfs.peak_bytes(pid)) == (0, 0, 0)
    assert (procfs.waits_for(pid), procfs.wchan(pid), procfs.run_delays_s(pid)) == ("", "", {})
    assert procfs.is_dying(pid)
    assert not procfs.is_busy(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_no_error() -> None:
    calls = "stat moved_bytes peak_bytes wchan waits_for run_delays_s is_busy is_dying processor_s"
    script = (
        "import os\nfrom muster.run.base import procfs\nos.setgid(65534); os.setuid(65534)\n"
        f"for name in {calls.split()}: getattr(procfs, name)({os.getpid()})\n"
        f"print(repr(procfs.waits_for({os.getpid()})))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"''\n", b"")


def test_a_kernel_that_tells_less_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "read_text", lambda path, limit=0: "")
    assert procfs.run_delays_s(os.getpid()) == {}
    assert procfs.steal_s() == 0.0
    assert procfs.waits_for(os.getpid()) == ""
    assert procfs.processes() == {}

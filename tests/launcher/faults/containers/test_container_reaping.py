"""Whose a process in a container is, and who reaps it (promise F15; protocol.md, End)."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from tests.launcher.support.containers import RUNS, Containers, Make
from tests.support.waiting import wait_until

ORPHANS = 500
# grandchildren whose parents are gone; each says so with a byte once it has been adopted
DOUBLE_FORKS = f"""\
import os, sys, time
read, write = os.pipe()
for _ in range({ORPHANS}):
    child = os.fork()
    if child == 0:
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.001)
            os.write(write, b"x")
        os._exit(0)
    os.waitpid(child, 0)
os.close(write)
orphans = 0
while data := os.read(read, 4096):
    orphans += len(data)
ended = time.monotonic()
def zombies():
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{{name}}/stat") as file:
                found += file.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass
    return found
while zombies() and time.monotonic() - ended < 1:
    time.sleep(0.005)
print(orphans, zombies(), flush=True)
"""


@pytest.mark.promise("F15")
def test_orphans_of_others_are_reaped_by_train_as_pid_1(containers: Make) -> None:
    job = containers(RUNS, hosts=1)
    job.start_ranks()
    assert job.python("algo-1", DOUBLE_FORKS) == f"{ORPHANS} 0"
    job.let_go()
    assert job.wait(10)["algo-1"].code == 0


# processes of others

PF_EXITING = 4  # one of the kernel's flags of a process

# a daemon that notes every signal: started by a process that is gone, so it is PID 1's
DAEMON = """\
import os, signal, time
if os.fork():
    os._exit(0)
os.setsid()
def note(number, _):
    open("/opt/ml/checkpoints/told", "w").close()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCONT):
    signal.signal(number, note)
for number in (0, 1, 2):
    os.dup2(os.open("/dev/null", os.O_RDWR), number)
open("/opt/ml/checkpoints/daemon", "w").write(str(os.getpid()))
time.sleep(600)
"""


def start_daemon(job: Containers) -> str:
    """A process of somebody else's in the container, adopted by its PID 1; its pid there."""
    job.python("algo-1", DAEMON)
    note = job.base("algo-1") / "checkpoints" / "daemon"
    wait_until(lambda: note.exists() and note.read_text() != "", 10, "no daemon")
    pid = note.read_text()
    assert parent(job, pid) == "1"
    return pid


def parent(job: Containers, pid: str) -> str:
    return job.inside("algo-1", "ps", "-o", "ppid=", "-p", pid).strip()


def was_told(job: Containers) -> bool:
    return (job.base("algo-1") / "checkpoints" / "told").exists()


def test_a_daemon_of_others_neither_keeps_the_job_nor_is_signalled(containers: Make) -> None:
    """Nothing ends it but the kernel, which leaves no process in a container without PID 1."""
    job = containers(RUNS, hosts=1)
    job.start_ranks()
    inner = start_daemon(job)
    train = job.state("algo-1")["Pid"]
    daemon = job.pid_outside("algo-1", inner)
    if daemon is None:
        pytest.skip("only root, on the engine's machine, sees who ends a process of a container")
    handle = os.pidfd_open(daemon)
    try:
        job.let_go()
        assert select.select([handle], [], [], 10)[0]
        assert is_ending(train), "the daemon was ended by somebody"
    finally:
        os.close(handle)
    assert job.wait(10)["algo-1"].code == 0
    assert not was_told(job)


def is_ending(pid: int) -> bool:
    """Whether the kernel is about to end the process, or has done so."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return bool(int(stat.rpartition(")")[2].split()[6]) & PF_EXITING)

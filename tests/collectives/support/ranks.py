"""Jobs of ranks: real processes, started together, bounded, killed and counted.

    ended = ranks.run(3, ["worker.py", "--fast"], nodes=("a", "a", "b"))
    assert [each.code for each in ended] == [0, 0, 0], ranks.shown(ended)

    with ranks.started(3, ["worker.py"]) as job:   # for faults
        job.wait_for("ready", timeout_s=20)
        job.kill(2)
        ended = job.wait(timeout_s=20)

After both nothing that the ranks started is alive; what is, fails the test.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NamedTuple

from tests.support.ports import free_port

_POLL_S = 0.01
_GOING_S = 10.0
_SCRUBBED = ("COLLECTIVES_", "OMPI_", "PMIX_", "PMI_", "TORCHELASTIC_", "SMDDP_", "SMDATAPARALLEL_")
LATE = -999  # the code of a rank that had to be killed because time was up


class Ended(NamedTuple):
    """`code` as of Popen (negative: a signal; LATE: killed at the deadline) and both streams."""

    code: int
    output: str


def run(
    size: int,
    argv: Sequence[str],
    nodes: Sequence[str] | int | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    each_env: Sequence[Mapping[str, str]] | None = None,
) -> list[Ended]:
    """All ranks until they end or `timeout_s` has passed. `argv` begins with a program, or with a
    script or an option of this Python. `nodes`: a name per rank, or how many nodes of equal size.
    `each_env` adds variables rank by rank."""
    with started(size, argv, nodes, env, each_env) as job:
        return job.wait(timeout_s)


@contextlib.contextmanager
def started(
    size: int,
    argv: Sequence[str],
    nodes: Sequence[str] | int | None = None,
    env: Mapping[str, str] | None = None,
    each_env: Sequence[Mapping[str, str]] | None = None,
) -> Iterator[Job]:
    """A job that is killed, and counted, at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = Job(folder)
        try:
            for rank, environ in enumerate(_environs(size, nodes, env, each_env)):
                job.start(rank, _program(argv), environ)
            yield job
        finally:
            job.end()


class Job:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._late: set[int] = set()

    def start(self, rank: int, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        file = open(os.path.join(self._folder, f"rank{rank}.log"), "wb")  # noqa: SIM115
        self._files.append(file)
        # a session of its own, so that all that a rank starts can be found
        self._processes.append(subprocess.Popen(
            list(argv), env=dict(environ), stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        ))  # fmt: skip

    def pid(self, rank: int) -> int:
        return self._processes[rank].pid

    def output(self, rank: int) -> str:
        """What it has said so far."""
        path = os.path.join(self._folder, f"rank{rank}.log")
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def is_running(self, rank: int) -> bool:
        return self._processes[rank].poll() is None

    def send(self, rank: int, number: int) -> None:
        """A signal: SIGSTOP and SIGCONT for a rank that hangs."""
        os.kill(self.pid(rank), number)

    def kill(self, rank: int) -> None:
        """SIGKILL, waited for."""
        self.send(rank, signal.SIGKILL)
        self._processes[rank].wait(_GOING_S)

    def wait_for(
        self, text: str, ranks: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> None:
        """Until all these ranks (none given: all) have said `text`."""
        who = range(len(self._processes)) if ranks is None else ranks
        limit = time.monotonic() + timeout_s
        for rank in who:
            while text not in self.output(rank):
                ended = not self.is_running(rank) and text not in self.output(rank)
                if ended or time.monotonic() >= limit:
                    raise AssertionError(f"rank {rank} has not said {text!r}:\n{self.output(rank)}")
                time.sleep(_POLL_S)

    def wait(self, timeout_s: float = 60.0) -> list[Ended]:
        """Until all have ended; who has not by then is killed and has the code LATE."""
        limit = time.monotonic() + timeout_s
        for rank, process in enumerate(self._processes):
            try:
                process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._late.add(rank)
        self._kill_all()
        return [
            Ended(LATE if rank in self._late else process.returncode, self.output(rank))
            for rank, process in enumerate(self._processes)
        ]

    def end(self) -> None:
        """Kills what is left. Raises AssertionError if a process of theirs survives."""
        self._kill_all()
        for file in self._files:
            file.close()
        sessions = {process.pid for process in self._processes}
        limit = time.monotonic() + _GOING_S
        while True:
            left = _alive_in(sessions)
            if not left:
                return
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() >= limit:
                raise AssertionError(f"processes {sorted(left)} of the ranks do not end")
            time.sleep(_POLL_S)

    def _kill_all(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait(_GOING_S)


def shown(ended: Sequence[Ended]) -> str:
    """All that the ranks said, for the message of an assertion."""
    return "\n".join(
        f"--- rank {rank}: code {each.code}\n{each.output}" for rank, each in enumerate(ended)
    )


def _program(argv: Sequence[str]) -> list[str]:
    if argv[0].startswith("-") or argv[0].endswith(".py"):
        return [sys.executable, *argv]
    return list(argv)


def _environs(
    size: int,
    nodes: Sequence[str] | int | None,
    env: Mapping[str, str] | None,
    each_env: Sequence[Mapping[str, str]] | None,
) -> list[dict[str, str]]:
    base = {
        name: value
        for name, value in os.environ.items()
        if name == "COLLECTIVES_CORE" or not name.startswith(_SCRUBBED)
    }
    base.update(
        WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
        OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1",
    )  # fmt: skip
    found = []
    for rank in range(size):
        own = {**base, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        if isinstance(nodes, int):
            own["COLLECTIVES_NODE"] = f"node{rank * nodes // size}"
        elif nodes is not None:
            own["COLLECTIVES_NODE"] = nodes[rank]
        own.update(env or {})
        own.update(each_env[rank] if each_env is not None else {})
        found.append(own)
    return found


def _alive_in(sessions: set[int]) -> set[int]:
    """Processes of these sessions that are no zombies."""
    left = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if len(fields) > 3 and int(fields[3]) in sessions and fields[0] not in ("Z", "X"):
            left.add(int(name))
    return left

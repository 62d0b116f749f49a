"""Ranks of one job as real processes: started together, ended for sure, their words read back.

They are forks of a process that has imported what they import (tests/support/forkserver.py), where
nothing but variables of the collectives tells them from each other.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Union

from tests.support.forkserver import Forked, ForkServer
from tests.support.waiting import wait_until, within

CHECKOUT = Path(__file__).resolve().parents[3]
SOURCES = CHECKOUT / "toolkit" / "parallel" / "src"
JOB_S = within(100.0)
_NOTHING: Mapping[str, str] = {}
_IMPORTS = ("muster_collectives.core", "numpy")  # 0.15 s of a processor
Process = Union[Forked, "subprocess.Popen[bytes]"]


class End(NamedTuple):
    """How a rank ended: `code` negative for a signal, `said` the JSON of its last line if it is."""

    rank: int
    code: int
    said: Any
    out: str
    err: str


class Job:
    """The processes of a job. `folder` is its store; ranks write marks there for the test."""

    def __init__(self, folder: Path, processes: Sequence[Process]) -> None:
        self.folder = folder
        self.processes = processes

    def strike(self, rank: int, number: int) -> None:
        """Sends a signal to one rank."""
        self.processes[rank].send_signal(number)

    def mark(self, name: str) -> None:
        """A word to the ranks: they wait for it by `Meeting.wait_for_mark`."""
        (self.folder / f"mark-{name}").touch()

    def wait_for(self, name: str, limit_s: float = 60.0) -> None:
        """Until a rank has left this mark. Raises AssertionError when all ended without."""
        path = self.folder / f"mark-{name}"
        wait_until(
            lambda: path.exists() or all(p.poll() is not None for p in self.processes),
            limit_s,
            lambda: f"no mark {name}",
        )
        assert path.exists(), f"no mark {name}: {self._words()}"

    def ends(self, limit_s: float = JOB_S, of: Sequence[int] | None = None) -> list[End]:
        """Waits for the ranks `of` (all), asserting that none of them is late."""
        which = range(len(self.processes)) if of is None else of
        limit = time.monotonic() + limit_s
        for rank in which:
            try:
                self.processes[rank].wait(max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} has not ended: {self._words()}") from None
        return [self._end(rank) for rank in which]

    def _end(self, rank: int) -> End:
        out = (self.folder / f"out-{rank}").read_text(errors="replace")
        err = (self.folder / f"err-{rank}").read_text(errors="replace")
        last = out.strip().rpartition("\n")[2]
        said = json.loads(last) if last.startswith("{") else None
        return End(rank, self.processes[rank].wait(1.0), said, out, err)

    def _words(self) -> str:
        parts = [path.name + ": " + path.read_text(errors="replace")[-1500:]
                 for path in sorted(self.folder.glob("err-*"))]  # fmt: skip
        return "\n".join(parts)


@contextmanager
def job(
    worker: str,
    ranks: int,
    *arguments: str,
    environ: Mapping[str, str] = _NOTHING,
    nodes: Sequence[str] = (),
    prefix: Callable[[int], Sequence[str]] = lambda rank: (),
    python: str = sys.executable,
) -> Iterator[Job]:
    """Runs `python -m tests.collectives.<worker>` once for each rank while the block lasts.

    `nodes`: the name of each rank's node; `prefix`: words before the command line of a rank
    (`unshare ...`); `python`: which one runs them. After the block no process of the job is left,
    however it ended.
    """
    with tempfile.TemporaryDirectory(prefix="collectives-job-") as name:
        folder = Path(name)
        folder.chmod(0o777)  # ranks may be other users
        processes: list[Process] = []
        plain = python == sys.executable and all(
            name.startswith("COLLECTIVES_") for name in environ
        )
        try:
            for rank in range(ranks):
                given = _environ(folder, rank, ranks, environ)
                if nodes:
                    given["COLLECTIVES_NODE"] = nodes[rank]
                before = prefix(rank)
                begin = None if plain and not before else [*before, python]
                processes.append(_start(worker, arguments, folder, rank, given, begin))
            yield Job(folder, processes)
        finally:
            _end_all(processes)


def clean(ends: Sequence[End]) -> list[Any]:
    """What the ranks said, where all ended well."""
    for end in ends:
        assert end.code == 0, f"rank {end.rank} ended with {end.code}\n{end.out}\n{end.err}"
    return [end.said for end in ends]


def _environ(folder: Path, rank: int, ranks: int, more: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COLLECTIVES_", "OMPI_", "PMIX_")) or name == "COLLECTIVES_CORE"
    }
    path = os.pathsep.join([str(CHECKOUT), str(SOURCES), kept.get("PYTHONPATH", "")])
    return {
        **kept, "PYTHONPATH": path.rstrip(os.pathsep), "OMP_NUM_THREADS": "1",
        "XDG_CONFIG_HOME": str(folder / "config"),
        "JOB_FOLDER": str(folder), "RANK": str(rank), "WORLD_SIZE": str(ranks), **more,
    }  # fmt: skip


def _start(
    worker: str, arguments: Sequence[str], folder: Path, rank: int, environ: Mapping[str, str],
    begin: Sequence[str] | None,
) -> Process:  # fmt: skip
    """`begin`: the words before the worker's module; None for a fork."""
    argv = ["-m", f"tests.collectives.{worker}", *arguments]
    says, complains = folder / f"out-{rank}", folder / f"err-{rank}"
    if begin is None:
        return _server().start(argv, environ, says, complains)
    with says.open("wb") as out, complains.open("wb") as err:
        return subprocess.Popen(
            [*begin, *argv], env=environ, cwd=CHECKOUT, stdin=subprocess.DEVNULL,
            stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip


@functools.cache
def _server() -> ForkServer:
    return ForkServer(_environ(CHECKOUT, 0, 1, {}), *_IMPORTS)


def _end_all(processes: Sequence[Process]) -> None:
    """Each rank leads a session of its own, so that its children are ended with it."""
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    for process in processes:
        pid = process.pid
        wait_until(partial(_group_ended, pid), 5.0, partial("{} lives".format, pid))


def _group_ended(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    return False

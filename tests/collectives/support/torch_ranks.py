"""Ranks of a torch job: the same script in several processes, many checks in one start.

They are forks of a process that has imported torch (tests/support/forkserver.py).

In the test: `run_checks(script, 2, folder)` starts the ranks and says for each check how it ended.
In the script: `if __name__ == "__main__": main(CHECKS)`; each check takes a `World`.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Union

from tests.support.forkserver import TORCH, Forked, ForkServer
from tests.support.ports import free_port

__all__ = [
    "Check",
    "Ended",
    "TEST_S",
    "Job",
    "World",
    "main",
    "names_of",
    "open_store",
    "run_checks",
    "run_script",
]

CHECKOUT = Path(__file__).resolve().parents[3]
SOURCES = CHECKOUT / "toolkit" / "parallel" / "src"
GROUP_S = 120.0  # deadline of the groups of the ranks: a hang is an error that names its rank
LIMIT_S = 400.0  # no promise: eight ranks that import torch beside other work take their time
TEST_S = 600  # what pytest has to give to the test that starts them
KILL_S = 10.0


Process = Union[Forked, "subprocess.Popen[bytes]"]


@dataclass(frozen=True)
class Ended:
    """One rank's process."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Job:
    """A run of checks. `failures`: by check, what each rank that failed says; a check that no rank
    came to is in there as well."""

    ranks: tuple[Ended, ...]
    failures: Mapping[str, Sequence[str]]
    names: tuple[str, ...]

    def require(self, name: str) -> None:
        """Fails with what the ranks say of this check."""
        assert name in self.names, f"{name} is no check: {', '.join(self.names)}"
        assert not self.failures.get(name), "\n".join(self.failures[name])


def names_of(script: Path) -> list[str]:
    """The checks of a script, without what it imports (torch)."""
    listed = script.read_text().split("\nCHECKS = (")[1].split("\n)")[0]
    return [line.strip(" ,") for line in listed.splitlines() if line.strip()]


def run_checks(
    script: Path,
    size: int,
    folder: Path,
    *,
    environ: Mapping[str, str] | None = None,
    backend: str = "muster",
    only: Sequence[str] = (),
    limit_s: float = LIMIT_S,
    fresh: bool = False,
) -> Job:
    """All checks of `script` in one job; `folder` takes what they say. `fresh`: each rank is an
    interpreter of its own in place of a fork."""
    folder.mkdir(parents=True, exist_ok=True)
    more = {"CHECKS_FOLDER": str(folder), "CHECKS_BACKEND": backend, "CHECKS_ONLY": ",".join(only)}
    given = {**more, **(environ or {})}
    ranks = run_script([str(script)], size, environ=given, limit_s=limit_s, fresh=fresh)
    failures: dict[str, list[str]] = {}
    names: list[str] = []
    for rank, ended in enumerate(ranks):
        said = folder / f"rank{rank}.jsonl"
        lines = said.read_text().splitlines() if said.exists() else []
        found = [json.loads(line) for line in lines]
        if not found or found[-1]["check"] != "end":
            last = found[-1]["check"] if found else "the start"
            failures.setdefault("start", []).append(
                f"rank {rank} ended with {ended.code} after {last}:\n{ended.err[-4000:]}"
            )
        for line in found:
            if line["check"] not in (*names, "end"):
                names.append(line["check"])
            if line["error"]:
                text = f"rank {rank}: {line['error']}"
                failures.setdefault(line["check"], []).append(text)
    if "start" in failures:  # whatever was not reached has failed
        for name in names:
            failures.setdefault(name, []).extend(failures["start"])
    return Job(tuple(ranks), failures, tuple(names))


def run_script(
    argv: Sequence[str],
    size: int,
    *,
    environ: Mapping[str, str] | None = None,
    environ_of: Sequence[Mapping[str, str]] = (),
    limit_s: float = LIMIT_S,
    fresh: bool = False,
) -> list[Ended]:
    """`python argv` as `size` ranks on this host; `environ_of[rank]` is for one of them. Nothing of
    them is left afterwards."""
    base = {**_environ(), "MASTER_PORT": str(free_port()), **(environ or {})}
    base |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    with tempfile.TemporaryDirectory(prefix="torch-ranks-") as name:
        folder = Path(name)
        started: list[Process] = []
        try:
            for rank in range(size):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                own |= environ_of[rank] if environ_of else {}
                started.append(_start(argv, {**base, **own}, folder, rank, fresh))
            late = _wait(started, time.monotonic() + limit_s)
        finally:
            for process in started:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(KILL_S)
        return [_ended(rank, process, folder, rank in late) for rank, process in enumerate(started)]


def _environ() -> dict[str, str]:
    """What all ranks of all jobs are given."""
    base = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    paths = _paths(base)
    if importlib.util.find_spec("muster_collectives") is None:
        paths = [str(SOURCES), *paths]
    return base | {
        "PYTHONPATH": os.pathsep.join([*paths, str(CHECKOUT)]), "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COLLECTIVES_TIMEOUT_S": str(GROUP_S),
    }  # fmt: skip


@functools.cache
def _server(path: str) -> ForkServer:
    return ForkServer({**_environ(), "PYTHONPATH": path}, *TORCH)


def _start(
    argv: Sequence[str], environ: Mapping[str, str], folder: Path, rank: int, fresh: bool
) -> Process:
    out, err = folder / f"out-{rank}", folder / f"err-{rank}"
    if not fresh:
        return _server(environ["PYTHONPATH"]).start(argv, environ, out, err)
    with out.open("wb") as says, err.open("wb") as complains:
        return subprocess.Popen(
            [sys.executable, *argv], env=environ, stdin=subprocess.DEVNULL,
            stdout=says, stderr=complains, start_new_session=True,
        )  # fmt: skip


def _wait(started: Sequence[Process], end: float) -> set[int]:
    """The ranks that had not ended in time."""
    late = set()
    for rank, process in enumerate(started):
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            late.add(rank)
    return late


def _ended(rank: int, process: Process, folder: Path, late: bool) -> Ended:
    out, err = ((folder / f"{name}-{rank}").read_text(errors="replace") for name in ("out", "err"))
    return Ended(process.wait(KILL_S), out, err + "\n(killed: it did not end in time)" * late)


def _paths(environ: Mapping[str, str]) -> list[str]:
    return [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]


# --- in the ranks


@dataclass
class World:
    """What a check has. `store` is the job's; `gloo` a group of the same ranks to compare with,
    made at its first use, so by all ranks together."""

    rank: int
    size: int
    store: Any
    backend: str
    folder: Path
    _gloo: Any = None

    def start(self, backend: str = "", timeout_s: float = GROUP_S) -> None:
        """init_process_group over the job's store."""
        import torch.distributed as dist

        dist.init_process_group(
            backend or self.backend, store=self.store, rank=self.rank, world_size=self.size,
            timeout=timedelta(seconds=timeout_s),
        )  # fmt: skip

    @property
    def gloo(self) -> Any:
        import torch.distributed as dist

        if self._gloo is None:
            self._gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=GROUP_S))
        return self._gloo

    def drop(self) -> None:
        import torch.distributed as dist

        self._gloo = None
        if dist.is_initialized():
            dist.destroy_process_group()


Check = Callable[[World], None]


def open_store(timeout_s: float = GROUP_S) -> Any:
    """The job's store, which rank 0 serves."""
    import torch.distributed as dist

    return dist.TCPStore(
        "127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=os.environ["RANK"] == "0",
        wait_for_workers=False, timeout=timedelta(seconds=timeout_s),
    )  # fmt: skip


def main(checks: Sequence[Check], start: bool = True) -> None:
    """Runs the checks in order on this rank and writes how each ended. `start`: in a group made
    before and destroyed after all of them."""
    import torch

    import muster_collectives.torch  # noqa: F401

    torch.set_num_threads(1)
    folder = Path(os.environ["CHECKS_FOLDER"])
    only = [name for name in os.environ.get("CHECKS_ONLY", "").split(",") if name]
    world = World(
        int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), open_store(),
        os.environ["CHECKS_BACKEND"], folder,
    )  # fmt: skip
    with (folder / f"rank{world.rank}.jsonl").open("w", buffering=1) as said:
        if start:
            _say(said, "start", world.start)
        for check in checks:
            if not only or check.__name__ in only:
                torch.manual_seed(1234)
                _say(said, check.__name__, lambda check=check: check(world))  # type: ignore[misc]
        _say(said, "stop", world.drop)
        said.write(json.dumps({"check": "end", "error": ""}) + "\n")
        # whoever serves the store goes last
        world.store.add("ended", 1)
        end = time.monotonic() + GROUP_S
        while world.rank == 0 and world.store.add("ended", 0) < world.size:
            if time.monotonic() > end:
                break
            time.sleep(0.005)


def _say(said: Any, name: str, action: Callable[[], None]) -> None:
    error = ""
    began = time.monotonic()
    try:
        action()
    except BaseException:
        error = traceback.format_exc()
    took_s = round(time.monotonic() - began, 3)
    said.write(json.dumps({"check": name, "error": error, "took_s": took_s}) + "\n")

"""Real servers of `muster_parameter_server`, and workers as processes or threads."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

import pytest

from tests.support.forkserver import TORCH, Forked, ForkServer
from tests.support.ports import free_ports
from tests.support.waiting import wait_until, within

KEY = "5a" * 32
END_S = 90.0  # two busy cores start Python and torch several times


class Ended(NamedTuple):
    code: int
    output: str


class Places:
    """Addresses on loopback and the environment that workers get."""

    def __init__(self, servers: int, workers: int, key: str = KEY) -> None:
        self.addresses = [("127.0.0.1", port) for port in free_ports(servers)]
        self.variables = {
            "PARAMETER_SERVER_ADDRESSES": ",".join(f"{h}:{p}" for h, p in self.addresses),
            "PARAMETER_SERVER_KEY": key,
            "PARAMETER_SERVER_WORKERS": str(workers),
            "WORLD_SIZE": str(workers),
        }

    def environ(self, rank: int, **more: str) -> dict[str, str]:
        return {**self.variables, "RANK": str(rank), **more}

    def listens(self) -> bool:
        """Whether every server can be connected to."""
        try:
            for address in self.addresses:
                socket.create_connection(address, 1).close()
        except OSError:
            return False
        return True


class Inside(Places):
    """Real servers in threads of this process: no time goes into starting Python and torch."""

    def __init__(self, servers: int, workers: int) -> None:
        from muster_parameter_server.server import Server
        from muster_parameter_server.settings import read_server

        super().__init__(servers, workers)
        settings = (
            read_server({**self.variables, "PARAMETER_SERVER_INDEX": str(number)})
            for number in range(servers)
        )
        self._codes: list[int | None] = [None] * servers
        self._threads = [
            threading.Thread(target=self._run, args=(number, Server(one)), daemon=True)
            for number, one in enumerate(settings)
        ]
        for thread in self._threads:
            thread.start()
        wait_until(self.listens, END_S)

    def codes(self) -> list[int | None]:
        """The exit codes of all servers, once they have ended."""
        for thread in self._threads:
            thread.join(within(END_S))
        return self._codes

    def _run(self, number: int, server: Any) -> None:
        self._codes[number] = server.run()


Process = Union[Forked, "subprocess.Popen[bytes]"]


@functools.cache
def _torch() -> ForkServer:
    return ForkServer({**os.environ, "OMP_NUM_THREADS": "1"}, *TORCH)


class Servers(Places):
    """Server processes: forks of one that has imported torch, and what comes with optimizers."""

    def __init__(self, folder: Path, servers: int, workers: int, key: str = KEY) -> None:
        super().__init__(servers, workers, key)
        self._folder = folder
        self._running: list[tuple[Process, Path]] = []
        self.servers = [self._serve(number) for number in range(servers)]

    def _serve(self, number: int) -> Forked:
        return self._forked(["-m", "muster_parameter_server"], PARAMETER_SERVER_INDEX=str(number))

    def _forked(self, argv: Sequence[str], **more: str) -> Forked:
        log = self._folder / f"process-{len(self._running)}.log"
        log.touch()
        process = _torch().start(argv, self._environ(**more), log)
        self._running.append((process, log))
        return process

    def _environ(self, **more: str) -> dict[str, str]:
        return {**os.environ, **self.variables, "OMP_NUM_THREADS": "1", **more}

    def start(
        self, argv: Sequence[str], inherited: Sequence[int] = (), **more: str
    ) -> subprocess.Popen[bytes]:
        log = self._folder / f"process-{len(self._running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                env=self._environ(**more), pass_fds=inherited,
            )  # fmt: skip
        self._running.append((process, log))
        return process

    def worker(self, script: Path, rank: int, *arguments: str) -> subprocess.Popen[bytes]:
        return self.start([sys.executable, str(script), *arguments], RANK=str(rank))

    def worker_without_input(self, script: Path, rank: int, *arguments: str) -> Forked:
        """A fork, as servers are."""
        return self._forked([str(script), *arguments], RANK=str(rank))

    def output(self, process: Process) -> str:
        return next(log for one, log in self._running if one is process).read_text()

    def ended(self, process: Process, within_s: float = END_S) -> Ended:
        """How it ended and what it said; fails the test when it does not."""
        try:
            code = process.wait(within(within_s))
        except subprocess.TimeoutExpired:
            pytest.fail(f"{process.args!r} still runs after {within_s} s: {self.output(process)}")
        return Ended(code, self.output(process))

    def until_said(self, process: Process, text: str) -> None:
        wait_until(lambda: text in self.output(process), END_S, lambda: self.output(process))

    def codes(self) -> list[int]:
        """The exit codes of all servers, once they have ended."""
        return [self.ended(server).code for server in self.servers]

    def close(self) -> None:
        for process, _ in self._running:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def connect(made: Places, rank: int, **more: Any) -> Any:
    """A ParameterServer in this process: 1000 zeros and plain SGD, unless `more` says otherwise."""
    import torch

    from muster_parameter_server import ParameterServer, sgd

    given: dict[str, Any] = {"timeout_s": END_S, "environ": made.environ(rank), **more}
    tensors = given.pop("tensors", [torch.zeros(1000)])
    return ParameterServer.connect(tensors, given.pop("optimizer", sgd(0.1)), **given)


def together(*acts: Callable[[], object], within_s: float = END_S) -> list[object]:
    """Runs each in a thread; what each returned, or the exception that it raised."""
    results: list[object] = [None] * len(acts)

    def run(number: int) -> None:
        try:
            results[number] = acts[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(acts))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + within(within_s)
    for number, thread in enumerate(threads):
        thread.join(max(0.0, end - time.monotonic()))
        assert not thread.is_alive(), f"worker {number} still runs after {within_s} s"
    return results


Maker = Callable[..., Servers]


@pytest.fixture(name="servers")
def servers_fixture(tmp_path: Path) -> Iterator[Maker]:
    """`servers(2, workers=2)` starts them; afterwards nothing of them is left."""
    made: list[Servers] = []

    def make(count: int, workers: int, **more: str) -> Servers:
        folder = tmp_path / f"servers-{len(made)}"
        folder.mkdir()
        made.append(Servers(folder, count, workers, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def script(folder: Path, text: str, name: str = "worker.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path

"""What happens when workers or servers die, disagree or do not come: who is named, and how soon."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.parameter_server.support.servers import (
    END_S,
    Inside,
    Maker,
    Places,
    connect,
    script,
    servers_fixture,
    together,
)
from tests.support.waiting import wait_until, within

pytestmark = pytest.mark.torch
__all__ = ["servers_fixture"]

NOTICED_S = 5.0
# pushes as many steps as it is told, then says so and goes on with the next line of its input
WORKER = """
import sys, torch
from muster_parameter_server import ParameterServer, sgd
torch.set_num_threads(1)
parameter = torch.zeros(1000)
with ParameterServer.connect([parameter], sgd(0.1), timeout_s=90) as server:
    print("connected", flush=True)
    for line in sys.stdin:
        if line == "raise\\n":
            raise ValueError("out of luck")
        for _ in range(int(line)):
            server.push_pull([torch.ones_like(parameter)])
        print("did", server.step, flush=True)
"""


def _pushing(made: Places, rank: int, steps: int, **more: Any) -> Callable[[], object]:
    """Connects, pushes, says goodbye; returns the step it came to."""

    def work() -> object:
        import torch

        with connect(made, rank, **more) as server:
            for _ in range(steps):
                server.push_pull([torch.ones_like(one) for one in server.parameters])
            return server.step

    return work


def _tell(worker: Any, line: str) -> None:
    worker.stdin.write(f"{line}\n".encode())
    worker.stdin.flush()


def test_a_killed_worker_is_named_on_all_others_at_once(servers: Maker, tmp_path: Path) -> None:
    from muster_parameter_server import WorkerLostError

    made = servers(2, workers=3)
    victim = made.worker(script(tmp_path, WORKER), 2)
    killed: list[float] = []

    def survivor(rank: int) -> tuple[str, float]:
        import torch

        server = connect(made, rank)
        server.push_pull([torch.ones_like(server.parameters[0])])
        with pytest.raises(WorkerLostError) as told:  # rank 2 pushes no second time
            server.push_pull([torch.ones_like(server.parameters[0])])
        with pytest.raises(Exception, match="left its servers"):
            server.pull()
        return str(told.value), time.monotonic()

    def killer() -> None:
        made.until_said(victim, "connected")
        _tell(victim, "1")
        made.until_said(victim, "did 1")
        victim.kill()
        killed.append(time.monotonic())

    results = together(lambda: survivor(0), lambda: survivor(1), killer)
    for result in results[:2]:
        assert isinstance(result, tuple), result
        message, when = result
        assert "rank 2 was lost at step 1" in message
        assert when - killed[0] < within(NOTICED_S)
    assert made.codes() == [1, 1]
    assert "rank 2 was lost" in made.output(made.servers[0])


def test_a_worker_that_raises_is_named_and_says_no_goodbye(servers: Maker, tmp_path: Path) -> None:
    from muster_parameter_server import WorkerLostError

    made = servers(1, workers=2)
    failing = made.worker(script(tmp_path, WORKER), 1)
    _tell(failing, "raise")
    (result,) = together(_pushing(made, 0, 1))
    assert isinstance(result, WorkerLostError), result
    assert "rank 1 was lost at step 0" in str(result)
    assert made.ended(failing).code == 1
    assert made.codes() == [1]


FORKING = """
import os, sys, torch
from muster_parameter_server import ParameterServer, sgd
parameter = torch.zeros(1000)
with ParameterServer.connect([parameter], sgd(0.1), timeout_s=90) as server:
    if os.fork() == 0:
        sys.stdin.read()  # a data loader's process that outlives its parent
        os._exit(0)
    print("connected", flush=True)
    server.push_pull([torch.ones_like(parameter)])
"""


def test_a_worker_killed_while_it_waits_is_missed_although_its_child_lives(
    servers: Maker, tmp_path: Path
) -> None:
    """Rank 1 never pushes, so nothing but the end of rank 2 can wake rank 0."""
    from muster_parameter_server import WorkerLostError

    made = servers(1, workers=3)
    victim = made.worker(script(tmp_path, FORKING), 2)
    killed: list[float] = []

    def waiting() -> float:
        import torch

        server = connect(made, 0)
        with pytest.raises(WorkerLostError, match="rank 2 was lost at step 0"):
            server.push_pull([torch.ones(1000)])
        return time.monotonic()

    def killer() -> None:
        made.until_said(victim, "connected")
        victim.kill()
        killed.append(time.monotonic())

    when, idle, _ = together(waiting, lambda: connect(made, 1), killer)
    assert isinstance(when, float), when
    assert when - killed[0] < within(NOTICED_S)
    assert made.codes() == [1]
    with pytest.raises(WorkerLostError, match="rank 2"):  # told, although the server is gone
        idle.push_pull([None])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGKILL, -9, "was lost"), (signal.SIGTERM, 143, "was stopped by SIGTERM")],
)
def test_a_lost_server_is_named_by_its_address(
    number: signal.Signals, code: int, words: str, servers: Maker
) -> None:
    import torch

    from muster_parameter_server import ServerLostError

    made = servers(2, workers=2)
    host, port = made.addresses[1]
    hit: list[float] = []
    pushed: list[int] = []

    def work(rank: int) -> tuple[str, float]:
        server = connect(made, rank)
        server.push_pull([torch.ones(1000)])
        pushed.append(rank)
        wait_until(lambda: len(pushed) == 2, END_S)  # no answer is still on its way
        if rank == 0:
            hit.append(time.monotonic())
            made.servers[1].send_signal(number)
        with pytest.raises(ServerLostError) as told:
            while True:
                server.push_pull([torch.ones(1000)])
        return str(told.value), time.monotonic()

    for result in together(lambda: work(0), lambda: work(1)):
        assert isinstance(result, tuple), result
        message, when = result
        assert f"server 1 at {host}:{port}" in message and words in message
        assert when - hit[0] < within(NOTICED_S)
    assert made.codes() == [1, code]


def test_a_worker_that_does_not_push_is_named_after_the_deadline() -> None:
    from muster_parameter_server import DeadlineError

    made = Inside(1, workers=2)

    def lazy() -> object:
        server = connect(made, 1, timeout_s=5)
        wait_until(lambda: not made.listens(), END_S)
        return server

    busy, _ = together(_pushing(made, 0, 1, timeout_s=5), lazy)
    assert isinstance(busy, DeadlineError), busy
    assert "rank 0 waited 5 s" in str(busy) and "rank 1, at step 0" in str(busy)
    assert made.codes() == [1]


def test_a_worker_that_never_comes_is_named() -> None:
    from muster_parameter_server import DeadlineError

    made = Inside(1, workers=3)
    for result in together(_pushing(made, 0, 1, timeout_s=5), _pushing(made, 2, 1, timeout_s=5)):
        assert isinstance(result, DeadlineError), result
        assert "rank 1, which has not connected" in str(result)
    assert made.codes() == [1]


def test_workers_that_take_other_steps_are_told_so() -> None:
    from muster_parameter_server import WorkerLostError

    made = Inside(1, workers=2)
    short, long = together(_pushing(made, 0, 1), _pushing(made, 1, 3))
    assert short == 1
    assert isinstance(long, WorkerLostError), long
    assert "rank 0 has said goodbye after 1 steps" in str(long)
    assert made.codes() == [1]


def _different(name: str) -> tuple[dict[str, Any], str]:
    import torch

    from muster_parameter_server import adam, sgd

    return {
        "mode": ({"mode": "async"}, "mode: rank 1 has 'async', rank 0 'sync'"),
        "optimizer": ({"optimizer": adam(0.1)}, "optimizer: rank 1 has 'adam', rank 0 'sgd'"),
        "shape": ({"tensors": [torch.zeros(10, 100)]}, "tensor 0: rank 1 has float32 (10, 100)"),
        "count": ({"tensors": [torch.zeros(1000), torch.zeros(1)]}, "number of tensors"),
        "lr": ({"optimizer": sgd(0.2)}, "in its push of step 0"),
    }[name]


@pytest.mark.parametrize("name", ["mode", "optimizer", "shape", "count", "lr"])
def test_workers_that_disagree_all_hear_it(name: str) -> None:
    from muster_parameter_server import AgreementError

    more, words = _different(name)
    made = Inside(1, workers=2)
    results = together(_pushing(made, 0, 1), _pushing(made, 1, 1, **more))
    texts = [str(result) for result in results]
    assert all(isinstance(result, AgreementError) for result in results), texts
    assert texts[0] == texts[1]
    turned = words.replace("rank 1 has 'async', rank 0 'sync'", "rank 0 has 'sync', rank 1 'async'")
    turned = turned.replace("rank 1 has 'adam', rank 0 'sgd'", "rank 0 has 'sgd', rank 1 'adam'")
    assert any(one in texts[0] for one in (words, turned, "rank 0 has float32 (1000,)")), texts
    assert made.codes() == [1]


def test_a_rank_that_exists_already_is_refused_and_harms_nobody() -> None:
    from muster_parameter_server import ProtocolError

    made = Inside(1, workers=2)
    first: list[Any] = []

    def late() -> object:
        wait_until(lambda: bool(first), END_S)
        with pytest.raises(ProtocolError, match=r"rank 0 is connected .* already"):
            connect(made, 0)
        with pytest.raises(ProtocolError, match="there is no rank 2"):
            connect(made, 2, environ=made.environ(2, WORLD_SIZE="3"))
        first.append("refused")
        return "refused"

    def work(rank: int) -> object:
        import torch

        with connect(made, rank) as server:
            first.append(rank)
            wait_until(lambda: "refused" in first, END_S)
            server.push_pull([torch.ones(1000)])
        return "done"

    assert together(lambda: work(0), lambda: work(1), late) == ["done", "done", "refused"]
    assert made.codes() == [0]


def test_sigterm_ends_a_server_that_nobody_came_to(servers: Maker) -> None:
    made = servers(1, workers=1)
    wait_until(made.listens, END_S)
    made.servers[0].terminate()
    assert made.codes() == [143]


def test_a_taken_port_and_missing_variables_are_said(servers: Maker) -> None:
    made = servers(1, workers=1)
    wait_until(made.listens, END_S)
    module = made.servers[0].args
    second = made.start(module, PARAMETER_SERVER_INDEX="0")
    lost = made.start(module, PARAMETER_SERVER_INDEX="7")
    ended = made.ended(second)
    assert ended.code == 1 and "cannot listen on 127.0.0.1" in ended.output
    ended = made.ended(lost)
    assert ended.code == 2 and "PARAMETER_SERVER_INDEX='7'" in ended.output

"""Loading and saving: what begins anew, what goes on, and workers that come late to it."""

from __future__ import annotations

import math
import socket
import sys
import time
from typing import Any

import pytest

from tests.parameter_server.support.servers import END_S, Inside, connect, together
from tests.support.waiting import wait_until

pytestmark = pytest.mark.torch
LOOKS = 600  # at a state that others change meanwhile


def test_load_without_state_begins_anew() -> None:
    import torch

    from muster_parameter_server import adam

    made, weight = Inside(2, workers=1), torch.zeros(1000)
    with connect(made, 0, tensors=[weight], optimizer=adam(0.1)) as server:
        for _ in range(5):
            server.push_pull([torch.full((1000,), 10.0)])
        assert server.version == 5
        weight.zero_()
        server.load()
        assert server.version == 0
        assert not any(slot[0].any() for slot in server.state().values())
        server.push_pull([torch.full((1000,), -1.0)])
        assert (weight - 0.1).abs().max() < 1e-6  # a first step of Adam, whatever came before
    assert made.codes() == [0, 0]


def test_an_empty_state_dict_begins_anew() -> None:
    import torch

    from muster_parameter_server import ServerOptimizer, adam

    made, weight = Inside(1, workers=1), torch.nn.Parameter(torch.zeros(3))
    optimizer = ServerOptimizer([weight], adam(0.1), environ=made.environ(0))
    fresh = optimizer.state_dict()
    for _ in range(3):
        weight.grad = torch.ones(3)
        optimizer.step()
    optimizer.load_state_dict(fresh)
    assert not optimizer.server.state()["exp_avg"][0].any()
    assert optimizer.state_dict()["state"] == {}
    optimizer.close()
    assert made.codes() == [0]


def test_a_state_goes_with_its_version() -> None:
    import torch

    from muster_parameter_server import SettingsError, sgd

    made, weight = Inside(1, workers=1), torch.zeros(3)
    with connect(made, 0, tensors=[weight], optimizer=sgd(0.1, momentum=0.9)) as server:
        for _ in range(2):
            server.push_pull([torch.ones(3)])
        state, version = server.state(), server.version
        for bad in ((state, None), (state, -1), (None, 2), (None, -1)):
            with pytest.raises(SettingsError, match="version"):
                server.load(*bad)
        weight.zero_()
        server.load(state, version)
        server.push_pull([None])
        assert torch.allclose(weight, -0.1 * 0.9 * state["momentum_buffer"][0])
        assert server.version == 3
    assert made.codes() == [0]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_the_state_of_torch_optim_is_taken_and_given(name: str) -> None:
    import torch

    import muster_parameter_server
    from muster_parameter_server import ServerOptimizer

    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1}
    options.update({"momentum": 0.9, "dampening": 0.5} if name == "sgd" else {})
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    theirs = [torch.nn.Parameter(torch.ones(50)), torch.nn.Parameter(torch.ones(2, 3))]
    torch_one = kind(theirs, **options)

    def step(parameters: Any, optimizer: Any) -> None:
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.full_like(parameter, number + 1.0)
        optimizer.step()

    step(theirs, torch_one)
    ours = [torch.nn.Parameter(one.detach().clone()) for one in theirs]
    made = Inside(1, workers=1)
    optimizer = ServerOptimizer(
        ours, getattr(muster_parameter_server, name)(**options), environ=made.environ(0)
    )
    optimizer.load_state_dict(torch_one.state_dict())
    step(theirs, torch_one)
    step(ours, optimizer)
    back = kind(ours, **options)
    back.load_state_dict(optimizer.state_dict())
    optimizer.close()
    step(theirs, torch_one)
    step(ours, back)
    for mine, known in zip(ours, theirs, strict=True):
        assert (mine - known).abs().max() < 1e-6
    assert made.codes() == [0]


def test_a_state_of_another_kind_is_refused_and_changes_nothing() -> None:
    import torch

    from muster_parameter_server import ServerOptimizer, SettingsError, adam

    made, weight = Inside(1, workers=1), torch.nn.Parameter(torch.zeros(3))
    optimizer = ServerOptimizer([weight], adam(0.1), environ=made.environ(0))
    before = optimizer.state_dict()
    other = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3))]
    for state in (
        torch.optim.Adam(other[:1], maximize=True),
        torch.optim.Adam(other[:1], amsgrad=True),
        torch.optim.AdamW(other[:1]),
        torch.optim.SGD(other[:1], lr=0.1),
        torch.optim.Adam(other),
    ):
        with pytest.raises(SettingsError):
            optimizer.load_state_dict(state.state_dict())
        assert optimizer.state_dict() == before
    with pytest.raises(SettingsError, match="maximize"):
        ServerOptimizer([{"params": other, "maximize": True}], adam(0.1), environ=made.environ(0))
    optimizer.close()
    assert made.codes() == [0]


@pytest.mark.parametrize("options", [{"lr": 2**-10}, {"lr": 2**-10, "momentum": 0.5}])
def test_half_types_go_on_where_they_were_saved(options: dict[str, float]) -> None:
    """201 steps leave a bfloat16 between two of its values; the state holds where."""
    import torch

    from muster_parameter_server import ServerOptimizer, sgd

    made = Inside(2, workers=1)
    half = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    full = torch.nn.Parameter(torch.ones(4))
    optimizer = ServerOptimizer([half, full], sgd(**options), environ=made.environ(0))

    def train(steps: int) -> list[torch.Tensor]:
        for _ in range(steps):
            half.grad, full.grad = torch.ones_like(half), torch.ones_like(full)
            optimizer.step()
        return [half.detach().clone(), full.detach().clone()]

    kept = train(201)
    saved = optimizer.state_dict()
    once = train(3)
    master = optimizer.server.state()["master"][0]
    assert not torch.equal(saved["state"][0]["master"].bfloat16().float(), master)
    for parameter, value in zip((half, full), kept, strict=True):
        parameter.data.copy_(value)
    optimizer.load_state_dict(saved)
    assert all(map(torch.equal, train(3), once))
    assert torch.equal(optimizer.server.state()["master"][0], master)
    half.data.fill_(2.0)  # other values than were saved: they decide
    optimizer.load_state_dict(saved)
    assert torch.equal(optimizer.server.state()["master"][0], torch.full((5,), 2.0))
    optimizer.close()
    assert made.codes() == [0, 0]


def test_a_late_worker_does_not_break_a_load_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's tensors are more than sockets hold, and TCP gives up where nothing moves."""
    import torch

    from muster_parameter_server.wire import sockets

    monkeypatch.setattr(sockets, "_VANISHED_MS", 3000)
    made, connected = Inside(1, workers=2), []

    def work(rank: int) -> float:
        weight = torch.zeros(8 << 20)
        environ = made.environ(rank, PARAMETER_SERVER_TRANSPORT="tcp")
        with connect(made, rank, tensors=[weight], environ=environ) as server:
            connected.append(time.monotonic())
            if rank == 1:
                wait_until(lambda: time.monotonic() > connected[0] + 8, END_S)
            else:
                weight.fill_(3.0)
            server.load()
        return float(weight.min())

    assert together(lambda: work(0), lambda: work(1)) == [3.0, 3.0]
    assert made.codes() == [0]


def test_who_waits_while_tensors_come_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 needs more than `timeout_s` for its gradient, but is never silent for so long."""
    import torch

    from muster_parameter_server import room
    from muster_parameter_server.client import exchange

    monkeypatch.setattr(exchange, "MARGIN_S", 0.5)
    monkeypatch.setattr(room, "_WAIT_EVERY_S", 0.1)
    made = Inside(1, workers=2)

    def fast() -> int:
        with connect(made, 0, timeout_s=2) as server:
            server.push_pull([torch.ones(1000)])
            return int(server.version)

    def slow() -> int:
        with connect(made, 1, timeout_s=2) as server:
            (link,) = server._exchange.links
            trickle = _Trickle(link.sock)
            link.sock = trickle
            server.push_pull([torch.ones(1000)])
            return int(server.version)

    began = time.monotonic()
    assert together(fast, slow) == [1, 1]
    assert time.monotonic() - began > 4
    assert made.codes() == [0]


class _Trickle:
    """A socket that lets 20 bytes out every 25 ms, so that 4,000 of them take 5 s."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._next = 0.0

    def sendmsg(self, parts: list[memoryview]) -> int:
        if time.monotonic() < self._next:
            raise BlockingIOError
        self._next = time.monotonic() + 0.025
        return self._sock.send(bytes(parts[0][:20]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def test_a_state_of_async_mode_is_of_one_version() -> None:
    """With momentum 1 and gradients of 1 the buffer counts the updates.

    Threads take turns as often as they can, so that a number read apart from its tensors shows.
    """
    import torch

    from muster_parameter_server import sgd

    made, over, ranks = Inside(2, workers=3), [], [0, 2]

    def push() -> None:
        given = {"optimizer": sgd(1e-6, momentum=1.0), "mode": "async", "staleness": math.inf}
        with connect(made, ranks.pop(), tensors=[torch.zeros(20_000)], **given) as server:
            while not over:
                server.push_pull([torch.ones(20_000)])

    def look() -> int:
        given = {"optimizer": sgd(1e-6, momentum=1.0), "mode": "async", "staleness": math.inf}
        looks = 0
        with connect(made, 1, tensors=[torch.zeros(20_000)], **given) as server:
            try:
                while looks < LOOKS or server.version < LOOKS:
                    (buffer,) = server.state()["momentum_buffer"]
                    first, second = buffer.split(10_000)  # of server 0, of server 1
                    assert first.min() == first.max() == server.version
                    assert second.min() == second.max()
                    looks += 1
            finally:
                over.append(True)
        return looks

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        results = together(push, push, look)
    finally:
        sys.setswitchinterval(before)
    assert results[:2] == [None, None], results
    assert isinstance(results[2], int) and results[2] >= LOOKS, results
    assert made.codes() == [0, 0]

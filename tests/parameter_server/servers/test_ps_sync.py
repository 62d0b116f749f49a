"""Sync mode against one process with torch.optim, with real servers and worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parameter_server.support.servers import (
    Inside,
    Maker,
    Servers,
    script,
    servers_fixture,
    together,
)

pytestmark = pytest.mark.torch
__all__ = ["servers_fixture"]

STEPS = 12
# one group for each way of an optimizer, so that one job tries them all
GROUPS: dict[str, list[dict[str, Any]]] = {
    "sgd": [
        {"lr": 0.1},
        {"lr": 0.05, "momentum": 0.9},
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.5, "dampening": 0.3},
    ],
    "adam": [{"lr": 0.01}, {"lr": 0.02, "weight_decay": 0.1}, {"lr": 0.01, "betas": (0.5, 0.9)},
             {"lr": 0.01, "eps": 1e-3}],
    "adamw": [{"lr": 0.01}, {"lr": 0.02, "weight_decay": 0.1}, {"lr": 0.01, "betas": (0.5, 0.9)},
              {"lr": 0.01, "eps": 1e-3}],
}  # fmt: skip
# model, data and gradients, the same in the workers and in the test
MODEL = f"""
import torch
from torch import nn
torch.set_num_threads(1)
STEPS = {STEPS}
GROUPS = {GROUPS!r}

def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 50), nn.Tanh(), nn.Linear(50, 30),
        nn.Tanh(), nn.Linear(30, 4))

def groups(model, name):
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    return [{{"params": list(layer.parameters()), **more}}
            for layer, more in zip(layers, GROUPS[name])]

def backward(model, step, rank):
    chance = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(16, 20, generator=chance)
    labels = torch.randint(4, (16,), generator=chance)
    nn.functional.cross_entropy(model(inputs), labels).backward()
"""
WORKER = (
    MODEL
    + """
import os, sys
from muster_parameter_server import ServerOptimizer, adam, adamw, sgd

name, rank = sys.argv[1], int(os.environ["RANK"])
model = network(seed=rank)
made = {"sgd": sgd(lr=0.1), "adam": adam(), "adamw": adamw()}[name]
optimizer = ServerOptimizer(groups(model, name), made, timeout_s=90)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
for step in range(STEPS):
    optimizer.zero_grad()
    backward(model, step, rank)
    optimizer.step()
    schedule.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[2])
assert optimizer.server.version == STEPS
# neither close() nor with: the end of the script says goodbye
"""
)


def _one_process(name: str) -> Any:
    """(model, optimizer) after the same steps on the mean gradient of both workers."""
    import torch

    known: dict[str, Any] = {}
    exec(compile(MODEL, "model", "exec"), known)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    model = known["network"](seed=0)
    optimizer = kind(known["groups"](model, name), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(2):
            known["backward"](model, step, rank)
        for parameter in model.parameters():
            parameter.grad.div_(2)
        optimizer.step()
        schedule.step()
    return model, optimizer


@pytest.mark.parametrize(("name", "transport"), [("sgd", ""), ("adam", "tcp"), ("adamw", "")])
def test_sync_equals_one_process_on_the_mean_gradient(
    name: str, transport: str, servers: Maker, tmp_path: Path
) -> None:
    import torch

    made: Servers = servers(2, workers=2)
    made.variables["PARAMETER_SERVER_TRANSPORT"] = transport
    path = script(tmp_path, WORKER)
    files = [tmp_path / f"rank{rank}.pt" for rank in range(2)]
    workers = [
        made.worker_without_input(path, rank, name, str(file)) for rank, file in enumerate(files)
    ]
    for worker in workers:
        ended = made.ended(worker)
        assert ended.code == 0, ended.output
    assert made.codes() == [0, 0]

    first, second = (torch.load(file, weights_only=True) for file in files)
    model, optimizer = _one_process(name)
    for place, value in model.state_dict().items():
        assert torch.equal(first["model"][place], second["model"][place]), place
        assert (first["model"][place] - value).abs().max() < 1e-6, place
    theirs, ours = optimizer.state_dict()["state"], first["optimizer"]["state"]
    assert sorted(theirs) == sorted(ours)
    for number, slots in theirs.items():
        assert sorted(slots) == sorted(ours[number])
        for slot, value in slots.items():
            assert (ours[number][slot] - value).abs().max() < 1e-6, (number, slot)


def test_a_loaded_state_repeats_what_followed_it() -> None:
    import torch

    from muster_parameter_server import ServerOptimizer, adam

    made = Inside(2, workers=2)

    def work(rank: int) -> Any:
        parameters = [torch.full((1000,), float(rank)), torch.full((3, 7), float(rank))]
        for parameter in parameters:
            parameter.requires_grad_()
        optimizer = ServerOptimizer(parameters, adam(0.1), environ=made.environ(rank))

        def train(first: int, last: int) -> list[torch.Tensor]:
            for step in range(first, last):
                for parameter in parameters:
                    parameter.grad = torch.full_like(parameter, float(step + rank))
                optimizer.step()
            return [parameter.detach().clone() for parameter in parameters]

        kept, state = train(0, 3), optimizer.state_dict()
        once = train(3, 6)
        if rank == 0:  # the other's values do not count
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.data.copy_(value)
        optimizer.load_state_dict(state)
        again = train(3, 6)
        optimizer.close()
        return once, again

    for result in together(lambda: work(0), lambda: work(1)):
        assert isinstance(result, tuple), result
        once, again = result
        for one, two in zip(once, again, strict=True):
            assert torch.equal(one, two)
    assert made.codes() == [0, 0]


def test_values_of_rank_0_survive_in_every_dtype_and_shape() -> None:
    import torch

    from muster_parameter_server import ParameterServer, sgd

    made = Inside(3, workers=2)
    odd = [0.0, -0.0, 1.5, -2.25, float("inf"), float("-inf"), float("nan"), 6e-8, 65504.0]

    def tensors(zeros: bool) -> list[torch.Tensor]:
        found = []
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            row = torch.tensor(odd, dtype=dtype)
            found += [row.clone(), row.repeat(41).reshape(9, 41).t(), row[2].clone()]
            found += [torch.zeros(0, 5, dtype=dtype), row.repeat(12).reshape(3, 1, 4, 9)[:, :, ::2]]
        return [torch.zeros_like(one) for one in found] if zeros else found

    def work(rank: int) -> list[torch.Tensor]:
        mine = tensors(zeros=rank == 1)
        with ParameterServer.connect(mine, sgd(0.0), environ=made.environ(rank)) as server:
            assert server.pull() is server.parameters
            gradients: list[torch.Tensor | None] = [None] * len(mine)
            # nothing is learned from nothing: but for nan - 0 and the like, which stay as they are
            server.push_pull(gradients)
        return mine

    for result in together(lambda: work(0), lambda: work(1)):
        assert isinstance(result, list), result
        for value, known in zip(result, tensors(zeros=False), strict=True):
            assert value.dtype == known.dtype and value.shape == known.shape
            assert torch.equal(value.isnan(), known.isnan())
            assert torch.equal(value.nan_to_num(), known.nan_to_num())
    assert made.codes() == [0, 0, 0]


def test_half_types_learn_steps_that_they_could_not_hold() -> None:
    """The master copy is float32: 400 steps of 2^-10 move a bfloat16 that is 1."""
    import torch

    from muster_parameter_server import ParameterServer, sgd

    made = Inside(1, workers=1)
    parameter = torch.ones(5, dtype=torch.bfloat16)
    with ParameterServer.connect([parameter], sgd(2**-10), environ=made.environ(0)) as server:
        for _ in range(400):
            server.push_pull([torch.ones(5, dtype=torch.bfloat16)])
    assert torch.equal(parameter, torch.full((5,), 1 - 400 / 1024).bfloat16())
    assert made.codes() == [0]

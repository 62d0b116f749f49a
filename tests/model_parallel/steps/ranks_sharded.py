"""Checks of an optimizer whose state is divided among replicas, each run by all ranks of one job:
`ranks_sharded.py FOLDER`, in which the last check leaves checkpoints."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import muster_modelparallel as smp
from muster_modelparallel.errors import SettingsError, StepError
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give

WIDTH, BATCH, LAYERS = 6, 8, 8
STEPS = 4


def main() -> None:
    torch.set_num_threads(1)
    give(said_by(CHECKS, lambda: begin(False), over))


def begin(shards: bool) -> None:
    over()
    smp.init({"shard_optimizer_state": shards})
    torch.manual_seed(5)


def net() -> nn.Module:
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    )


@smp.step
def train(model, x, y):
    loss = 50 * functional.mse_loss(model(x), y)  # so that a limit of norms counts
    model.backward(loss)
    return loss


def groups(module: nn.Module) -> list[dict[str, Any]]:
    named = list(module.named_parameters())
    return [
        {"params": [one for name, one in named if "weight" in name], "lr": 0.01},
        {"params": [one for name, one in named if "bias" in name], "lr": 0.05},
    ]


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda module: torch.optim.SGD(groups(module), momentum=0.9, weight_decay=0.01),
    "AdamW": lambda module: torch.optim.AdamW(groups(module), weight_decay=0.1),
    "Adagrad": lambda module: torch.optim.Adagrad(groups(module)),
    "FusedLAMB": lambda module: smp.FusedLAMB(groups(module)),
    "FusedNovoGrad": lambda module: smp.FusedNovoGrad(groups(module)),
}


def wrapped(make: Callable[[nn.Module], torch.optim.Optimizer]) -> tuple[Any, Any]:
    module = net()
    model = smp.DistributedModel(module)
    return model, smp.DistributedOptimizer(make(module))


def steps(model: Any, optimizer: Any, count: int = STEPS) -> None:
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(count):
        x, y = (torch.randn(BATCH * smp.dp_size(), WIDTH) for _ in range(2))
        mine = slice(smp.dp_rank() * BATCH, (smp.dp_rank() + 1) * BATCH)
        optimizer.zero_grad()
        train(model, x[mine], y[mine])
        optimizer.step()
        schedule.step()


def trained(shards: bool, name: str) -> tuple[Any, Any]:
    begin(shards)
    model, optimizer = wrapped(OPTIMIZERS[name])
    steps(model, optimizer)
    return model, optimizer


def trained_alone(name: str) -> nn.Module:
    """One process has the batches of all replicas."""
    torch.manual_seed(5)
    module = net()
    optimizer = OPTIMIZERS[name](module)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(STEPS):
        x, y = (torch.randn(BATCH * smp.dp_size(), WIDTH) for _ in range(2))
        optimizer.zero_grad()
        (50 * functional.mse_loss(module(x), y)).backward()
        optimizer.step()
        schedule.step()
    return module


def held(model: Any) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in model.local_named_parameters()}


def same(one: Any, other: Any) -> bool:
    """Of nests of dictionaries and lists with tensors."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def parameters_and_whole_states_are_the_bits_of_one_that_is_not_sharded() -> None:
    for name in OPTIMIZERS if smp.pp_size() == 1 else ("AdamW", "FusedLAMB"):
        model, optimizer = trained(False, name)
        wanted, state = held(model), optimizer.state_dict()
        model, optimizer = trained(True, name)
        assert same(held(model), wanted), name
        assert same(optimizer.state_dict(), state), name
        alone = dict(trained_alone(name).named_parameters())
        for key, one in wanted.items():
            torch.testing.assert_close(one, alone[key], rtol=1e-4, atol=1e-5, msg=f"{name} {key}")


def state_bytes(optimizer: Any) -> int:
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def each_replica_keeps_its_share_of_the_state() -> None:
    for name in ("AdamW", "Adagrad"):
        whole = state_bytes(trained(False, name)[1])
        _, optimizer = trained(True, name)
        mine = state_bytes(optimizer)
        assert abs(mine - whole / smp.rdp_size()) <= 0.05 * whole, (name, mine, whole)
        shares = smp.allgather(
            sorted(optimizer.local_state_dict(gather_if_shard=False)["state"]), smp.RDP_GROUP
        )
        together = sorted(number for share in shares for number in share)
        assert together == sorted(optimizer.local_state_dict()["state"]), name


def a_whole_state_is_loaded_by_shares() -> None:
    model, optimizer = trained(True, "AdamW")
    state, parameters = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    steps(model, optimizer)
    wanted = held(model)
    begin(True)
    model, optimizer = wrapped(OPTIMIZERS["AdamW"])
    steps(model, optimizer, 1)
    model.load_state_dict(parameters)
    optimizer.load_state_dict(state)
    moments = 2 * sum(one.nbytes for one in model.local_parameters())
    assert state_bytes(optimizer) < 0.7 * moments
    torch.manual_seed(5)
    net()
    for _ in range(2 * STEPS):  # the numbers that the first ones drew
        torch.randn(BATCH * smp.dp_size(), WIDTH)
    steps(model, optimizer)
    assert same(held(model), wanted)


def a_share_is_loaded_by_the_replica_that_saved_it() -> None:
    begin(True)
    model, optimizer = wrapped(OPTIMIZERS["AdamW"])
    first = next(iter(model.local_parameters()))
    first.requires_grad_(False)  # so that it gets its replica later than others
    steps(model, optimizer, 1)
    first.requires_grad_(True)
    steps(model, optimizer)
    whole = optimizer.state_dict()
    share = copy.deepcopy(optimizer.local_state_dict(gather_if_shard=False))
    begin(True)
    model, optimizer = wrapped(OPTIMIZERS["AdamW"])
    if smp.pp_size() > 1:
        return  # stages may be others
    optimizer.load_state_dict(share)
    assert same(optimizer.state_dict(), whole)
    steps(model, optimizer, 1)
    begin(False)
    _, optimizer = wrapped(OPTIMIZERS["AdamW"])
    try:
        optimizer.load_state_dict(share)
    except SettingsError as error:
        assert "the share of one of 2 replicas" in str(error)
    else:
        raise AssertionError("not refused")


def a_closure_is_refused() -> None:
    begin(True)
    _, optimizer = wrapped(OPTIMIZERS["SGD"])
    try:
        optimizer.step(lambda: None)
    except StepError as error:
        assert "shard_optimizer_state" in str(error)
    else:
        raise AssertionError("not refused")


def checkpoints_are_resumed_whether_sharded_or_not() -> None:
    for partial in (True, False):
        folder = str(Path(sys.argv[1], "partial" if partial else "full"))
        for shards in (True, False):
            model, optimizer = trained(shards, "AdamW")
            wanted, state = held(model), optimizer.state_dict()
            smp.save_checkpoint(folder, "one", partial, model, optimizer)
            begin(not shards)
            model, optimizer = wrapped(OPTIMIZERS["AdamW"])
            smp.resume_from_checkpoint(folder, partial=partial)
            if smp.pp_size() > 1:
                steps(model, optimizer, 1)  # cuts the model
                smp.resume_from_checkpoint(folder, partial=partial)
            assert same(held(model), wanted)
            assert same(optimizer.state_dict(), state)


CHECKS = (
    parameters_and_whole_states_are_the_bits_of_one_that_is_not_sharded,
    each_replica_keeps_its_share_of_the_state,
    a_whole_state_is_loaded_by_shares,
    a_share_is_loaded_by_the_replica_that_saved_it,
    a_closure_is_refused,
    checkpoints_are_resumed_whether_sharded_or_not,
)

if __name__ == "__main__":
    main()

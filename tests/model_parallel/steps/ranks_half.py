"""Checks of models in half precision with master weights, each run by all ranks of one job:
`ranks_half.py FOLDER`, which one of them leaves checkpoints in."""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import muster_modelparallel as smp
from muster_modelparallel.errors import StepError
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give

WIDTH, BATCH, MICROBATCHES, STEPS = 8, 8, 2, 4
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LR = 1e-3  # a step of a weight of 1 that half precision would lose


def main() -> None:
    torch.set_num_threads(1)
    give(said_by(CHECKS, lambda: begin("bf16"), over))


def begin(kind: str) -> None:
    over()
    smp.init({kind: True, "microbatches": MICROBATCHES})
    torch.manual_seed(5)


def net() -> nn.Module:
    made = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6)])
    with torch.no_grad():
        for one in made.parameters():
            one.add_(torch.sign(one))  # so that a step is below the rounding of half precision
            one.mul_(0.5)
    return made


@smp.step
def train(model, x, y):
    loss = functional.mse_loss(model(x).float(), y)
    model.backward(loss)
    return loss


def batches(count: int, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Those of all replicas."""
    torch.manual_seed(7)
    size = BATCH * smp.dp_size()
    return [(torch.randn(size, WIDTH).to(dtype), torch.randn(size, WIDTH)) for _ in range(count)]


def mine(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[smp.dp_rank() * BATCH : (smp.dp_rank() + 1) * BATCH]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LR)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def wrapped(make: Any = adam, **options: Any) -> tuple[Any, Any]:
    module = net()
    optimizer = make(module.parameters())
    model = smp.DistributedModel(module)
    return model, smp.DistributedOptimizer(optimizer, **options)


def steps(model: Any, optimizer: Any, given: Any, max_norm: float = 0.0) -> list[float]:
    """Norms, where they are limited."""
    norms = []
    for x, y in given:
        optimizer.zero_grad()
        train(model, mine(x), mine(y))
        if max_norm:
            norms.append(optimizer.clip_master_grads(max_norm))
        optimizer.step()
    return norms


def alone(dtype: torch.dtype, given: Any, scale: float, max_norm: float = 0.0) -> Any:
    """The master weights and the norms of one process with all batches."""
    torch.manual_seed(5)
    half = net().to(dtype)
    masters = [nn.Parameter(one.detach().float()) for one in half.parameters()]
    optimizer = sgd(masters)
    norms = []
    for x, y in given:
        half.zero_grad()
        pieces = MICROBATCHES * smp.dp_size()
        for a, b in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            (functional.mse_loss(half(a).float(), b) * scale / pieces).backward()
        for one, master in zip(half.parameters(), masters, strict=True):
            master.grad = one.grad.float() / scale
        if max_norm:
            norms.append(float(nn.utils.clip_grad_norm_(masters, max_norm)))
        optimizer.step()
        with torch.no_grad():
            for one, master in zip(half.parameters(), masters, strict=True):
                one.copy_(master)
    names = [name for name, _ in half.named_parameters()]
    return dict(zip(names, masters, strict=True)), norms


def masters_of(model: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    """By name, of the whole model."""
    names = [name for name, _ in model.named_parameters()]
    return {names[number]: one for number, one in optimizer.state_dict()["master_weights"].items()}


def a_model_trains_as_with_master_weights_of_one_process() -> None:
    for kind, scale in (("bf16", 1.0), ("fp16", 128.0)):
        begin(kind)
        model, optimizer = wrapped(sgd, static_loss_scale=scale)
        given = batches(STEPS, TYPES[kind])
        norms = steps(model, optimizer, given, max_norm=0.05)
        masters, wanted = alone(TYPES[kind], given, scale, max_norm=0.05)
        found = masters_of(model, optimizer)
        assert found.keys() == masters.keys()
        torch.manual_seed(5)
        begun = dict(net().to(TYPES[kind]).named_parameters())
        apart, moved = (
            torch.cat([(one - other[name].detach()).flatten() for name, one in found.items()])
            for other in (masters, begun)
        )
        assert apart.norm() <= 0.03 * moved.norm(), (apart.norm(), moved.norm())
        for name, one in model.local_named_parameters():
            assert one.dtype is TYPES[kind]
            assert torch.equal(one, found[name].to(one.dtype)), name
        torch.testing.assert_close(torch.tensor(norms), torch.tensor(wanted), rtol=0.02, atol=1e-4)
        assert smp.allgather(norms, smp.WORLD) == [norms] * smp.size()
        assert all(
            value.dtype is torch.float32
            for state in optimizer.state.values()
            for value in state.values()
        )


def steps_that_rounding_would_lose_add_up() -> None:
    model, optimizer = wrapped()
    x, y = batches(1, torch.bfloat16)[0]
    steps(model, optimizer, [(x, y)])
    before = {name: one.clone() for name, one in model.local_named_parameters()}
    steps(model, optimizer, [(x, y)] * 8)
    moved = [not torch.equal(one, before[name]) for name, one in model.local_named_parameters()]
    assert all(moved)


def an_overflow_of_one_stage_skips_the_step_of_all() -> None:
    begin("fp16")
    model, optimizer = wrapped(dynamic_loss_scale=True, dynamic_loss_args={"init_scale": 2.0**8})
    given = batches(2, torch.float16)
    steps(model, optimizer, given[:1])
    assert not optimizer.overflow
    before = masters_of(model, optimizer)
    train(model, mine(given[1][0]), mine(given[1][1]))
    if smp.rank() == smp.size() - 1:
        next(iter(model.local_parameters())).grad[0] = float("inf")
    optimizer.step()
    assert optimizer.overflow and optimizer.loss_scale == 2.0**7
    after = masters_of(model, optimizer)
    assert all(torch.equal(one, before[name]) for name, one in after.items())


def a_checkpoint_goes_on_with_the_same_bits() -> None:
    given = batches(2 * STEPS, torch.bfloat16)
    for partial in (True, False):
        begin("bf16")
        model, optimizer = wrapped()
        steps(model, optimizer, given[:STEPS])
        smp.save_checkpoint(sys.argv[1], f"{partial}", partial, model, optimizer)
        steps(model, optimizer, given[STEPS:])
        wanted = copy.deepcopy(masters_of(model, optimizer))
        begin("bf16")
        model, optimizer = wrapped()
        if smp.pp_size() > 1:
            steps(model, optimizer, given[:1])  # cuts the model
        smp.resume_from_checkpoint(sys.argv[1], f"{partial}", partial)
        steps(model, optimizer, given[STEPS:])
        found = masters_of(model, optimizer)
        assert all(torch.equal(one, wanted[name]) for name, one in found.items())


def parameters_that_the_script_changes_are_taken_as_they_are() -> None:
    model, optimizer = wrapped()
    steps(model, optimizer, batches(1, torch.bfloat16))
    with torch.no_grad():
        for one in model.local_parameters():
            one.fill_(0.25)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    steps(model, optimizer, batches(1, torch.bfloat16))
    for one in model.local_parameters():
        assert torch.equal(one, torch.full_like(one, 0.25))


def a_closure_is_refused() -> None:
    _, optimizer = wrapped()
    try:
        optimizer.step(lambda: None)
    except StepError as error:
        assert "has a closure and" in str(error)
    else:
        raise AssertionError("not refused")


def what_a_script_writes_past_autograd_counts() -> None:
    model = smp.DistributedModel(net())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=LR))
    for x, y in batches(1, TYPES["bf16"]):
        train(model, mine(x), mine(y))
    optimizer.step()
    for one in model.local_parameters():
        one.data.fill_(0.25)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert all(bool((one == 0.25).all()) for one in model.local_parameters())


def a_state_that_is_divided_may_be_left_out() -> None:
    """And master weights are not."""
    given = batches(2, torch.bfloat16)
    model, optimizer = wrapped()
    steps(model, optimizer, given)
    wanted = copy.deepcopy(masters_of(model, optimizer))
    for in_pieces in (False, True):
        smp.save_checkpoint(
            sys.argv[1], f"{in_pieces}", True, model, optimizer, in_pieces=in_pieces
        )
    for tag in ("False", "True"):
        begin("bf16")
        model, optimizer = wrapped()
        steps(model, optimizer, given[:1])  # cuts the model
        smp.resume_from_checkpoint(sys.argv[1], tag, load_sharded_optimizer_state=False)
        found = masters_of(model, optimizer)
        assert all(torch.equal(one, wanted[name]) for name, one in found.items())
        steps_taken = {int(state["step"]) for state in optimizer.state.values()}
        assert steps_taken == {1 if optimizer.is_sharded else 2}, steps_taken


CHECKS = (
    what_a_script_writes_past_autograd_counts,
    a_model_trains_as_with_master_weights_of_one_process,
    steps_that_rounding_would_lose_add_up,
    an_overflow_of_one_stage_skips_the_step_of_all,
    a_checkpoint_goes_on_with_the_same_bits,
    a_state_that_is_divided_may_be_left_out,
    parameters_that_the_script_changes_are_taken_as_they_are,
    a_closure_is_refused,
)

if __name__ == "__main__":
    main()

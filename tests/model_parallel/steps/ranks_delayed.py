"""Checks of models whose parameters get their memory when their rank is known, each run by all
ranks of one job: `ranks_delayed.py FOLDER`, below which checkpoints are left."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import muster_modelparallel as smp
from muster_modelparallel.errors import StepError
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give

WIDTH, BATCH, LAYERS, WORDS = 96, 8, 6, 200
LEAST_BYTES = 16 << 10
STEPS = 3


def main() -> None:
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))


def begin() -> None:
    over()
    smp.init({})
    torch.manual_seed(5)


class Net(nn.Module):
    """Parameters made in many ways; the first and the last one are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=3)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.scale = nn.Parameter(0.1 * torch.randn(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("mask", torch.tril(torch.ones(WIDTH, WIDTH)))
        nn.init.orthogonal_(self.layers[0].weight)
        nn.init.trunc_normal_(self.layers[1].weight, std=0.1)
        with torch.no_grad():
            self.layers[2].weight[:5].fill_(0.5)
            self.layers[3].weight.copy_(self.layers[2].weight * 0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = x + functional.dropout(torch.tanh(layer(x)), 0.1, self.training)
        return self.head(x @ (self.scale * self.mask))


@smp.step
def train(model: Any, ids: torch.Tensor) -> torch.Tensor:
    scores = model(ids)
    loss = functional.cross_entropy(scores.view(-1, WORDS), ids.view(-1))
    model.backward(loss)
    return loss.detach()


def wrapped(delays: bool) -> tuple[Any, Any]:
    """The script makes its optimizer before the model is wrapped."""
    with smp.delay_param_initialization() if delays else nullcontext():
        module = Net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    return smp.DistributedModel(module), smp.DistributedOptimizer(optimizer)


def steps(model: Any, optimizer: Any, count: int = STEPS) -> list[torch.Tensor]:
    losses = []
    for _ in range(count):
        ids = torch.randint(WORDS, (BATCH * smp.dp_size(), 4))
        optimizer.zero_grad()
        mine = ids[smp.dp_rank() * BATCH : (smp.dp_rank() + 1) * BATCH]
        losses.append(train(model, mine).reduce_mean())
        optimizer.step()
    return losses


def differ(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names whose values do."""
    assert list(one) == list(other)
    return [name for name, value in one.items() if not torch.equal(value, other[name])]


def bytes_of(module: nn.Module) -> dict[str, int]:
    """What lies in memory, of the parameters that would be large."""
    return {
        name: one.untyped_storage().nbytes()
        for name, one in module.named_parameters()
        if one.numel() * one.element_size() >= LEAST_BYTES
    }


def losses_and_parameters_are_the_bits_of_a_model_that_was_made_at_once() -> None:
    runs = []
    for delays in (False, True):
        begin()
        model, optimizer = wrapped(delays)
        drawn = torch.rand(3)
        losses = steps(model, optimizer)
        runs.append((drawn, losses, model.state_dict()))
    (drawn, losses, state), (drawn_2, losses_2, state_2) = runs
    assert torch.equal(drawn, drawn_2), "the script's own random numbers"
    assert all(map(torch.equal, losses, losses_2)), (losses, losses_2)
    assert not differ(state, state_2)


def what_other_ranks_hold_never_gets_memory() -> None:
    with smp.delay_param_initialization():
        module = Net()
    made = bytes_of(module)
    assert len(made) == LAYERS + 2 and all(size <= 16 for size in made.values()), made
    assert module.mask.untyped_storage().nbytes() == 4 * WIDTH * WIDTH, "a buffer is there"
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(module.parameters(), 0.1))
    if smp.pp_size() > 1:
        made = bytes_of(module)
        assert all(size <= 16 for size in made.values()), made
        whole = model.state_dict()
        assert all(bool(one.isfinite().all()) for one in whole.values()), "it can be saved"
        made = bytes_of(module)
        assert all(size <= 16 for size in made.values()), made
    steps(model, optimizer, 1)
    here = {name for name, _ in model.local_named_parameters()}
    for name, size in bytes_of(module).items():
        if name not in here:
            assert size <= 16, (name, size)
    assert all(bool(one.isfinite().all()) for one in here_values(model))


def here_values(model: Any) -> list[torch.Tensor]:
    found = []
    for one in model.local_parameters():
        value = one.detach()
        found.append(value.to_local() if hasattr(value, "to_local") else value)
    return found


def ranks_that_draw_other_numbers_get_the_values_of_the_first_replica() -> None:
    torch.manual_seed(5 + smp.dp_rank())
    model, _ = wrapped(delays=True)
    torch.manual_seed(5)
    steps(model, smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.0)), 1)
    sums = [float(one.double().sum()) for one in model.local_state_dict().values()
            if isinstance(one, torch.Tensor)]  # fmt: skip
    every = smp.allgather(sums, smp.DP_GROUP)
    assert all(one == every[0] for one in every), every


def checkpoints_are_resumed_before_and_after_the_partition() -> None:
    kinds: dict[str, dict[str, Any]] = {"partial": {}, "full": {"partial": False}}
    for kind, how in {**kinds, "pieces": {"in_pieces": True}}.items():
        folder = str(Path(sys.argv[1], kind))
        begin()
        model, optimizer = wrapped(delays=True)
        steps(model, optimizer)
        state = {name: one.clone() for name, one in model.state_dict().items()}
        smp.save_checkpoint(folder, "one", model=model, optimizer=optimizer, **how)
        begin()
        torch.manual_seed(6)
        model, optimizer = wrapped(delays=True)
        smp.resume_from_checkpoint(folder, partial=how.get("partial", True))
        assert not (names := differ(model.state_dict(), state)), (kind, names)
        steps(model, optimizer, 1)
        assert differ(model.state_dict(), state)
        smp.resume_from_checkpoint(folder, partial=how.get("partial", True))
        assert not (names := differ(model.state_dict(), state)), (kind, names, "in stages")


def the_parameter_delays_what_model_creation_makes() -> None:
    for delays in (False, True):
        over()
        smp.init({"delayed_parameter_initialization": delays})
        with smp.model_creation():
            module = Net()
        assert all((size <= 16) == delays for size in bytes_of(module).values())


def the_cut_is_proved_with_values_that_are_made_for_it() -> None:
    folder = Path(sys.argv[1], "run")
    if smp.rank() == 0:
        folder.mkdir(exist_ok=True)
    os.environ["SM_OUTPUT_DATA_DIR"] = str(folder)
    try:
        steps(*wrapped(delays=True), 1)
    finally:
        del os.environ["SM_OUTPUT_DATA_DIR"]
    smp.barrier()
    plan = json.loads((folder / "model-plan.json").read_text())
    assert plan["proof"] == "proved: 1 outputs bit-equal", plan["proof"]


def a_model_is_evaluated_before_it_is_trained() -> None:
    @smp.step
    def score(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return model(ids).sum()

    def found(delays: bool) -> torch.Tensor:
        begin()
        model, _ = wrapped(delays)
        model.eval()
        with torch.no_grad():
            return score(model, torch.arange(BATCH * 4).view(BATCH, 4)).reduce_mean()

    assert torch.equal(found(False), found(True))


def a_model_that_was_converted_without_values_is_refused() -> None:
    with smp.delay_param_initialization():
        module = Net()
    module.double()
    try:
        smp.DistributedModel(module)
    except StepError as error:
        assert "scale is not a number" in str(error), error
    else:
        raise AssertionError("NaN was taken for values")


WITH_STAGES = (
    a_model_is_evaluated_before_it_is_trained,
    the_cut_is_proved_with_values_that_are_made_for_it,
)
CHECKS = (
    losses_and_parameters_are_the_bits_of_a_model_that_was_made_at_once,
    what_other_ranks_hold_never_gets_memory,
    ranks_that_draw_other_numbers_get_the_values_of_the_first_replica,
    checkpoints_are_resumed_before_and_after_the_partition,
    the_parameter_delays_what_model_creation_makes,
    a_model_that_was_converted_without_values_is_refused,
    *(WITH_STAGES if "pipeline" in os.environ.get("SM_HP_MP_PARAMETERS", "") else ()),
)

if __name__ == "__main__":
    main()

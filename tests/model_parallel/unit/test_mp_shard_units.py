"""Which parameters are cut over replicas, in which modules; what a plan then holds to be needed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from muster_modelparallel.settings.config import Config
from muster_modelparallel.wrap.cut.planning import copies_held
from muster_modelparallel.wrap.shard.units import cut_names, shard_units

pytestmark = pytest.mark.torch


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def found(model: nn.Module, most: int = 10**9, threshold: int = 1) -> list[str]:
    """The names of the units of a model, all of whose parameters are large enough."""
    named = dict(model.named_parameters())
    cut = {named[name] for name in cut_names(named, threshold, 2)}
    names = {module: name for name, module in model.named_modules()}
    return [names[module] for module, _ in shard_units(model, [(model, 0)], cut, most)]


def test_units_are_the_largest_modules_of_at_most_half_of_the_model() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)])
    assert found(model) == ["0", "1", "2"]
    assert found(nn.Sequential(model, nn.Linear(4, 4))) == ["0.0", "0.1", "0.2", "1"]


def test_no_unit_has_more_than_most_elements_where_there_is_a_smaller_module() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3)])
    assert found(model, most=20) == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]
    assert found(model, most=1) == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]


def test_tied_parameters_are_in_no_unit() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    model[2].bias = model[0].bias
    assert found(model) == ["1"]


def test_attention_is_whole_and_lists_are_no_units() -> None:
    assert found(Block(), most=1) == ["attention", "layers.0", "layers.1"]


def test_modules_with_hooks_before_them_are_no_units() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].register_forward_pre_hook(lambda *_: None)
    assert found(model) == ["1"]


def test_what_fully_shard_cannot_cut_stays_whole() -> None:
    named = {
        "large": torch.zeros(4, 4),
        "small": torch.zeros(3),
        "scalar": torch.zeros(()),
        "first dimension of one": torch.zeros(1, 16),
        "other type": torch.zeros(4, 4, dtype=torch.float64)[:3],
        "gaps": torch.zeros(4, 8)[:, ::2],
    }
    hooked = torch.zeros(4, 4, requires_grad=True)
    hooked.register_hook(lambda grad: None)
    assert cut_names({**named, "hooked": hooked}, 4, 2) == {"large"}


@pytest.mark.parametrize(
    ("given", "copies"),
    [
        ({}, 4),
        ({"bf16": True}, 8),
        ({"shard_optimizer_state": True}, 2.5),
        ({"sharded_data_parallel_degree": 4}, 3),
        ({"sharded_data_parallel_degree": 4, "fp16": True}, 5),
    ],
)
def test_a_plan_counts_what_replicas_divide(given: dict[str, object], copies: float) -> None:
    config = Config(pipeline_parallel_degree=2, ddp=True, **given)  # type: ignore[arg-type]
    assert copies_held(config, 8) == copies

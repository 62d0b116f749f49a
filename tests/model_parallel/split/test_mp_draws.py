"""What a model draws does not depend on how many stages it has, nor on where they are cut."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from muster_modelparallel.model.probe import probe
from muster_modelparallel.model.random import Draw
from tests.model_parallel.support.ghost_ranks import run_stages, run_whole
from tests.model_parallel.support.graphs import WIDTH, Block

pytestmark = pytest.mark.torch


class Layer(nn.Module):
    """Draws in units and in its own code; `kind`: how its parts are called."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.block, self.out = Block(), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.3)

    def body(self, x):
        x = functional.dropout(self.out(self.block(x)), 0.2, self.training)
        return x + self.drop(torch.tanh(self.out(x)))

    def forward(self, x):
        x = self.drop(x)
        if self.kind == "checkpointed":
            x = checkpoint(self.body, x, use_reentrant=False)
        else:
            x = self.body(x)
        return functional.dropout(x, 0.1, self.training)


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(kind) for _ in range(2))
        self.kind = kind

    def forward(self, x):
        x = functional.dropout(self.tok(x), 0.2, self.training)
        for layer in self.layers:
            x = layer(x)
            if self.kind == "called twice":
                x = layer(x)
        return x


@pytest.mark.parametrize("kind", ["plain", "called twice", "checkpointed"])
def test_numbers_drawn_are_the_same_for_all_cuts_between_and_within_blocks(kind):
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    fresh = Net(kind)
    draw = Draw(seed=3, step=2, microbatch=1)
    first = None
    torn = set()
    for parts in (2, 3):
        model = copy.deepcopy(fresh)
        probed = probe(model, (x,), {}, parts, timing=False)
        count = len(probed.profile.units)
        for start in range(1, count - parts + 2, parts):  # one unit on each of the last stages
            stages = [max(0, min(at - start + 1, parts - 1)) for at in range(count)]
            split = probed.split(stages)
            torn.add(len(split.calls))
            for run in (run_whole, run_stages) if first is None else (run_stages,):
                found = run(lambda: copy.deepcopy(fresh), split, (x,), {}, draw)
                first = first or found
                assert torch.equal(found.outputs[0], first.outputs[0]), (parts, stages)
                assert found.gradients.keys() == first.gradients.keys()
                for name, one in found.gradients.items():
                    torch.testing.assert_close(one, first.gradients[name], rtol=1e-4, atol=1e-5)
    assert len(torn) > 2  # blocks were whole in some, and torn in others

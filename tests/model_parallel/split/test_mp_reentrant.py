"""Reentrant checkpoints, in which gradients are off until backward: a cut within one would leave
the stages before it without gradients, and no output would show it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from muster_modelparallel.errors import SplitError
from muster_modelparallel.model.probe import probe
from muster_modelparallel.model.proof import prove
from muster_modelparallel.model.random import Draw
from tests.model_parallel.support.ghost_ranks import run_stages, run_whole
from tests.model_parallel.support.graphs import WIDTH, Block

pytestmark = pytest.mark.torch


class Layer(nn.Module):
    """`within`: its own code calls the checkpoint, and ends it with code of its own."""

    def __init__(self, within: bool) -> None:
        super().__init__()
        self.within = within
        self.block, self.out = Block(), nn.Linear(WIDTH, WIDTH)

    def body(self, x):
        return x + torch.tanh(self.out(self.block(x)))

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=True) if self.within else self.body(x)


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.tok = kind, nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(kind == "within modules") for _ in range(3))

    def forward(self, x):
        x = self.tok(x)
        for layer in self.layers:
            if self.kind == "of modules":
                x = checkpoint(layer, x, use_reentrant=True)
            elif self.kind == "of code":
                x = checkpoint(lambda x, layer=layer: x + layer(x), x, use_reentrant=True)
            else:
                x = layer(x)
        return x


@pytest.mark.parametrize("kind", ["of modules", "within modules"])
def test_gradients_are_whole_wherever_a_model_of_reentrant_checkpoints_may_be_cut(kind):
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    fresh, draw = Net(kind), Draw(seed=3)
    model = copy.deepcopy(fresh).eval()  # then the proof alone would not compare gradients
    probed = probe(model, (x,), {}, 2, timing=False)
    count = len(probed.profile.units)
    cuts = probed.graph.cuts()
    assert [probed.profile.units[cut].path for cut in cuts] == [f"layers.{at}" for at in range(3)]
    for cut in cuts:
        split = probed.split([int(at >= cut) for at in range(count)])
        assert all(meta.requires_grad for meta in split.metas(1))
        whole = run_whole(lambda: copy.deepcopy(fresh), split, (x,), {}, draw)
        found = run_stages(lambda: copy.deepcopy(fresh), split, (x,), {}, draw)
        assert torch.equal(found.outputs[0], whole.outputs[0])
        assert (
            found.gradients.keys()
            == whole.gradients.keys()
            == dict(fresh.named_parameters()).keys()
        )
        for name, one in found.gradients.items():
            torch.testing.assert_close(one, whole.gradients[name], rtol=1e-4, atol=1e-5)


def test_the_proof_compares_their_gradients_and_leaves_hooks_alone():
    model, seen = Net("of modules"), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(seen.append)
    x = torch.randn(4, WIDTH)
    probed = probe(model, (x,), {}, 2, timing=False)
    split = probed.split([int(at >= 2) for at in range(len(probed.profile.units))])
    count = len(list(model.parameters()))
    assert f"{count} gradients" in str(prove(model, split, (x,), {}, gradients=True))
    assert not seen and all(parameter.grad is None for parameter in model.parameters())
    model(x).sum().backward()
    assert len(seen) == count


def test_a_checkpoint_whose_own_code_ends_it_is_refused_by_name():
    with pytest.raises(SplitError, match=r"not parted: .*\(reentrant checkpoint\)"):
        probe(Net("of code"), (torch.randn(4, WIDTH),), {}, 3, timing=False)

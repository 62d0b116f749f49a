"""What a proof makes of gradients of few bits: rounding is no difference, a lost summand is one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from muster_modelparallel.errors import SplitError
from muster_modelparallel.model import proof as proofs
from muster_modelparallel.model.probe import probe
from muster_modelparallel.model.proof import prove

pytestmark = pytest.mark.torch


class TiedBlocks(nn.Module):
    """A residual stream that cuts within blocks part; its two ends use one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(64, 32)
        self.h = nn.ModuleList(Residual() for _ in range(4))
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        x = self.tok(ids)
        for block in self.h:
            x = block(x)
        return self.head(x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(32), nn.Linear(32, 32)
        self.norm2, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        x = x + self.mix(self.norm(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def tied_blocks_in_bf16(cuts, seed):
    torch.manual_seed(seed)
    model = TiedBlocks().to(torch.bfloat16)
    ids = torch.randint(64, (8, 24))
    probed = probe(model, (ids,), {}, 3, timing=False)
    stages = [sum(at >= cut for cut in cuts) for at in range(len(probed.graph.calls))]
    return model, ids, probed, probed.split(stages)


@pytest.mark.parametrize("cuts", [[2, 9], [13, 18]], ids=str)
def test_cuts_within_blocks_of_coarse_numbers_are_proved(cuts):
    """Rounding of the stream's parted sums goes on through the calls before the cut, and where
    gradients cancel it is large beside what is left."""
    model, ids, probed, found = tied_blocks_in_bf16(cuts, 1)
    proof = prove(model, found, (ids,), {}, gradients=True, pristine=probed.state)
    assert proof.gradients > proof.equal_gradients > 0


@pytest.mark.parametrize("lost", [0, 2])
def test_a_gradient_of_coarse_numbers_that_a_stage_loses_is_refused(lost, monkeypatch):
    """Of the tied weight, whose gradient is the sum of two stages'."""
    model, ids, probed, found = tied_blocks_in_bf16([3, 9], 0)
    assert "tok.weight" in found.parameters[0] and "tok.weight" in found.parameters[2]
    stages, gradients = iter([2, 1, 0]), proofs._grad

    def wrong(_, pairs, into):
        grads = list(gradients(model, pairs, into))
        if next(stages) == lost:
            at = next(place for place, one in enumerate(into) if one is model.tok.weight)
            grads[at] = None
        return grads

    chain = proofs._Chain.gradients

    def chained(self, ends):
        monkeypatch.setattr(proofs, "_grad", wrong)
        return chain(self, ends)

    monkeypatch.setattr(proofs._Chain, "gradients", chained)
    with pytest.raises(SplitError, match=r"the gradient of tok\.weight differs"):
        prove(model, found, (ids,), {}, gradients=True, pristine=probed.state)

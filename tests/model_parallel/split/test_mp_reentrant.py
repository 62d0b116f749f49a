"""Reentrant checkpoints, in which gradients are off until backward: a cut within one would leave
the stages before it without gradients, and no output would show it."""

from __future__ import annotations

import copy

import pytest
import torch

from muster_modelparallel.errors import SplitError
from muster_modelparallel.model.probe import probe
from muster_modelparallel.model.proof import prove
from muster_modelparallel.model.random import Draw
from tests.model_parallel.support.ghost_ranks import run_stages, run_whole
from tests.model_parallel.support.graphs import WIDTH
from tests.model_parallel.support.reentrant import Reentrant

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("kind", ["of modules", "within modules"])
def test_gradients_are_whole_wherever_a_model_of_reentrant_checkpoints_may_be_cut(kind):
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    fresh, draw = Reentrant(kind), Draw(seed=3)
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
    model, seen = Reentrant("of modules"), []
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
        probe(Reentrant("of code"), (torch.randn(4, WIDTH),), {}, 3, timing=False)

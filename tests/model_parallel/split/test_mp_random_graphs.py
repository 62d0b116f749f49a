"""Whatever a model does, its stages give what it gives or the split is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from muster_modelparallel.errors import SplitError
from muster_modelparallel.model.probe import probe
from muster_modelparallel.model.proof import prove
from muster_modelparallel.model.random import Draw
from tests.model_parallel.support.cuts import equal_cut
from tests.model_parallel.support.ghost_ranks import run_stages, run_whole
from tests.model_parallel.support.graphs import GLUE, RETURNS, UNITS, WIDTH, Program

pytestmark = pytest.mark.torch
NUMBERS = st.integers(0, 5)
STEPS = st.lists(
    st.tuples(st.one_of(st.just("unit"), st.just("unit"), st.sampled_from(GLUE)), NUMBERS, NUMBERS),
    min_size=3,
    max_size=14,
)
OUTCOMES = {"split": 0, "refused": 0, "refused at run": 0}


@given(
    units=st.lists(st.sampled_from(sorted(UNITS)), min_size=3, max_size=6),
    steps=STEPS,
    returns=st.sampled_from(RETURNS),
    tie=st.booleans(),
    parts=st.integers(2, 3),
    seed=st.integers(0, 5),
)
def test_a_random_graph_is_equal_or_refused(units, steps, returns, tie, parts, seed):
    torch.manual_seed(seed)
    model = Program(units, [*steps, ("unit", 0, 0)], returns, tie)
    first, second = ({"x": torch.randn(4, WIDTH), "extra": torch.randn(4, WIDTH)} for _ in range(2))
    fresh = copy.deepcopy(model)
    assume(runs(copy.deepcopy(model), first))
    try:
        probed = probe(model, (), first, parts, timing=False)
        split = probed.split(equal_cut(probed.profile, parts))
        prove(model, split, (), first, True, probed.state)
    except SplitError:
        OUTCOMES["refused"] += 1
        return
    unchanged(model, fresh)

    def make():
        return copy.deepcopy(fresh)

    draw = Draw(seed=3, step=1, microbatch=2)
    whole = run_whole(make, split, (), second, draw)
    try:
        found = run_stages(make, split, (), second, draw)
    except SplitError:
        OUTCOMES["refused at run"] += 1
        return
    OUTCOMES["split"] += 1
    assert len(found.outputs) == len(whole.outputs)
    for one, other in zip(found.outputs, whole.outputs, strict=True):
        assert torch.equal(one, other)
    assert found.gradients.keys() == whole.gradients.keys()
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-4, atol=1e-5)


def runs(model, kwargs):
    """Whether the model itself works, forward and backward."""
    try:
        out = model(**{name: value.clone() for name, value in kwargs.items()})
        ends = (
            out.values()
            if isinstance(out, dict)
            else out
            if isinstance(out, (tuple, list))
            else [out]
        )
        ends = [end for end in ends if end is not None and end.requires_grad]
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    except RuntimeError:
        return False
    return bool(ends)


def unchanged(model, fresh):
    for (name, one), (_, other) in zip(
        model.state_dict().items(), fresh.state_dict().items(), strict=True
    ):
        assert torch.equal(one, other), name
    assert all(parameter.grad is None for parameter in model.parameters())

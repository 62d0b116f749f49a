"""Tensors that get their memory later: the bits are those that they would have had at once."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

from muster_modelparallel.errors import ModelParallelError, SplitError
from muster_modelparallel.model.delayed import LEAST_BYTES, Delayed
from muster_modelparallel.model.probe import probe
from muster_modelparallel.model.proof import prove
from tests.model_parallel.support.cuts import equal_cut

WIDTH = 96
pytestmark = pytest.mark.torch


class Zoo(nn.Module):
    """What modules do to parameters while they are made."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, WIDTH, padding_idx=3)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 4, 256, batch_first=True), 3
        )  # copies its layer
        self.convolution = nn.Conv2d(64, 64, 3)
        self.recurrent = nn.LSTM(WIDTH, WIDTH, 2)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.tied = nn.Linear(WIDTH, 500, bias=False)
        self.tied.weight = self.words.weight
        self.scaled = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.02)
        self.transposed = nn.Parameter(torch.rand(64, 128).t())
        self.part = nn.Parameter(torch.arange(100_000.0)[1000:30_000])
        self.like = nn.Parameter(torch.rand_like(self.scaled))
        self.orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(128, WIDTH)))
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(128, WIDTH), std=0.02))
        self.rounded = nn.Parameter(torch.randn(128, WIDTH).to(torch.bfloat16))
        self.register_buffer("mask", torch.tril(torch.ones(128, 128)))
        self.register_buffer("places", torch.arange(10_000).expand(1, -1))
        self.table = torch.outer(torch.arange(128.0), torch.arange(64.0)).cos()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 5)]
        self.sum = float(self.scaled.detach().sum())
        self.list = self.scaled.detach()[0].tolist()
        self.array = self.scaled.detach()[1].numpy().copy()
        with torch.no_grad():
            self.scaled[0].fill_(7)
            self.scaled.data[1:3] *= 2
            self.scaled[torch.arange(WIDTH) % 5 == 0] = 1.0
            self.truncated[:, :4].normal_()  # gaps: another way through the generator
            self.truncated[5:6].bernoulli_(0.3)
            self.like.copy_(self.scaled @ self.scaled)
            first, second = self.orthogonal.chunk(2)
            first.mul_(3)
            second.add_(first)
            self.convolution.weight.copy_(
                torch.from_numpy(self.array.repeat(384).reshape(64, 64, 3, 3))
            )


def made(delayed: Delayed | None) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    if delayed is None:
        return Zoo(), torch.rand(5)
    with delayed.recording():
        module = Zoo()
    return module, torch.rand(5)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_values_and_random_numbers_are_those_of_a_model_that_is_made_at_once() -> None:
    delayed = Delayed()
    wanted, drawn = made(None)
    module, drawn_too = made(delayed)
    assert torch.equal(drawn, drawn_too)
    assert (module.rates, module.sum, module.list) == (wanted.rates, wanted.sum, wanted.list)
    assert (module.array == wanted.array).all() and torch.equal(module.table, wanted.table)
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, wanted.get_buffer(name)), name
    late = [name for name, one in module.named_parameters() if delayed.has(one)]
    large = [
        name for name, one in wanted.named_parameters()
        if one.numel() * one.element_size() >= LEAST_BYTES
    ]  # fmt: skip
    assert set(large) <= set(late) and len(large) > 20
    before = torch.random.get_rng_state()
    # each by itself, in another order than they were made in
    for name, one in reversed(list(module.named_parameters())):
        if name in large:
            assert one.untyped_storage().nbytes() <= 16 and one.isnan().all(), name
        delayed.make(one)
        other = wanted.get_parameter(name)
        assert torch.equal(one, other) and one.stride() == other.stride(), name
        assert one.untyped_storage().nbytes() == one.numel() * one.element_size(), name
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_conversion_is_put_off_as_well() -> None:
    delayed = Delayed()
    torch.manual_seed(1)
    with delayed.recording():
        module = nn.Linear(WIDTH, WIDTH)
    with delayed.recording():
        module.to(torch.bfloat16)
    assert module.weight.dtype == torch.bfloat16
    assert module.weight.untyped_storage().nbytes() == 2
    torch.manual_seed(1)
    wanted = nn.Linear(WIDTH, WIDTH).to(torch.bfloat16)
    delayed.make(module.weight)
    assert torch.equal(module.weight, wanted.weight)


def test_a_tensor_that_changes_before_it_is_used_is_an_error() -> None:
    delayed, given = Delayed(), torch.ones(WIDTH, WIDTH)
    with delayed.recording():
        module = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            module.weight.copy_(given)
    assert torch.equal(delayed.value(module.weight), given)
    given.add_(1)
    with pytest.raises(ModelParallelError, match=r"\(96, 96\).*has been changed since"):
        delayed.make(module.weight)


def test_what_fails_inside_leaves_nothing_behind() -> None:
    delayed = Delayed()
    with pytest.raises(ValueError, match="mine"), delayed.recording():
        raise ValueError("mine")
    assert torch.ones(WIDTH, WIDTH).untyped_storage().nbytes() == 4 * WIDTH * WIDTH
    with delayed.recording():
        one = nn.Parameter(torch.ones(WIDTH, WIDTH))
    assert delayed.has(one) and bool((delayed.value(one) == 1).all())


class Blocks(nn.Module):
    """The last layer's weight is used outside of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers[:-1]:
            x = functional.dropout(torch.tanh(layer(x)), 0.1, self.training)
        x = functional.linear(x, self.layers[-1].weight)
        return functional.linear(x, self.words.weight)


IDS = torch.arange(24).view(3, 8)


def test_a_cut_is_proved_without_the_whole_model_in_memory() -> None:
    delayed = Delayed()
    with delayed.recording():
        model = Blocks()
    probed = probe(model, (IDS,), {}, 2, hollow=True)
    split = probed.split(equal_cut(probed.profile, 2))
    assert str(prove(model, split, (IDS,), {}, True, probed.state)).startswith("not proved")
    proof = prove(model, split, (IDS,), {}, True, probed.state, delayed)
    assert str(proof) == "proved: 1 outputs bit-equal"
    assert all(one.untyped_storage().nbytes() <= 16
               for one in model.parameters() if delayed.has(one))  # fmt: skip
    layers = [at for at, call in enumerate(split.calls) if call.path.startswith("layers")]
    calls = list(split.calls)
    one, other = layers[0], layers[1]
    calls[one] = dataclasses.replace(calls[one], path=calls[other].path)
    wrong = dataclasses.replace(split, calls=tuple(calls))
    with pytest.raises(SplitError):
        prove(model, wrong, (IDS,), {}, True, probed.state, delayed)
    needed = max((at for at in range(2) if "layers.4.weight" in split.parameters[at]), default=None)
    assert needed is not None
    kept = [set(names) for names in split.parameters]
    kept[needed].discard("layers.4.weight")
    less = dataclasses.replace(split, parameters=tuple(map(frozenset, kept)))
    with pytest.raises(SplitError):
        prove(model, less, (IDS,), {}, True, probed.state, delayed)
    whole = copy.deepcopy(delayed.value(model.words.weight))
    assert bool(whole.isfinite().all())

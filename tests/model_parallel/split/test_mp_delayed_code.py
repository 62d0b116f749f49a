"""Initialisation of all kinds: the bits and the random numbers are those of a model that is made at
once."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from muster_modelparallel.errors import ModelParallelError
from muster_modelparallel.model.delayed import Delayed

WIDTH = 96
pytestmark = pytest.mark.torch
Made = list[torch.Tensor]


def square(scale: float = 1.0) -> torch.Tensor:
    return torch.randn(WIDTH, WIDTH) * scale


def another_shape_in_place() -> Made:
    one, other, third = torch.randn(WIDTH, 2 * WIDTH), torch.randn(1, WIDTH, WIDTH), square()
    kept = one[:3]
    one.t_()
    one[0].fill_(3)  # of `kept`, too
    other.squeeze_(0)
    third.unsqueeze_(1).transpose_(0, 2)
    return [one, kept, other, third]


def less_in_place() -> Made:
    one = square()
    return [one.resize_(WIDTH // 2, WIDTH)]


def the_memory_of_another() -> Made:
    one, other = square(), square()
    one.set_(other)
    other.mul_(2)
    return [one, other]


def large_and_small_at_once() -> Made:
    one, other = square(), torch.randn(4)
    torch._foreach_mul_([one, other], 2.0)
    return [one, other]


def a_default_dtype_of_its_own() -> Made:
    torch.set_default_dtype(torch.float64)
    try:
        return [nn.Linear(WIDTH, WIDTH).weight, torch.arange(5000) * 0.5]
    finally:
        torch.set_default_dtype(torch.float32)


def numbers_drawn_by_values() -> Made:
    rates = torch.rand(WIDTH, WIDTH) * 8 + 0.1
    made = [torch.poisson(rates), torch._standard_gamma(rates), torch.multinomial(rates, 80)]
    return [*made, functional.rrelu(rates - 4, training=True), torch.bernoulli(rates / 9)]


def small_tensors_that_change_later() -> Made:
    one, array = torch.ones(WIDTH), numpy.ones((1, WIDTH), numpy.float32)
    made = [torch.ones(WIDTH, WIDTH) * one, torch.empty(WIDTH, WIDTH)]
    made[1].copy_(torch.from_numpy(array))
    one.mul_(2)
    one.data.mul_(3)
    array[:] = 5
    return made


def strides() -> Made:
    one = torch.randn(WIDTH, 2 * WIDTH).t()
    again = torch.as_strided(one, one.size(), one.stride())
    return [again, torch.tensor([*one.stride(), one.is_contiguous(), square().is_contiguous()])]


def diagonals() -> Made:
    one, tall = square(), torch.randn(3 * WIDTH, WIDTH)
    return [one.fill_diagonal_(2), tall.fill_diagonal_(3, wrap=True)]


def statistics_of_a_batch() -> Made:
    layer = nn.BatchNorm1d(WIDTH)
    layer(square())
    return [layer.running_mean, layer.running_var]


def orthogonal() -> Made:
    wide = nn.init.orthogonal_(torch.empty(WIDTH, 2 * WIDTH))
    return [wide, *parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)).parameters()]


def training() -> Made:
    layer = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(2):
        layer(torch.ones(3, WIDTH)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(layer.parameters())


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    "make",
    [
        another_shape_in_place, less_in_place, the_memory_of_another, large_and_small_at_once,
        a_default_dtype_of_its_own, numbers_drawn_by_values, small_tensors_that_change_later,
        strides, diagonals, statistics_of_a_batch, orthogonal, training,
    ],
)  # fmt: skip
def test_bits_are_those_of_what_is_made_at_once(make: Callable[[], Made]) -> None:
    torch.manual_seed(3)
    wanted, drawn = [one.detach() for one in make()], torch.rand(3)
    torch.manual_seed(3)
    delayed = Delayed()
    with delayed.recording():
        made = [nn.Parameter(one.detach(), requires_grad=False) for one in make()]
    assert torch.equal(torch.rand(3), drawn)
    for at, (one, other) in enumerate(zip(made, wanted, strict=True)):
        delayed.make(one)
        assert one.dtype == other.dtype and torch.equal(one, other), at


def test_parameters_that_share_memory_share_what_is_made() -> None:
    delayed = Delayed()
    with delayed.recording():
        one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        other.weight.data = one.weight.data
    delayed.make(one.weight, other.weight)
    assert one.weight.data_ptr() == other.weight.data_ptr()


def test_an_array_of_a_tensor_without_memory_cannot_be_written() -> None:
    with Delayed().recording():
        one = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        with pytest.raises(ValueError, match="read-only"):
            one.detach().numpy()[:] = 3


@pytest.mark.parametrize("change", ["numpy", "data"])
def test_a_change_that_torch_does_not_count_is_an_error(change: str) -> None:
    array = numpy.ones((WIDTH, WIDTH), numpy.float32)
    given, delayed = torch.from_numpy(array), Delayed()
    with delayed.recording(), torch.no_grad():
        one = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        one.copy_(given)
    if change == "numpy":
        array[3] = 5
    else:
        given.data.zero_()
    with pytest.raises(ModelParallelError, match="has been changed since"):
        delayed.make(one)

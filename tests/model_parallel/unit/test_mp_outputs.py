"""Returns of all microbatches as one, and what can be done with them."""

from __future__ import annotations

import collections

import pytest
import torch

from muster_modelparallel.errors import StepError
from muster_modelparallel.run.outputs import StepOutput, detached, merged

pytestmark = pytest.mark.torch
Pair = collections.namedtuple("Pair", "loss logits")


class Output(collections.OrderedDict):  # type: ignore[type-arg]
    """In the manner of transformers' ModelOutput: keys are attributes as well."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def numbers(*values):
    return [torch.tensor(value) for value in values]


def test_tensors_become_step_outputs_by_microbatch() -> None:
    tensors = numbers(1.0, 2.0)
    found = merged(tensors)
    assert isinstance(found, StepOutput) and isinstance(found.outputs, list)
    assert all(got is given for got, given in zip(found.outputs, tensors, strict=True))
    assert len(found) == 2 and found[1] is tensors[1] and list(found) == tensors


def test_in_containers_too() -> None:
    def returned(value):
        t = torch.tensor(value)
        return (t, {"a": [t, t]}, Pair(t, None), Output(loss=t, logits=(t, t)), value, None, "x")

    a, b, pair, output, scalars, nothing, text = merged([returned(1.0), returned(2.0)])
    assert a.reduce_sum() == 3 and b["a"][1].reduce_sum() == 3
    assert isinstance(pair, Pair) and pair.loss.reduce_sum() == 3 and pair.logits is None
    assert isinstance(output, Output) and output.__dict__["loss"] is output["loss"]
    assert output["loss"].reduce_sum() == 3 and output["logits"][1].reduce_sum() == 3
    assert scalars == [1.0, 2.0] and nothing is None and text == ["x", "x"]


def test_python_numbers_become_plain_lists_and_none_stays_none() -> None:
    assert merged([3, 4]) == [3, 4] and type(merged([3, 4])) is list
    assert merged([7]) == [7]
    assert merged([None, None]) is None
    assert merged([(), ()]) == ()


def test_returns_that_are_not_alike_are_listed() -> None:
    tensor = torch.ones(1)
    assert merged([None, tensor]) == [None, tensor]
    assert merged([(1,), (1, 2)]) == [(1,), (1, 2)]
    assert merged([{"a": 1}, {"b": 1}]) == [{"a": 1}, {"b": 1}]
    assert merged([{1}, {2}]) == [{1}, {2}]


def test_mean_sum_stack_and_concat() -> None:
    output = StepOutput([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])])
    assert output.reduce_mean().tolist() == [2, 4]
    assert output.reduce_sum().tolist() == [4, 8]
    assert output.stack().tolist() == [[1, 2], [3, 6]]
    assert output.concat().tolist() == [1, 2, 3, 6]


def test_the_mean_of_whole_numbers_is_none() -> None:
    output = StepOutput(numbers(1, 2))
    assert output.reduce_mean().item() == 1.5
    assert output.reduce_sum().dtype is torch.int64
    assert StepOutput(numbers(True, True, False)).reduce_sum().item() == 2


def test_detach_leaves_the_graph() -> None:
    tensor = torch.ones(2, requires_grad=True) * 2
    output = StepOutput([tensor, tensor])
    assert output.reduce_sum().requires_grad
    assert not output.detach().reduce_sum().requires_grad
    assert output.outputs[0].requires_grad, "it is another one"


def test_detached_reaches_into_containers() -> None:
    tensor = torch.ones(2, requires_grad=True) * 2
    found = detached({"a": (tensor, 3)})
    assert not found["a"][0].requires_grad and found["a"][1] == 3


def test_shapes_that_do_not_fit_are_refused_with_the_fix() -> None:
    output = StepOutput([torch.ones(2), torch.ones(3)])
    for merge in (output.stack, output.reduce_mean, output.reduce_sum):
        with pytest.raises(StepError, match=r"different shapes.*concat\(\)"):
            merge()
    assert output.concat().shape == (5,)
    with pytest.raises(StepError, match=r"single numbers; use stack\(\)"):
        StepOutput(numbers(1.0, 2.0)).concat()

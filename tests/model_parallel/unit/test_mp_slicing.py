"""Which arguments of a step function are cut, on which axis, and what is refused."""

from __future__ import annotations

import collections
import inspect
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muster_modelparallel.errors import StepError
from muster_modelparallel.run.slicing import cut_arguments, read_cuts

pytestmark = pytest.mark.torch
Pair = collections.namedtuple("Pair", "x y")


def cut(function, *args, count=2, whole=None, axes=None, **kwargs):
    signature = inspect.signature(function)
    cuts = read_cuts(signature, whole, axes)
    calls = cut_arguments(signature, cuts, args, kwargs, count)
    return [function(*call.args, **call.kwargs) for call in calls]


def one(x):
    return x


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2), st.booleans())
def test_pieces_in_order_are_the_tensor(count: int, width: int, axis: int, is_from_end: bool):
    shape = [2, 3, 4]
    shape[axis] = count * width
    tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    pieces = cut(one, tensor, count=count, axes={"x": axis - 3 if is_from_end else axis})
    assert len(pieces) == count
    assert torch.equal(torch.cat(pieces, axis), tensor)


def test_axis_0_is_cut_where_nothing_is_said() -> None:
    assert [list(piece.shape) for piece in cut(one, torch.ones(4, 6))] == [[2, 6], [2, 6]]


def test_pieces_are_views() -> None:
    tensor = torch.zeros(4)
    cut(one, tensor)[1].fill_(7)
    assert tensor.tolist() == [0, 0, 7, 7]


def test_tensors_in_containers_are_cut() -> None:
    t = torch.arange(4)
    value = {"list": [t], "tuple": (t, 3), "pair": Pair(t, None), "deep": [{"a": (t,)}], "s": {t}}
    first, second = cut(one, value)
    assert first["list"][0].tolist() == [0, 1] and second["list"][0].tolist() == [2, 3]
    assert first["tuple"][0].tolist() == [0, 1] and first["tuple"][1] == 3
    assert isinstance(first["pair"], Pair) and first["pair"].x.tolist() == [0, 1]
    assert first["pair"].y is None
    assert second["deep"][0]["a"][0].tolist() == [2, 3]
    (member,) = second["s"]
    assert isinstance(second["s"], set) and member.tolist() == [2, 3]


def test_other_mappings_keep_their_type() -> None:
    class Batch(collections.UserDict):  # type: ignore[type-arg]
        pass

    batch = Batch(ids=torch.arange(4))
    ordered = collections.OrderedDict(b=torch.arange(4), a=torch.arange(4))
    _, second = cut(one, [batch, ordered])
    assert isinstance(second[0], Batch) and second[0]["ids"].tolist() == [2, 3]
    assert list(second[1]) == ["b", "a"]
    assert batch["ids"].tolist() == [0, 1, 2, 3], "the caller's is as it was"


def test_dataclasses_are_cut_and_keep_their_type() -> None:
    @dataclass(frozen=True)
    class Batch:
        ids: torch.Tensor
        name: str
        deep: dict[str, torch.Tensor]
        made: list[int] = field(default_factory=list, init=False)

    batch = Batch(torch.arange(4), "some", {"labels": torch.arange(4)})
    _, second = cut(one, batch)
    assert isinstance(second, Batch) and second.name == "some" and second.made is batch.made
    assert second.ids.tolist() == second.deep["labels"].tolist() == [2, 3]
    assert batch.ids.tolist() == [0, 1, 2, 3], "the caller's is as it was"


def test_what_is_no_tensor_is_passed_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    class Thing:
        def __init__(self) -> None:
            self.tensor = torch.ones(3)

    @dataclass
    class Trainer:
        model: torch.nn.Module
        total: torch.Tensor

    linear = torch.nn.Linear(3, 3)
    trainer = Trainer(linear, torch.zeros(()))
    values = ["text", 3, None, Thing(), trainer, Batch, linear, torch.Size([3, 5])]
    for _ in range(2):
        for piece in cut(one, values):
            assert all(got is given for got, given in zip(piece, values, strict=True))
    said = [line.getMessage() for line in caplog.records]
    assert sum("argument x[3] is a" in line and "are not cut" in line for line in said) == 1


@dataclass
class Batch:
    x: int = 0


def test_objects_cut_themselves_by_smp_slice() -> None:
    class Custom:
        def __init__(self, said):
            self.said = said

        def smp_slice(self, num_mb, mb, axis):
            return Custom((num_mb, mb, axis))

    pieces = cut(one, [Custom(None)], count=3, axes={"x": 1})
    assert [piece[0].said for piece in pieces] == [(3, 0, 1), (3, 1, 1), (3, 2, 1)]
    whole = Custom(None)
    assert all(piece is whole for piece in cut(one, whole, whole=["x"]))


FLAG = torch.ones(5)


def everything(first, *rest, flag=FLAG, **more):
    return first, rest, flag, more


def test_names_are_those_of_the_signature() -> None:
    t = torch.zeros(4, 6)
    shapes = [
        (list(first.shape), [list(each.shape) for each in rest],
         {key: list(value.shape) for key, value in more.items()})
        for first, rest, _, more in cut(
            everything, t, t, t, mask=t, labels=t, other=t,
            whole=["first", "labels"], axes={"rest": 1, "mask": 1},
        )
    ]  # fmt: skip
    more = {"mask": [4, 3], "labels": [4, 6], "other": [2, 6]}
    assert shapes[0] == ([4, 6], [[4, 3], [4, 3]], more)
    for said, shape in ((["rest"], [4, 6]), ([], [2, 6])):
        assert list(cut(everything, t, t, whole=said)[0][1][0].shape) == shape
    assert list(cut(everything, t, other=t, whole=["more"])[0][3]["other"].shape) == [4, 6]


def test_by_keyword_is_as_by_position() -> None:
    def pair(x, y):
        return y

    by_place = cut(pair, 1, torch.arange(4), axes={"y": 0})
    by_name = cut(pair, y=torch.arange(4), x=1, axes={"y": 0})
    assert [each.tolist() for each in by_place] == [each.tolist() for each in by_name]


def test_defaults_are_no_inputs() -> None:
    assert [len(flag) for _, _, flag, _ in cut(everything, 1)] == [5, 5]


def test_methods_are_cut_but_for_their_object() -> None:
    class Trainer:
        def run(self, x):
            return self, x

    trainer = Trainer()
    (owner, piece), _ = cut(Trainer.run, trainer, torch.arange(4))
    assert owner is trainer and piece.tolist() == [0, 1]


@pytest.mark.promise("B53")
def test_a_batch_that_does_not_divide_is_refused_with_both_numbers_and_the_fix() -> None:
    with pytest.raises(StepError) as caught:
        cut(one, {"ids": [torch.ones(7, 2)]}, count=4)
    text = str(caught.value)
    assert "x['ids'][0] has 7 entries on axis 0, which 4 microbatches do not divide" in text
    assert "drop_last=True" in text and "'x' in non_split_inputs" in text


@pytest.mark.parametrize("count", [1, 2])
def test_a_tensor_without_the_axis_is_refused_whatever_the_microbatches(count: int) -> None:
    with pytest.raises(StepError, match=r"argument x .* no axis 0 .* 'x' in non_split_inputs"):
        cut(one, torch.tensor(1.0), count=count)
    with pytest.raises(StepError, match="no axis 2"):
        cut(one, torch.ones(4, 4), axes={"x": 2})
    assert cut(one, torch.tensor(1.0), count=count, whole=["x"])[0].item() == 1


def test_a_packed_sequence_is_refused() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    with pytest.raises(StepError, match="PackedSequence"):
        cut(one, [packed])


def test_names_that_the_function_does_not_have_are_refused() -> None:
    with pytest.raises(StepError, match=r"'xx' is no argument .* it has x"):
        cut(one, 1, whole=["xx"])
    with pytest.raises(StepError, match="'z' is no argument"):
        cut(one, 1, axes={"z": 1})
    with pytest.raises(StepError, match="in non_split_inputs and in input_split_axes"):
        cut(one, 1, whole=["x"], axes={"x": 1})
    with pytest.raises(StepError, match="the text 'x'"):
        cut(one, 1, whole="x")
    with pytest.raises(StepError, match="number of an axis"):
        cut(one, 1, axes={"x": "rows"})


def test_arguments_that_the_function_does_not_take_are_pythons_error() -> None:
    with pytest.raises(TypeError, match="missing"):
        cut(one)

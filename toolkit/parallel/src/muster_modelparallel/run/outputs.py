"""What a step function gives back: the returns of all microbatches, put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from muster_modelparallel.errors import StepError
from muster_modelparallel.model.nests import map_tensors, parts, put_together


class StepOutput:
    """A tensor that a step function returned, in its versions of all microbatches."""

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = list(tensors)

    @property
    def outputs(self) -> list[Any]:
        """The tensors, by microbatch."""
        return self._tensors

    def reduce_mean(self) -> Any:
        """Their element-wise mean, of the default floating type where they hold whole numbers.
        Raises StepError where their shapes differ."""
        stacked = self._stacked()
        if not (stacked.is_floating_point() or stacked.is_complex()):
            stacked = stacked.to(torch.get_default_dtype())
        return stacked.mean(0)

    def reduce_sum(self) -> Any:
        """Their element-wise sum. Raises StepError where their shapes differ."""
        return self._stacked().sum(0)

    def concat(self) -> Any:
        """One tensor with their entries along axis 0. Raises StepError for tensors without axes."""
        if any(tensor.dim() == 0 for tensor in self._tensors):
            raise StepError(
                "concat() of a StepOutput whose tensors are single numbers",
                "use stack(), reduce_mean() or reduce_sum()",
            )
        return torch.cat(self._tensors, 0)

    def stack(self) -> Any:
        """One tensor with a new first axis: the microbatches. Raises StepError where their shapes
        differ."""
        return self._stacked()

    def detach(self) -> StepOutput:
        """The same tensors without their graphs."""
        return StepOutput([tensor.detach() for tensor in self._tensors])

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, index: int) -> Any:
        return self._tensors[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tensors)

    def __repr__(self) -> str:
        return f"StepOutput({self._tensors!r})"

    def _stacked(self) -> Any:
        shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in self._tensors))
        if len(shapes) > 1:
            raise StepError(
                f"the tensors of the microbatches have different shapes: {shapes}",
                "use concat() where they differ along axis 0 only, or .outputs",
            )
        return torch.stack(self._tensors)


def detached(value: Any) -> Any:
    """The same with tensors detached, in containers too."""
    return map_tensors(lambda tensor: tensor.detach(), value)


def merged(values: Sequence[Any]) -> Any:
    """The returns of all microbatches as one: tensors as StepOutput, None as None, containers by
    their members, and whatever else as the plain list of its values, python numbers too."""
    first = values[0]
    if all(isinstance(value, torch.Tensor) for value in values):
        return StepOutput(values)
    if all(value is None for value in values):
        return None
    members = _members_alike(values)
    if members is None:
        return list(values)
    return put_together(first, [merged(each) for each in members])


def _members_alike(values: Sequence[Any]) -> list[list[Any]] | None:
    """For each place of containers that are alike, the members of all; None where they are not,
    and for sets, whose members have no place."""
    if any(type(value) is not type(values[0]) for value in values):
        return None
    if isinstance(values[0], (set, frozenset)):
        return None
    taken = [parts(value) for value in values]
    if any(found is None for found in taken):
        return None
    names = [[name for name, _ in found or ()] for found in taken]
    if any(each != names[0] for each in names):
        return None
    columns = [[member for _, member in found or ()] for found in taken]
    return [list(column) for column in zip(*columns, strict=True)]

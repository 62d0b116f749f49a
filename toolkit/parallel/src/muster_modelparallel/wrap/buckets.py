"""Gradients that are averaged together: one flat tensor, one all-reduce."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch
import torch.distributed as dist

from muster_modelparallel.errors import StepError


class GradientBucket:
    """Parameters of one type whose gradients travel in one tensor.

    After the gradients the tensor has a number for each parameter that says whether any rank has a
    gradient: one that no rank has stays None, as in one process, so that weight decay and momentum
    leave it alone. A rank without one counts as zeros. Its last number is for `has_more`.

    as_view: gradients live in the tensor itself, which saves their memory once more.
    """

    def __init__(self, named: Sequence[tuple[str, Any]], group: Any, as_view: bool) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.waiting: set[int] = set()
        self._group = group
        self._as_view = as_view
        self._flat: Any = None
        self._views: list[Any] = []
        self._has: list[bool] = []
        self._work: Any = None

    @property
    def is_launched(self) -> bool:
        """Whether its all-reduce is on its way."""
        return self._work is not None

    @property
    def has_more(self) -> bool:
        """Whether any rank has launched it with `more`, when it is finished. On a GPU it waits."""
        return bool(self._flat[-1].abs() > 0)

    def begin(self, settled: Set[str]) -> None:
        """From now on all gradients are awaited but those of the parameters of these names."""
        self.waiting = {place for place, name in enumerate(self.names) if name not in settled}

    def forget(self) -> None:
        """An all-reduce on its way is left to itself."""
        if self._work is not None:
            self._flat, self._work = None, None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def launch(self, more: bool = False) -> None:
        """Begins to average. Raises StepError for a sparse gradient."""
        if self._flat is None:
            self._allocate()
        self._has = [parameter.grad is not None for parameter in self.parameters]
        for name, parameter, view in zip(self.names, self.parameters, self._views, strict=True):
            self._take(name, parameter, view)
        size = dist.get_world_size(self._group)
        flags = [*self._has, more]
        self._flat[-len(flags) :] = torch.tensor(
            flags, dtype=self._flat.dtype, device=self._flat.device
        )
        self._flat.mul_(1 / size)  # before the sum, which might not fit into a small type
        wire = torch.view_as_real(self._flat) if self._flat.is_complex() else self._flat
        self._work = dist.all_reduce(wire, group=self._group, async_op=True)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def finish(self) -> None:
        """Waits for the averages and makes them the gradients."""
        self._work.wait()
        self._work = None
        anywhere = self._has
        if not all(self._has):
            anywhere = (self._flat[-len(self._has) - 1 : -1].abs() > 0).tolist()
        for parameter, view, has in zip(self.parameters, self._views, anywhere, strict=True):
            if not has:
                continue
            if self._as_view:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view.clone()
            else:
                parameter.grad.copy_(view)

    def _allocate(self) -> None:
        sizes = [parameter.numel() for parameter in self.parameters]
        first = self.parameters[0]
        size = sum(sizes) + len(sizes) + 1
        self._flat = torch.empty(size, dtype=first.dtype, device=first.device)
        pieces = self._flat[: sum(sizes)].split(sizes)
        self._views = [
            piece.view(parameter.shape)
            for piece, parameter in zip(pieces, self.parameters, strict=True)
        ]

    def _take(self, name: str, parameter: Any, view: Any) -> None:
        grad = parameter.grad
        if grad is None:
            view.zero_()
            return
        if grad.layout is not torch.strided:
            raise StepError(
                f"parameter {name} has a sparse gradient, which is not averaged over replicas",
                "build its module with sparse=False",
            )
        if grad.data_ptr() != view.data_ptr() or not view.numel():
            view.copy_(grad)
        if self._as_view:
            parameter.grad = view


def cut_into_buckets(
    named: Sequence[tuple[str, Any]], cap_bytes: int, group: Any, as_view: bool
) -> list[GradientBucket]:
    """Buckets of at most cap_bytes (a larger parameter has its own), each of one type and device,
    in about the order in which backward makes gradients: the last parameter first."""
    open_ones: dict[Any, list[tuple[str, Any]]] = {}
    closed: list[list[tuple[str, Any]]] = []
    for name, parameter in reversed(named):
        members = open_ones.setdefault((parameter.dtype, parameter.device), [])
        taken = sum(other.nbytes for _, other in members)
        if members and taken + parameter.nbytes > cap_bytes:
            closed.append(list(members))
            members.clear()
        members.append((name, parameter))
    closed += [members for members in open_ones.values() if members]
    return [GradientBucket(members, group, as_view) for members in closed]

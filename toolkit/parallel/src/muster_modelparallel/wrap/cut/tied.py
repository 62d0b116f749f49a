"""Parameters that several stages hold: equal values at first, and the sum of gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from muster_modelparallel.run.pipeline.waits import Waits
from muster_modelparallel.wrap.cut.calls import Holding
from muster_modelparallel.wrap.shard.values import part


class TiedParameters:
    """Those of this rank. The calls are collective over the ranks that hold one.

    Gradients of earlier steps are the same on all of them already: only what a step adds is summed.
    """

    def __init__(self, module: nn.Module, holding: Holding, group: Any, waits: Waits) -> None:
        named = dict(module.named_parameters())
        self._group = group
        self._ranks: list[int] = dist.get_process_group_ranks(group)
        self._place = holding.place
        self._held = [
            (named[name], places) for name, places in holding.tied.items() if holding.holds(name)
        ]
        self._before: list[torch.Tensor | None] = []
        self._waits = waits

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def share(self) -> None:
        """All get the values of the first one that holds it."""
        for parameter, places in self._held:
            if self._place == places[0]:
                self._send(parameter.data, places[1:])
            else:
                parameter.data.copy_(self._received(parameter.data, places[0]))

    def begin_step(self) -> None:
        """Puts the gradients of earlier steps aside."""
        for (parameter, _), earlier in zip(self._held, self._before, strict=False):
            parameter.grad = earlier  # of a step that raised
        self._before = [parameter.grad for parameter, _ in self._held]
        for parameter, _ in self._held:
            parameter.grad = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def zero_grad(self, parameters: Iterable[torch.Tensor], set_to_none: bool) -> None:
        """Of these, what is put aside goes as their gradients do, which torch sees to."""
        meant = {id(one) for one in parameters}
        for at, ((parameter, _), earlier) in enumerate(zip(self._held, self._before, strict=False)):
            if earlier is not None and id(parameter) in meant:
                self._before[at] = None if set_to_none else earlier.zero_()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def end_step(self, has_backward: bool) -> None:
        """All get the sum of what the step has added, the same bits."""
        before, self._before = self._before or [None] * len(self._held), []
        for (parameter, places), earlier in zip(self._held, before, strict=True):
            if has_backward and parameter.requires_grad:
                mine = parameter.grad
                if mine is None:
                    mine = parameter.grad = torch.zeros_like(parameter)
                added = part(mine).contiguous()
                if self._place == places[0]:
                    for place in places[1:]:
                        added = added + self._received(added, place)
                    self._send(added, places[1:])
                else:
                    self._send(added, places[:1])
                    added = self._received(added, places[0])
                part(mine).copy_(added)
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)

    # Few parameters are tied, and between few stages: messages in the order of the model's names
    # need no group of their own, and the sum is made by one rank, so all have the same bits.

    def _send(self, tensor: torch.Tensor, places: Sequence[int]) -> None:
        for place in places:
            with self._waits.waiting(self._words("hand a tied parameter to", place)):
                dist.send(tensor.contiguous(), self._ranks[place], group=self._group)

    def _received(self, like: torch.Tensor, place: int) -> torch.Tensor:
        made = torch.empty_like(like, memory_format=torch.contiguous_format)
        with self._waits.waiting(self._words("wait for a tied parameter from", place)):
            dist.recv(made, self._ranks[place], group=self._group)
        return made

    def _words(self, what: str, place: int) -> str:
        return f"rank {self._ranks[self._place]}: to {what} rank {self._ranks[place]}"

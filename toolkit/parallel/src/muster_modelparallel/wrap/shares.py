"""Which replica updates which parameter, where each keeps the optimizer's state of its share alone
(key shard_optimizer_state, ZeRO-1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from muster_modelparallel.wrap.replicas import broadcast_tensors


class OptimizerShares:
    """Whole parameters, so that any optimizer may be wrapped; the largest first, each to the
    replica that has the least. A parameter keeps its replica. All replicas see the same parameters
    in the same order, and so divide them alike. `count`: of the replicas."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._place = dist.get_rank(group)
        self.count: int = dist.get_world_size(group)
        self._owners: dict[Any, int] = {}

    def divide(self, parameters: Iterable[Any]) -> list[Any]:
        """Gives those that are new to a replica. Returns what has become another's."""
        new = [one for one in parameters if one not in self._owners]
        if not new:
            return []
        loads = [0] * self.count
        for one, owner in self._owners.items():
            loads[owner] += one.nbytes
        for one in sorted(new, key=lambda one: -one.nbytes):
            owner = self._owners[one] = loads.index(min(loads))
            loads[owner] += one.nbytes
        return [one for one in new if not self.has(one)]

    def adopt(self, shares: Sequence[Sequence[Any]]) -> None:
        """The parameters of each replica, as they were divided in another job."""
        for owner, parameters in enumerate(shares):
            self._owners.update(dict.fromkeys(parameters, owner))

    def has(self, parameter: Any) -> bool:
        """Whether it is this replica's."""
        return bool(self._owners[parameter] == self._place)

    @contextmanager
    def updating(self, parameters: Sequence[Any]) -> Iterator[None]:
        """Inside, of these parameters only this replica's have gradients; then all replicas have
        what the others have made of theirs. Collective."""
        others = [(one, one.grad) for one in parameters if not self.has(one)]
        for one, _ in others:
            one.grad = None
        try:
            yield
        finally:
            for one, grad in others:
                one.grad = grad
        for owner in range(self.count):
            mine = [one for one in parameters if self._owners[one] == owner]
            broadcast_tensors(mine, self._group, owner)

"""The state of a wrapped optimizer: of what this rank updates, of all that hold a part of it, and
back to where it belongs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from muster_modelparallel.errors import SettingsError
from muster_modelparallel.run.objects import CommGroup, allgather
from muster_modelparallel.run.session import Session
from muster_modelparallel.wrap.masters import MasterWeights
from muster_modelparallel.wrap.shard.values import as_part, cut_like, is_cut, part, whole
from muster_modelparallel.wrap.shares import OptimizerShares

if TYPE_CHECKING:
    from muster_modelparallel.wrap.shard.sharding import Sharding

_REPLICAS = CommGroup.RDP_GROUP
MASTERS = "master_weights"  # float32 values of parameters of half precision
_SHARED_BY = "shared_by"  # of how many replicas it is one's share
_PART = "part_of"  # which part it is, of how many

State = Mapping[Any, Any]
"""By number of the parameter."""


class OptimizerState(NamedTuple):
    """Of `optimizer`, whose parameters may have master weights, and be divided among replicas."""

    optimizer: torch.optim.Optimizer
    session: Session
    masters: MasterWeights | None
    shares: OptimizerShares | None

    @property
    def sharding(self) -> Sharding | None:
        """How the model's parameters are cut over replicas."""
        return getattr(self.session.model, "sharding", None)

    def parameters(self) -> Iterator[Any]:
        """All, in the order of their numbers."""
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def held_parameters(self) -> Iterator[Any]:
        """Those that this rank's stages have."""
        model: Any = self.session.model
        stages = getattr(model, "stages", None)
        if stages is None or not stages.is_partitioned:
            return self.parameters()
        return model.local_parameters()  # type: ignore[no-any-return]

    def updated(self, parameters: Iterable[Any]) -> list[Any]:
        """Of these, which have a state, those that this rank updates."""
        held = {id(one) for one in self.held_parameters()}
        found = [one for one in parameters if id(one) in held]
        if self.shares is not None:
            some = set(found)
            self.shares.divide(one for one in self.parameters() if one.requires_grad or one in some)
            found = [one for one in found if self.shares.has(one)]
        return found

    def cut(self, sharding: Sharding) -> None:
        """In place of parameters that have been cut it updates their parts."""
        sharding.adopt(self.optimizer)
        if self.masters is not None:
            for before, shard in sharding.successors.items():
                self.masters.move(before, shard)

    def local(self) -> dict[str, Any]:
        """Of what this rank updates, for `load` on the same rank of as many."""
        found = self.held()
        if self.shares is not None:
            found[_SHARED_BY] = self.shares.count
        if self.sharding is not None:
            found[_PART] = self.sharding.place
            found = part(found)
        return found

    def whole(self) -> dict[str, Any]:
        """Of what this rank's stage holds. Collective over the replicas where it is divided."""
        found = self.held()
        if self.sharding is not None:
            return whole(found)  # type: ignore[no-any-return]
        return found if self.shares is None else merged_states(allgather(found, _REPLICAS))

    def load(self, given: dict[str, Any], masters_only: bool = False) -> None:
        """What `local`, `whole` or the states of all stages together have given; of a whole state
        this rank's share and parts. Raises as torch's, SettingsError for the part of another rank
        or number of replicas. masters_only: no more of it than the master weights."""
        masters = given.pop(MASTERS, {})
        self._adopt(given.get("state", {}), given.pop(_SHARED_BY, 0))
        change = as_part if self._is_part(given.pop(_PART, None)) else cut_like
        given["state"] = self._here(self._mine(given["state"]), change)
        masters = self._here(self._mine(masters), change)
        parameters = list(self.parameters())
        (self.masters.load if self.masters else MasterWeights.restore)(parameters, masters)
        if masters_only:
            return
        of = [one for number, one in enumerate(parameters) if number in given["state"]]
        # or it would round the state
        with self.masters.in_place(of) if self.masters else nullcontext():
            self.optimizer.load_state_dict(given)

    def held(self) -> dict[str, Any]:
        """Of what this rank updates, parameters that are cut as parts that know of their whole."""
        found = dict(self.optimizer.state_dict())
        if self.masters is not None:
            found[MASTERS] = self.masters.saved(self.parameters())
        return found

    def _of(self) -> dict[Any, Any]:
        return dict(enumerate(self.parameters()))

    def _mine(self, state: State) -> State:
        """What this rank updates."""
        of = self._of()
        mine = {id(one) for one in self.updated(of[number] for number in state if number in of)}
        return {
            number: value
            for number, value in state.items()
            if number not in of or id(of[number]) in mine
        }

    def _adopt(self, state: State, shared_by: int) -> None:
        """Divides the parameters as they were where the state is one replica's share."""
        count = 0 if self.shares is None else self.shares.count
        if not shared_by:
            return
        if shared_by != count or self.shares is None:
            now = f"has {count}" if count else "does not shard it"
            raise SettingsError(
                f"the optimizer's state is the share of one of {shared_by} replicas, and this job "
                f"{now}",
                "save it with local_state_dict(gather_if_shard=True)",
            )
        of = self._of()
        shares = allgather(sorted(number for number in state if number in of), _REPLICAS)
        self.shares.adopt([[of[number] for number in share] for share in shares])

    def _is_part(self, place: Sequence[int] | None) -> bool:
        here = None if self.sharding is None else self.sharding.place
        if place is not None and (here is None or tuple(place) != here):
            now = "has them whole" if here is None else f"is at {here[0]} of {here[1]}"
            raise SettingsError(
                f"the optimizer's state is of part {place[0]} of {place[1]} of its parameters, and "
                f"this rank {now}",
                "save it with local_state_dict(gather_if_shard=True)",
            )
        return place is not None

    def _here(self, state: State, change: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        """With the values of parameters that are cut as `change` gives them."""
        of = self._of()
        return {
            number: change(of[number], value) if is_cut(of.get(number)) else value
            for number, value in state.items()
        }


def merged_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of an optimizer from those of the ranks of a pipeline."""
    made = dict(states[0])
    for name in ("state", MASTERS):
        if name in made:
            made[name] = {
                number: value for state in reversed(states) for number, value in state[name].items()
            }
    return made

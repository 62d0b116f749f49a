"""The stages of a wrapped model on this rank: from the partition on, and what it takes to see the
model as a whole again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from muster_modelparallel.errors import StepError
from muster_modelparallel.run.pipeline.clock import StageTimes
from muster_modelparallel.run.pipeline.delivery import Delivery
from muster_modelparallel.run.pipeline.protocols import ModelCall
from muster_modelparallel.run.pipeline.waits import Waits
from muster_modelparallel.run.session import Session
from muster_modelparallel.shape.plan import Plan
from muster_modelparallel.shape.schedule import Schedule
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.creation import make_parameters
from muster_modelparallel.wrap.cut.calls import Calls, CallStages, Holding, move
from muster_modelparallel.wrap.cut.partitioning import partition
from muster_modelparallel.wrap.cut.planning import say, schedule_of, table, timed
from muster_modelparallel.wrap.cut.progress import report
from muster_modelparallel.wrap.cut.tied import TiedParameters

if TYPE_CHECKING:
    from muster_modelparallel.wrap.shard.sharding import Sharding

_BLOCK_BYTES = 64 << 20  # of states that are gathered


class Stages:
    """Of a model whose pipeline has several ranks. Nothing is moved before `partition`."""

    def __init__(
        self, session: Session, module: nn.Module, sharding: Sharding | None = None
    ) -> None:
        self._session = session
        self._module = self.module = module
        self._sharding = sharding
        self._group = session.mesh.group(GroupKind.PP)
        self._waits = Waits()
        self._plan: Plan | None = None
        self._holding: Holding | None = None
        self._calls: Calls | None = None
        self._tied: TiedParameters | None = None
        self._held: list[tuple[str, Any]] = []
        self._ghosts: list[tuple[str, Any]] = []

    @property
    def is_partitioned(self) -> bool:
        """Whether parameters have been moved."""
        return self._holding is not None

    @property
    def rank_of(self) -> tuple[int, ...]:
        """The rank of each stage, in the pipeline."""
        return self._there().rank_of

    @property
    def planned_step_s(self) -> float:
        """Seconds of a step, as simulated."""
        return 0.0 if self._plan is None else self._plan.step_s

    def partition(self, call: ModelCall) -> None:
        """Collective over the job. Gradients and the state of an optimizer that belong to what
        other ranks hold from here on are dropped."""
        self._session.is_tracing = True
        try:
            self._plan, holding, self._calls = partition(
                self._session, self._module, call, self._sharding
            )
        finally:
            self._session.is_tracing = False
        if self._session.mesh.rank:
            self._move(holding)
        else:
            timed("move", lambda: self._move(holding))
            say(table(self._plan))

    def _move(self, holding: Holding) -> None:
        """Parameters come where they belong, with their state in the optimizers."""
        move(self._module, holding)
        named = list(self._module.named_parameters())
        self._holding = holding
        make_parameters(self._session, (one for name, one in named if holding.holds(name)))
        self._session.delayed = None
        TiedParameters(self._module, holding, self._group, self._waits).share()
        if self._sharding is not None:
            names = [name for name, _ in named if holding.holds(name)]
            self._sharding.cut(names, holding.tops(self._module), holding.split.loose)
        for name, parameter in self._module.named_parameters():  # some have been cut
            (self._held if holding.holds(name) else self._ghosts).append((name, parameter))
        self._tied = TiedParameters(self._module, holding, self._group, self._waits)
        if self._sharding is not None:
            self._session.cut_optimizers(self._sharding)
        for optimizer in self._session.optimizers:
            optimizer.leave(parameter for _, parameter in self._ghosts)

    def prepare(self, call: ModelCall) -> CallStages:
        """This rank's stages for that kind of call."""
        assert self._calls is not None
        return self._calls.prepare(call)

    def schedule(self, microbatches: int) -> Schedule:
        """The order of work of a step that trains."""
        return schedule_of(self._session.config, self.rank_of, microbatches)

    def report(self, times: StageTimes, steps: int) -> None:
        """Says on the job's rank 0 what the stages took beside the plan. Collective."""
        assert self._plan is not None
        schedule = self.schedule(self._session.config.microbatches)
        report(self._session, self._plan, schedule, times, steps)

    def begin_step(self) -> None:
        """Before the first microbatch."""
        if self._tied is not None:
            self._tied.begin_step()

    def zero_grad(self, parameters: Iterable[Any], set_to_none: bool) -> None:
        """As an optimizer's, of gradients that a step at work has put aside."""
        if self._tied is not None:
            self._tied.zero_grad(parameters, set_to_none)

    def end_step(self, has_backward: bool) -> None:
        """Gradients of tied parameters are summed over stages. Raises as `refuse_strangers`."""
        if self._tied is not None:
            self._tied.end_step(has_backward)
        self.refuse_strangers("the step function")

    def refuse_strangers(self, who: str) -> None:
        """Raises StepError where a parameter of another rank has got a gradient: its values are
        not here. `who` may have used it."""
        for name, parameter in self._ghosts:
            if parameter.grad is not None:
                parameter.grad = None
                raise StepError(
                    f"{who} used parameter {name}, which lies on rank "
                    f"{self._rank(self._there().holders(name)[0])}, and got a gradient for it",
                    "let the model's forward use it, and return what the loss needs",
                )

    def parameters(self) -> Iterable[tuple[str, Any]]:
        """What this rank holds, by name; all of them before the partition."""
        return self._module.named_parameters() if self._holding is None else self._held

    def tied(self) -> Set[str]:
        """The parameters that several ranks hold: their gradients are complete after `end_step`."""
        return frozenset() if self._holding is None else self._holding.tied.keys()

    def others(self, stage: int) -> Set[str]:
        """What this rank holds that is not of that stage, which is one of its own."""
        mine = self._there().split.parameters[stage]
        return {name for name, _ in self._held if name not in mine}

    def holds(self, parameter: str) -> bool:
        """Whether this rank does; all of them, before the partition."""
        return self._holding is None or self._holding.holds(parameter)

    def holds_buffer(self, name: str) -> bool:
        """Whether this rank's buffer counts."""
        return self._holding is None or self._holding.holds_buffer(name)

    def uses_buffer(self, name: str) -> bool:
        """Whether its values matter here in training."""
        return self._holding is None or self._holding.uses_buffer(name)

    def holds_module(self, path: str) -> bool:
        """Whether any of its parameters is here; of one without, whether a unit of this rank is in
        it, or it in that. All ranks hold what no unit is about."""
        inside = f"{path}." if path else ""
        names = [name for name, _ in self._module.named_parameters() if name.startswith(inside)]
        if names or self._holding is None:
            return not names or any(map(self.holds, names))
        one, every = self._module.get_submodule(path), self._module.named_modules
        return self._holding.runs(at for at, it in every(remove_duplicate=False) if it is one)

    def speaks_for(self, parameter: str) -> bool:
        """Whether this rank is the first of those that hold it; before the partition the first of
        the pipeline is, of all."""
        found = self._holding
        if found is None:
            return bool(dist.get_rank(self._group) == 0)
        return not parameter or found.holders(parameter)[0] == found.place

    def whole(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state dictionary of the module with the values of the ranks that hold them, on all
        ranks. Collective over the pipeline."""
        holding = self._there()
        holder = self._holders(state)
        made = dict(state)
        delivery = Delivery(self._group, self._session.mesh.device, self._waits)
        for place in sorted(set(holder.values())):
            names = [name for name, at in holder.items() if at == place]
            for block in _blocks(names, state):
                for name in block:
                    if place != holding.place:
                        made[name] = torch.empty(
                            state[name].shape, dtype=state[name].dtype, device=state[name].device
                        )
                with self._waits.waiting(
                    f"rank {dist.get_rank()} gathers a state_dict, which all ranks of a pipeline "
                    f"call, and waits for rank {self._rank(place)}"
                ):
                    for name in block:  # whole values of parts wait in the host's memory
                        made[name] = made[name].detach().to(self._session.mesh.device)
                    delivery.tensors([made[name] for name in block], place)
        return made

    def held(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """What this rank holds of it; all, before the partition."""
        return state if self._holding is None else self.local(state)

    def local(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What this rank holds of it; whatever is no tensor is on all."""
        holding = self._there()
        names = self._names()
        return {
            name: value
            for name, value in state.items()
            if not isinstance(value, torch.Tensor)
            or (holding.holds(names[name]) if name in names else holding.holds_buffer(name))
        }

    def _holders(self, state: Mapping[str, Any]) -> dict[str, int]:
        """For the tensors of a state dictionary, whose value counts."""
        holding, names = self._there(), self._names()
        return {
            name: holding.holders(names[name])[0]
            if name in names
            else holding.holder_of_buffer(name)
            for name, value in state.items()
            if isinstance(value, torch.Tensor)
        }

    def _names(self) -> dict[str, str]:
        """For all names of parameters, the first name of the same parameter."""
        first = {id(one): name for name, one in self._module.named_parameters()}
        every = self._module.named_parameters(remove_duplicate=False)
        return {name: first[id(one)] for name, one in every}

    def _there(self) -> Holding:
        if self._holding is None:
            raise StepError(
                "the model is not partitioned yet",
                "it is at the first step function that trains",
            )
        return self._holding

    def _rank(self, place: int) -> int:
        return int(dist.get_global_rank(self._group, place))


def load_local(
    module: nn.Module,
    own: Iterable[str],
    wanted: Iterable[str],
    given: Mapping[str, Any],
    strict: bool,
) -> Any:
    """Loads what a rank holds, the names `own`, and judges all that was `wanted`. Returns and
    raises as torch's load_state_dict."""
    mine = set(own)
    found = module.load_state_dict(
        {name: value for name, value in given.items() if name in mine}, strict=False
    )
    missing = [name for name in wanted if name not in given]
    known = set(module.state_dict())
    unexpected = [name for name in given if name not in known]
    if strict and (missing or unexpected):
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(module).__name__}: missing keys {missing}, "
            f"unexpected keys {unexpected}"
        )
    return type(found)(missing, unexpected)


# One state at a time would need the whole model beside itself once more.
def _blocks(names: Iterable[str], state: Mapping[str, Any]) -> Iterator[list[str]]:
    block: list[str] = []
    size = 0
    for name in names:
        here = state[name].numel() * state[name].element_size()
        if block and size + here > _BLOCK_BYTES:
            yield block
            block, size = [], 0
        block.append(name)
        size += here
    if block:
        yield block

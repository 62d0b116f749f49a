"""A model after its partition: what this rank holds, its stages for each kind of call, and what it
exchanges with the other stages."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from muster_modelparallel.errors import SplitError, StepError
from muster_modelparallel.model.follow import trace
from muster_modelparallel.model.ghost import GhostStage
from muster_modelparallel.model.hollow import hollow, hollow_parameters
from muster_modelparallel.model.nests import map_tensors, members
from muster_modelparallel.model.probe import Probe
from muster_modelparallel.model.random import Draw, kept_random_state
from muster_modelparallel.model.split import Split, split_of
from muster_modelparallel.model.state import Kept, PassState
from muster_modelparallel.model.trace import Leaf, Meta, is_opaque
from muster_modelparallel.model.walk import graph_of
from muster_modelparallel.run.pipeline.protocols import ModelCall
from muster_modelparallel.run.pipeline.suspended import Modes
from muster_modelparallel.run.pipeline.undelivered import Fetch, Undelivered

if TYPE_CHECKING:
    from muster_modelparallel.wrap.shard.sharding import Sharding

_log = logging.getLogger("muster_modelparallel")
_MOST = 16  # kinds of calls that are remembered


@dataclass(frozen=True, slots=True)
class StageOfCall:
    """A stage of this rank, for calls of one kind."""

    stage: int
    receives: tuple[Meta, ...]
    sends: tuple[Meta, ...]
    ghost: GhostStage
    sharding: Sharding | None = None

    def forward(self, call: ModelCall, draw: Draw, received: Sequence[torch.Tensor]) -> Any:
        """On the last stage what the model returns, elsewhere the tensors of `sends`."""
        given = (call.args, call.kwargs, received, draw)
        if self.sharding is None:
            return self.ghost.run(*given)
        return self.sharding.run(self.ghost.run, *given)

    def forget(self, draw: Draw) -> None:
        """Backward of that microbatch is done."""
        self.ghost.forget(draw)


@dataclass(frozen=True, slots=True, eq=False)
class CallStages:
    """The stages of this rank for calls of one kind, and what the model then returns."""

    stages: Mapping[int, StageOfCall]
    tree: Any
    outputs: tuple[Leaf, ...]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, the model's units are those of these stages."""
        with ExitStack() as stack:
            for one in self.stages.values():
                stack.enter_context(one.ghost.installed())
            yield


class Holding:
    """Which stages hold which parameters and buffers. `rank_of`: of each stage, in the pipeline;
    `place`: this rank's; `tied`: the parameters that several ranks hold, with their places."""

    def __init__(self, module: nn.Module, split: Split, rank_of: Sequence[int], place: int) -> None:
        self.split = split
        self.rank_of = tuple(rank_of)
        self.place = place
        self._path_of = {
            call.path: stage for call, stage in zip(split.calls, split.stages, strict=True)
        }
        first = {id(one): name for name, one in module.named_buffers()}
        every = module.named_buffers(remove_duplicate=False)
        self._first_name = {name: first[id(one)] for name, one in every}
        stages = range(len(rank_of))
        self._holders = {
            name: tuple(dict.fromkeys(rank_of[at] for at in stages if name in split.parameters[at]))
            for name, _ in module.named_parameters()
        }
        self.tied = {name: held for name, held in self._holders.items() if len(held) > 1}
        self._units = tuple(f"{call.path}." for call in split.calls)
        for name, (writer, _) in split.buffers.items():
            if writer >= 0 and not self.within(name) and len(set(rank_of)) < len(rank_of):
                raise SplitError(
                    f"buffer {name} is changed by code between modules, which runs in each stage: "
                    "a rank with several of them would change it as often",
                    "change it in a module of its own, or have one stage on each rank",
                )

    def holders(self, parameter: str) -> tuple[int, ...]:
        """The places of the ranks that hold a parameter, by its first name; the first one speaks
        for it."""
        return self._holders[parameter]

    def holder_of_buffer(self, name: str) -> int:
        """The place of the rank whose buffer counts: where it changes, else that of its unit, else
        of the first stage."""
        first = self._first_name.get(name, name)
        writer, _ = self.split.buffers.get(first, (-1, ()))
        if writer >= 0:
            return self.rank_of[writer]
        words = first.split(".")
        for length in range(len(words) - 1, -1, -1):
            path = ".".join(words[:length])
            if path in self._path_of:
                return self.rank_of[self._path_of[path]]
        return self.rank_of[0]

    def uses_buffer(self, name: str) -> bool:
        """Whether this rank's buffer counts, or is read here and changes."""
        writer, readers = self.split.buffers.get(self._first_name.get(name, name), (-1, ()))
        here = writer >= 0 and self.place in {self.rank_of[stage] for stage in readers}
        return here or self.holds_buffer(name)

    def runs(self, paths: Iterable[str]) -> bool:
        """Whether a unit of this rank is a module of these names, in it or around it; or none is,
        of any rank."""
        about = self.places(paths)
        return not about or self.place in about

    def within(self, path: str) -> bool:
        """Whether it is in a unit, or one."""
        return f"{path}.".startswith(self._units)

    def places(self, paths: Iterable[str]) -> set[int]:
        """Those of the ranks with a unit that is a module of these names, in it or around it."""
        names = [f"{path}." for path in paths]
        units = zip(self.split.calls, self.split.stages, strict=True)
        return {
            self.rank_of[stage]
            for unit, stage in ((f"{call.path}.", stage) for call, stage in units)
            if any(name.startswith(unit) or unit.startswith(name) for name in names)
        }

    def holds(self, parameter: str) -> bool:
        """Whether this rank does."""
        return self.place in self._holders[parameter]

    def tops(self, module: nn.Module) -> list[tuple[nn.Module, int]]:
        """The units of this rank's stages, each with its stage."""
        return [
            (module.get_submodule(call.path), stage)
            for call, stage in zip(self.split.calls, self.split.stages, strict=True)
            if self.rank_of[stage] == self.place
        ]

    def holds_buffer(self, name: str) -> bool:
        """Whether this rank's buffer counts."""
        return self.holder_of_buffer(name) == self.place


class Calls:
    """The stages of this rank for each kind of call: modes, structure, shapes, dtypes, and which
    parameters need gradients. A kind that is new is traced by its shapes alone."""

    def __init__(
        self,
        module: nn.Module,
        found: Probe,
        holding: Holding,
        call: ModelCall,
        sharding: Sharding | None = None,
    ) -> None:
        self._module = module
        self._sharding = sharding
        self._holding = holding
        units = {module.get_submodule(call.path) for call in found.graph.calls}
        self._opened = found.graph.opened | {  # another call may go through a list of units
            path
            for path, one in module.named_modules()
            if not units.isdisjoint({*one.modules()} - {one})
        }
        self._stage_of = {
            unit.name: stage
            for unit, stage in zip(found.graph.calls, holding_stages(found, holding), strict=True)
        }
        self._elsewhere = list(_elsewhere(module, found, holding))
        self._known: OrderedDict[Hashable, CallStages] = OrderedDict()
        self._known[_kind(call)] = self._made(holding.split, found.trace.tree, found.trace.outputs)

    def prepare(self, call: ModelCall) -> CallStages:
        """Raises SplitError for a call that needs a parameter of another stage, or leaves a stage
        without work. From here on what modules of other ranks keep of a pass cannot be read."""
        for kept, name, value in self._elsewhere:
            kept.__dict__[name] = value  # again each time: the script may have reset it
        kind = _kind(call)
        if kind in self._known:
            self._known.move_to_end(kind)
            return self._known[kind]
        made = self._known[kind] = self._traced(call)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return made

    def _traced(self, call: ModelCall) -> CallStages:
        """By the shapes alone: the other stages' parameters are elsewhere. Units keep the stage
        that they had in the call by which the model was cut; new ones go with the unit before."""
        module = self._module
        state = PassState.of(module)
        try:
            with (
                kept_random_state(),
                self._sharding.aside() if self._sharding else nullcontext(),
                hollow_parameters(module),
                Modes(call.grad, call.autocast).held(),
            ):
                state.renew()
                seen = trace(module, call.args, call.kwargs, hollow=True)
        finally:
            state.restore()
        graph = graph_of(seen, self._opened)
        stages, at = [], 0
        for unit in graph.calls:
            at = max(at, self._stage_of.get(unit.name, at))
            stages.append(at)
        split = split_of(seen, graph, stages)
        if split.parts != self._holding.split.parts:
            raise SplitError(
                f"a call of the model uses {split.parts} stages of {self._holding.split.parts}",
                "each stage must have work in every call; use fewer partitions",
            )
        for stage, needed in enumerate(split.parameters):
            used = split.loose.union(
                *(
                    unit.parameters
                    for unit, at in zip(split.calls, split.stages, strict=True)
                    if at == stage
                )
            )
            elsewhere = sorted(needed & used - self._holding.split.parameters[stage])
            if elsewhere:  # the first stage also needs those that nobody uses
                raise SplitError(
                    f"a call of the model needs {elsewhere[0]} on stage {stage}, which does not "
                    "have it",
                    "train with such a call first, or use one partition",
                )
        for name, (writer, there) in self._holding.split.buffers.items():
            readers = split.buffers.get(name, (-1, there))[1]
            if writer >= 0 and readers - there:
                raise SplitError(
                    f"a call of the model reads buffer {name} on stage {min(readers - there)}, but "
                    f"calls before changed it on stage {writer} alone",
                    "read and change it in modules of one block, or use one partition",
                )
        return self._made(split, seen.tree, seen.outputs)

    def _made(self, split: Split, tree: Any, outputs: tuple[Leaf, ...]) -> CallStages:
        """The stages of that split which this rank has."""
        mine = [
            stage for stage, rank in enumerate(self._holding.rank_of) if rank == self._holding.place
        ]
        stages = {
            stage: StageOfCall(
                stage,
                split.metas(stage),
                split.metas(stage + 1) if stage + 1 < split.parts else (),
                GhostStage(self._module, split, stage),
                self._sharding,
            )
            for stage in mine
        }
        return CallStages(stages, tree, outputs)


def _elsewhere(module: nn.Module, found: Probe, holding: Holding) -> Iterator[Kept]:
    """What the passes of other ranks' units keep, as tensors that raise where they are read: here
    they would be old values, or none. What code between units keeps is NaN where it is not right,
    for that code runs here, too: what it makes of it need not count here. Numbers stay what they
    are."""
    paths: dict[nn.Module, list[str]] = {}
    for path, one in module.named_modules(remove_duplicate=False):
        paths.setdefault(one, []).append(path)
    for one, name, value in found.kept:
        is_number = isinstance(value, (int, float))
        if not holding.runs(paths[one]):
            if is_number:
                continue
            places = " and ".join(map(str, sorted(holding.places(paths[one]))))
            refuse = partial(_refuse, f"{paths[one][0]}.{name}", places)
            yield one, name, map_tensors(partial(_unread, refuse), value)
            continue
        right = {holding.rank_of[at] for at in holding.split.kept.get((paths[one][0], name), ())}
        is_often = holding.rank_of.count(holding.place) > 1 and not holding.within(paths[one][0])
        if holding.place not in right or is_often:
            _log.warning(
                "%s.%s, which forward sets outside of the modules that are cut, cannot be right on "
                "this rank of the pipeline, and reads as %s here: let forward return it, or a "
                "module of its own keep it", paths[one][0] or type(one).__qualname__, name,
                "another number" if is_number else "NaN",
            )  # fmt: skip
            if not is_number:
                yield one, name, map_tensors(lambda tensor: hollow(tensor, math.nan), value)


def _unread(refuse: Fetch, shape: torch.Tensor) -> torch.Tensor:
    return Undelivered.of(Meta.of(shape), refuse)


def _refuse(name: str, places: str) -> torch.Tensor:
    raise StepError(
        f"{name}, which forward sets, was read on a rank where that module does not run: it does "
        f"on rank {places} of the pipeline",
        "let the model's forward return it, or add it to what it returns",
    )


def holding_stages(found: Probe, holding: Holding) -> list[int]:
    """The stage of each call of the probe's graph, of which the split has closed some."""
    calls = list(zip(holding.split.calls, holding.split.stages, strict=True))
    return [
        next(stage for outer, stage in calls if outer.first <= unit.first <= outer.last)
        for unit in found.graph.calls
    ]


def move(module: nn.Module, holding: Holding) -> None:
    """Parameters of other ranks keep their identity, shape and dtype, and one stored element: NaN,
    which who uses it by mistake notices."""
    for name, parameter in module.named_parameters():
        if not holding.holds(name):
            parameter.data = hollow(parameter, math.nan)
            parameter.grad = None


def _kind(call: ModelCall) -> Hashable:
    """What calls must have in common to have the same shapes in all stages."""
    found: list[Any] = [call.grad, call.training, call.autocast, call.grad and call.needing]
    _describe((call.args, call.kwargs), found)
    return tuple(found)


def _describe(value: Any, found: list[Any]) -> None:
    """Of a container its type and what is in it, of a tensor all but its values, of a plain value
    itself, of an object its type."""
    inner = members(value)
    if inner is not None:
        found += (type(value), len(inner))
        if isinstance(value, Mapping):
            found += value
        for member in inner:
            _describe(member, found)
    elif isinstance(value, torch.Tensor):
        found += (value.shape, value.dtype, value.device, value.requires_grad)
    else:
        found += (type(value), None if is_opaque(value) else repr(value))

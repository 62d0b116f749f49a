"""A model whose parameters are cut over replicas: each has a part of each, and the whole only while
the module that owns it is at work.

torch's `fully_shard` does it. It hangs on forward hooks, which would also see a unit of another
stage that is a stub here; so it is given modules of our own, which stand around the `forward` of
the user's. These keep their class and their hooks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from muster_modelparallel.model.hollow import hollow
from muster_modelparallel.model.nests import leaves
from muster_modelparallel.run.session import Session
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.model_arguments import half_of
from muster_modelparallel.wrap.shard.units import cut_names, shard_units
from muster_modelparallel.wrap.shard.values import cut_like, whole

Tops = Iterable[tuple[nn.Module, int]]


class Sharding:
    """What is cut of a model on this rank, and when it is whole.

    Made before the model is, collectively; `cut` does it, once this rank's part is known. With one
    stage gradients are reduced in each backward pass and parameters are gathered for each use, so
    that memory is least. In a pipeline both come once a step: parameters stay whole from their
    first use in it on, and gradients of microbatches add up before they are reduced.

    `see` is called with each gradient of an output, before backward goes into the model.
    """

    def __init__(self, session: Session, module: nn.Module, see: Callable[[object], None]) -> None:
        self._module = module
        self._config = session.config
        self._is_cut_in_stages = session.topology.pipeline > 1
        self._see = see
        self._mesh = _mesh(session, session.config.shard_degree)
        self._half = half_of(session.config)
        self._names = cut_names(
            dict(module.named_parameters()), session.config.sdp_param_persistence_threshold
        )
        self._shards: dict[str, DTensor] = {}
        self.successors: dict[torch.Tensor, DTensor] = {}  # of parameters that have been cut
        self._units: list[tuple[_Gathered, int]] = []
        self._root: Any = None

    @property
    def group(self) -> Any:
        """The ranks that have the parts of one whole."""
        return self._mesh.get_group(self._mesh.ndim - 1)

    @property
    def place(self) -> tuple[int, int]:
        """Which part this rank has, of how many."""
        return dist.get_rank(self.group), dist.get_world_size(self.group)

    @property
    def half(self) -> torch.dtype | None:
        """What is computed in, where the parts are of full precision; None where in their own."""
        return self._half

    def cut(self, held: Iterable[str], tops: Tops, loose: Set[str] = frozenset()) -> None:
        """Of the parameters of these names each replica keeps its part. Collective over the DP
        group. The modules `tops` are, with all in them, at work on one stage alone. `loose`: names
        of parameters that are used outside of the modules that own them."""
        before = dict(self._module.named_parameters())
        names = [name for name in held if name in self._names]
        cut = {before[name] for name in names}
        for one in cut:
            if self._half is not None:
                one.data = one.data.float()  # a rank's part is what the optimizer updates
        ignored = set(before.values()) - cut
        options = {"mesh": self._mesh, "mp_policy": self._policy()}
        # in a pipeline other microbatches come soon, and gathering for each costs more
        options["reshard_after_forward"] = not self._is_cut_in_stages
        most = self._config.sdp_reduce_bucket_size
        bound = cut - {before[name] for name in loose}
        for unit in shard_units(self._module, tops, bound, most):
            around = _Gathered(unit.module)
            fully_shard(around, ignored_params=ignored, **options)
            self._units.append((around, unit.stage))
        after = dict(self._module.named_parameters())
        ignored |= {after[name] for name in names if after[name] is not before[name]}
        self._root = _Root(self._module, [unit for unit, _ in self._units])
        fully_shard(
            self._root, ignored_params=ignored, **{**options, "reshard_after_forward": False}
        )
        after = dict(self._module.named_parameters())
        self._shards = {name: after[name] for name in names}
        for name, shard in self._shards.items():
            self.successors[before[name]] = shard
            before[name].data, before[name].grad = hollow(before[name]), None

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """In place of parameters that were cut it updates their parts, with their part of its
        state."""
        for group in optimizer.param_groups:
            group["params"] = [self.successors.get(one, one) for one in group["params"]]
        for before, shard in self.successors.items():
            if before in optimizer.state:
                optimizer.state[shard] = cut_like(shard, optimizer.state.pop(before))

    @property
    def names(self) -> frozenset[str]:
        """Of the parameters that are cut, on whichever rank."""
        return self._names

    def has(self, name: str) -> bool:
        """Whether the parameter is one of those that are cut."""
        return name in self._names

    def parts(self, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Parameters by name, of those that are cut this rank's part, even while they are whole."""
        return ((name, self._shards.get(name, one)) for name, one in named)

    def whole(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state dictionary of the module with whole parameters, in the type that is computed in.
        Collective over the ranks of a whole."""
        made: dict[str, Any] = whole(dict(state))
        if self._half is not None:
            for name, value in state.items():
                if isinstance(value, DTensor):
                    made[name] = made[name].to(self._half)
        return made

    def loadable(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Of whole values this rank's parts, for the module to load."""
        first = {id(one): name for name, one in self._module.named_parameters()}
        every = self._module.named_parameters(remove_duplicate=False)
        shards = {name: self._shards.get(first[id(one)]) for name, one in every}
        return {
            name: value if shards.get(name) is None else cut_like(shards[name], value)
            for name, value in state.items()
        }

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A forward pass of the module, or of a stage of it."""
        if self._root is None:
            return function(*args, **kwargs)
        with self._to_its_end():
            output = self._root(function, *args, **kwargs)
        for leaf in leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(self._see)
        return output

    def begin_backward(self, stage: int, is_last: bool) -> None:
        """Before a backward pass of a stage in a pipeline. is_last: reduces gradients, and then
        parameters are cut again."""
        for unit, of in [*self._units, (self._root, stage)]:
            if of == stage:
                unit.set_requires_gradient_sync(is_last, recurse=False)
                unit.set_reshard_after_backward(is_last, recurse=False)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around a backward pass."""
        with self._to_its_end():
            yield

    def rest(self) -> None:
        """Whatever is whole is cut again."""
        for unit, _ in self._units:
            unit.reshard()
        if self._root is not None:
            self._root.reshard()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, the parameters have their whole shapes and no values, and nothing is gathered."""
        self.rest()
        made = {
            id(one): nn.Parameter(self._hollow(one), one.requires_grad)
            for one in self._shards.values()
        }
        places = [
            (module, name, one)
            for module in self._module.modules()
            for name, one in module._parameters.items()
            if id(one) in made
        ]
        try:
            for module, name, one in places:
                module._parameters[name] = made[id(one)]
            for unit, _ in self._units:
                unit.is_aside = True
            yield
        finally:
            for unit, _ in self._units:
                unit.is_aside = False
            for module, name, one in places:
                module._parameters[name] = one

    @contextmanager
    def _to_its_end(self) -> Iterator[None]:
        """A pass that is broken off leaves nothing behind."""
        try:
            yield
        except BaseException:
            self._root.reset_iter_state()
            raise

    def _hollow(self, shard: DTensor) -> torch.Tensor:
        one = torch.zeros((), dtype=self._half or shard.dtype, device=shard.device)
        return one.expand(shard.shape)

    def _policy(self) -> MixedPrecisionPolicy:
        """Inputs come as they do without sharding. Half precision is added up in full."""
        if self._half is None:
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        return MixedPrecisionPolicy(self._half, torch.float32, cast_forward_inputs=False)


class _Gathered(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Stands around the forward of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.is_aside = False
        real = self._real = module.forward

        @functools.wraps(real)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs) if self.is_aside else self(*args, **kwargs)

        module.__dict__["forward"] = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._real(*args, **kwargs)


class _Root(nn.Module):  # type: ignore[misc]
    """Stands around whole passes. Owns what no unit has."""

    def __init__(self, module: nn.Module, units: Iterable[nn.Module]) -> None:
        super().__init__()
        self.module = module
        self.units = nn.ModuleList(units)

    def forward(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


def _mesh(session: Session, degree: int) -> DeviceMesh:
    """Neighbours among the ranks of a stage have the parts of one whole; with fewer than there are
    replicas, wholes are averaged in a second direction. Every rank takes part in the making of all
    groups, in one order."""
    rank = session.mesh.rank
    directions: dict[str, Any] = {}
    mine: tuple[int, ...] = ()
    for ranks in session.topology.all_groups(GroupKind.DP):
        across = [ranks[at::degree] for at in range(degree)]
        along = [ranks[at : at + degree] for at in range(0, len(ranks), degree)]
        for direction, groups in (("replicate", across), ("shard", along)):
            for members in groups if len(groups[0]) > 1 else ():
                group = dist.new_group(list(members))
                if rank in members:
                    directions[direction], mine = group, ranks
    shape = (-1, degree) if len(directions) > 1 else (-1,)
    return DeviceMesh.from_group(
        list(directions.values()) if len(directions) > 1 else directions["shard"],
        session.mesh.device.type,
        mesh=torch.tensor(mine).view(shape),
        mesh_dim_names=tuple(directions),
    )

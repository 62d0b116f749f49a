"""A model whose parameters are cut over replicas: each has a part of each, and the whole only while
the module that owns it is at work.

torch's `fully_shard` does it. It hangs on forward hooks, which would also see a unit of another
stage that is a stub here; so it is given modules of our own, which stand around the `forward` of
the user's (gathered.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from muster_modelparallel.errors import add_note
from muster_modelparallel.model.nests import leaves
from muster_modelparallel.run.session import Session
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.creation import make_parameters
from muster_modelparallel.wrap.model_arguments import half_of
from muster_modelparallel.wrap.shard import gathered
from muster_modelparallel.wrap.shard.gathered import Gathered, Root
from muster_modelparallel.wrap.shard.units import cut_names, shard_units
from muster_modelparallel.wrap.shard.values import cut_like, whole

_log = logging.getLogger("muster_modelparallel")
Tops = Iterable[tuple[nn.Module, int]]
_OUTSIDE = (
    "a parameter that is cut over replicas was used outside of the module that owns it: call that "
    "module, or raise sdp_param_persistence_threshold above its number of elements"
)


class Sharding:
    """What is cut of a model on this rank, and when it is whole.

    Made before the model is, collectively; `cut` does it, once this rank's part is known. With one
    stage gradients are reduced in each backward pass and parameters are gathered for each use, so
    that memory is least. In a pipeline both come once a step: parameters stay whole from their
    first use in it on, and gradients add up until `end_step`.

    `see` is called with each gradient of an output, before backward goes into the model.
    """

    def __init__(self, session: Session, module: nn.Module, see: Callable[[object], None]) -> None:
        self._module = module
        self._session = session
        self._is_cut_in_stages = session.topology.pipeline > 1
        self._see = see
        self._mesh = _mesh(session, session.config.shard_degree)
        self._half = half_of(session.config)
        threshold = session.config.sdp_param_persistence_threshold
        self._names = cut_names(
            dict(module.named_parameters()),
            threshold,
            session.config.shard_degree,
            torch.Tensor.is_contiguous if session.delayed is None else session.delayed.is_dense,
        )
        if not self._names and session.mesh.rank == 0:
            _log.warning(
                "no parameter of the model has sdp_param_persistence_threshold = %d elements: "
                "nothing is cut over replicas", threshold,
            )  # fmt: skip
        self.successors: dict[torch.Tensor, DTensor] = {}  # of parameters that have been cut
        self._shards: dict[str, DTensor] = {}  # by all names
        self._places: dict[str, tuple[nn.Module, str]] = {}  # by all names: module, name in it
        self._units: list[Gathered] = []
        self._root: Any = None
        self._needing: list[bool] = []

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

    @property
    def names(self) -> frozenset[str]:
        """Of the parameters that are cut, on whichever rank."""
        return self._names

    def has(self, name: str) -> bool:
        """Whether the parameter is one of those that are cut."""
        return name in self._names

    def cut(self, held: Iterable[str], tops: Tops, loose: Set[str] = frozenset()) -> None:
        """Of the parameters of these names each replica keeps its part. Collective over the DP
        group. The modules `tops` are, with all in them, at work on one stage alone. `loose`: names
        of parameters that are used outside of the modules that own them."""
        before = dict(self._module.named_parameters())
        names = [name for name in held if name in self._names]
        cut = {before[name] for name in names}
        self._places = {
            name: (self._module.get_submodule(path), own)
            for name, one in self._module.named_parameters(remove_duplicate=False)
            for path, _, own in [name.rpartition(".")]
            if one in cut
        }
        bound = {before[name] for name in names if name not in loose}
        most = self._session.config.sdp_reduce_bucket_size
        for module, stage in shard_units(self._module, tops, bound, most):
            self._units.append(Gathered(module, stage))
            mine = {one for one in module.parameters() if one in bound}
            # in a pipeline other microbatches come soon, and gathering for each costs more
            self._shard(self._units[-1], mine, not self._is_cut_in_stages)
        left = cut - self.successors.keys()
        self._root = Root(self._module, self._units)
        self._shard(self._root, left, reshard=False)
        self._shards = {name: getattr(*place) for name, place in self._places.items()}
        with torch.no_grad():  # or a unit that is called by itself were a root of its own for ever
            self._root(lambda: None)
        self.rest()

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """In place of parameters that were cut it updates their parts, with their part of its
        state."""
        for group in optimizer.param_groups:
            group["params"] = [self.successors.get(one, one) for one in group["params"]]
        for before, shard in self.successors.items():
            if before in optimizer.state:
                optimizer.state[shard] = cut_like(shard, optimizer.state.pop(before))

    def parts(self, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Parameters by name, of those that are cut this rank's part, even while they are whole."""
        return ((name, self._shards.get(name, one)) for name, one in named)

    def whole(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state dictionary of the module with whole parameters, in the type that is computed in.
        Collective over the ranks of a whole."""
        made: dict[str, Any] = whole(self.computed(state))
        return made

    def computed(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state dictionary of the module with this rank's parts in that type."""
        half = self._half
        return {
            name: value.to(half) if half is not None and isinstance(value, DTensor) else value
            for name, value in state.items()
        }

    def loadable(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Of whole values this rank's parts, for the module to load."""
        return {
            name: value if (shard := self._shards.get(name)) is None else cut_like(shard, value)
            for name, value in state.items()
        }

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A forward pass of the module, or of a stage of it."""
        if self._root is None:
            return function(*args, **kwargs)
        with ExitStack() as stack:
            stack.enter_context(self.to_its_end())
            if torch.is_inference_mode_enabled():  # its tensors could never need a gradient again
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.no_grad())
            output = self._root(partial(function, *args, **kwargs))
        for leaf in leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(self._see)
        return output

    def begin_step(self) -> None:
        """Before a step or a pass by itself."""
        self.rest()
        needing = [one.requires_grad for one in self._shards.values()]
        if needing != self._needing and self._root is not None:
            self._needing = needing
            gathered.refresh_dtypes(self._modules())

    def begin_backward(self) -> None:
        """Before a backward pass of a stage in a pipeline: its gradients wait for `end_step`."""
        for module in self._modules():
            if module is self._root or module.has_run:
                self._reduces(module, False)

    @contextmanager
    def to_its_end(self) -> Iterator[None]:
        """Around a pass: one that is broken off leaves nothing behind."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, RuntimeError) and "torch.Tensor and DTensor" in str(error):
                add_note(error, _OUTSIDE)
            gathered.forget_gradients(self._modules())
            self._root.reset_iter_state()
            raise

    def end_step(self, has_backward: bool) -> None:
        """Gradients that wait are reduced; whatever is whole is cut again. has_backward: whether
        any replica has gradients; alike on all."""
        if has_backward and self._is_cut_in_stages and self._root is not None:
            self._settle()
            for module in self._modules():
                self._reduces(module, True)
            # the end of a backward pass is where gradients are reduced, also those of others
            token = torch.ones((), requires_grad=True)
            self._root(lambda: token * 1).backward()
        self.rest()

    def rest(self) -> None:
        """Whatever is whole is cut again."""
        for module in self._modules():
            module.reshard()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, the parameters have their whole shapes and no values, and nothing is gathered."""
        made = {
            one: nn.Parameter(self._hollow(one), one.requires_grad) for one in self._shards.values()
        }
        before = {name: getattr(*place) for name, place in self._places.items()}
        try:
            for name, one in self._shards.items():
                gathered.set_parameter(*self._places[name], made[one])
            for unit in self._units:
                unit.is_aside = True
            yield
        finally:
            for unit in self._units:
                unit.is_aside = False
            for name, one in before.items():
                gathered.set_parameter(*self._places[name], one)

    def _shard(self, around: nn.Module, mine: set[torch.Tensor], reshard: bool) -> None:
        """Cuts these parameters, which are in a module and no other one."""
        wide = torch.float32
        before = {place: one for place in self._places.values() if (one := getattr(*place)) in mine}
        in_order = [one for one in self._module.parameters() if one in mine]
        make_parameters(self._session, in_order)
        for one in in_order:
            if self._half is not None:
                one.data = one.data.to(wide)  # a rank's part is what the optimizer updates
        policy = MixedPrecisionPolicy(
            self._half, None if self._half is None else wide, cast_forward_inputs=False
        )
        fully_shard(
            around, mesh=self._mesh, mp_policy=policy, reshard_after_forward=reshard,
            ignored_params=set(self._module.parameters()) - mine,
        )  # fmt: skip
        for place, one in before.items():
            shard = self.successors[one] = getattr(*place)
            shard.__dict__.update(one.__dict__)
            one.data, one.grad = one.data.new_empty(0), None  # whoever uses it is told

    def _modules(self) -> list[Any]:
        """In one order on all replicas."""
        return [] if self._root is None else [*self._units, self._root]

    def _reduces(self, module: Any, is_last: bool) -> None:
        module.set_requires_gradient_sync(is_last, recurse=False)
        module.set_reshard_after_backward(is_last, recurse=False)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _settle(self) -> None:
        """What any replica has a gradient of, all have: they reduce the same tensors."""
        found = gathered.unreduced(self._modules())
        if not found:
            return
        anywhere = torch.tensor([float(has) for _, has in found], device=found[0][0].device)
        for at in range(self._mesh.ndim):
            dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=self._mesh.get_group(at))
        for (one, has), needed in zip(found, anywhere.tolist(), strict=True):
            if needed and not has:
                one.grad = torch.zeros_like(one)

    def _hollow(self, shard: DTensor) -> torch.Tensor:
        one = torch.zeros((), dtype=self._half or shard.dtype, device=shard.device)
        return one.expand(shard.shape)


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

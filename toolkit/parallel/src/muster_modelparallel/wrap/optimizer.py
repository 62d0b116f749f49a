"""The wrapped optimizer: waits for averaged gradients, scales losses, saves local or full state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from muster_modelparallel.errors import StepError
from muster_modelparallel.run.objects import CommGroup, allgather
from muster_modelparallel.run.session import current
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.creation import recording
from muster_modelparallel.wrap.cut.clipping import clip, total_norm
from muster_modelparallel.wrap.cut.stages import Stages
from muster_modelparallel.wrap.layerwise import FusedLAMB
from muster_modelparallel.wrap.loss_scale import make_loss_scale
from muster_modelparallel.wrap.masters import HALF, MasterWeights
from muster_modelparallel.wrap.model import PARTIAL
from muster_modelparallel.wrap.model_arguments import half_of
from muster_modelparallel.wrap.optimizer_state import OptimizerState, merged_states
from muster_modelparallel.wrap.shard.values import is_cut, part
from muster_modelparallel.wrap.shares import OptimizerShares

if TYPE_CHECKING:
    from muster_modelparallel.wrap.shard.sharding import Sharding

_SCALE = "loss_scale"  # in a state: where a dynamic loss scale was
# Names of the library's optimizer under sharded data parallelism, and what serves for them.
_ELSEWHERE = {
    "fp32_partitioned_groups_flat": "the float32 parts of parameters, by group: use "
    "optimizer.param_groups, whose DTensors are the parts (`to_local()`)",
    "ds_param_shard_group": "the ranks that have the parts of one whole: use "
    "parameter.device_mesh of a DTensor in optimizer.param_groups, the last of its dimensions",
}


class DistributedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped here
    """A torch optimizer for a DistributedModel; it may be made before that model or after.

    A torch.optim.Optimizer to schedulers and others: groups, state and defaults are those of the
    `optimizer` that it wraps, and whatever is not here is looked up there.

    static_loss_scale, dynamic_loss_scale, dynamic_loss_args (wrap/loss_scale.py) only act on
    parameters of half precision: `model.backward` multiplies by the scale, `step` divides by it and
    does nothing where any rank's gradients overflow. Raises NotStartedError before `init`,
    SettingsError for arguments that cannot be used. Source: the public documentation.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        **dynamic_loss_args: Any,
    ) -> None:
        # not super's: it would begin groups of its own
        self.optimizer = optimizer
        self.overflow = False
        self.is_scaled_alike = False  # by a scaler at work, whose ranks skip the same steps
        self._session = current()
        self._scale = make_loss_scale(static_loss_scale, dynamic_loss_scale, dynamic_loss_args)
        self._is_unscaled = False
        self._shares: OptimizerShares | None = None
        topology, mesh, config = (
            self._session.topology, self._session.mesh, self._session.config,
        )  # fmt: skip
        self._masters = MasterWeights() if half_of(config) else None
        if config.shard_optimizer_state and topology.rdp_size > 1:
            self._shares = OptimizerShares(mesh.group(GroupKind.RDP))
        self._global_grad_norm: float | None = None  # by this name scripts read it
        self._states = OptimizerState(optimizer, self._session, self._masters, self._shares)
        if self._sharding is not None:
            self.cut(self._sharding)
        self._session.optimizer = self
        self._session.optimizers.append(self)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # while it is copied there is none yet
            raise AttributeError(name)
        if name in _ELSEWHERE:  # an error that `hasattr` takes for no
            raise AttributeError(f"there is no optimizer.{name}, {_ELSEWHERE[name]}")
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's."""
        return self.optimizer.param_groups  # type: ignore[no-any-return]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:
        """The wrapped optimizer's."""
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """The wrapped optimizer's."""
        return self.optimizer.defaults  # type: ignore[no-any-return]

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    @property
    def is_sharded(self) -> bool:
        """Whether each replica keeps the state of its own share, or of its part of each
        parameter."""
        return self._shares is not None or self._sharding is not None

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Every GradScaler asks for it in its `step`, on all ranks. The wrapped optimizer may
        unscale by itself, but a scaler would hand the scale to the wrapper. Raises StepError where
        ranks have different parameters and the scaler knows of one rank."""
        if self._stages is not None and not self.is_scaled_alike:
            raise StepError(
                f"a GradScaler of torch looks at the gradients of one rank, but the model lies on "
                f"{self._session.topology.pipeline}: some would skip a step that others take",
                "use smp.amp.GradScaler",
            )
        return False

    @property
    def loss_scale(self) -> float:
        """What `model.backward` multiplies gradients by; 1 without parameters of half precision."""
        return self._scale.value if self._is_scaling() else 1.0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters; returns the closure's loss, where one is given.

        With a loss scale, gradients that are not finite on any rank make it do nothing on all
        ranks, set `overflow`, and lower a dynamic scale. Raises StepError in a step function, which
        runs it for each microbatch, where a parameter of another rank has got a gradient, with
        several ranks for a parameter that trains and is not in the model, and for a closure with
        several partitions, a loss scale, half precision or a sharded state.
        """
        if self._session.microbatch is not None:
            raise StepError(
                "optimizer.step() was called in a step function",
                "call it after the step function, which runs once for each microbatch",
            )
        self._finish_gradients()
        if self._stages is not None:
            self._stages.refuse_strangers("the script")
        if self._sharding is not None:
            self._sharding.rest()
        self._refuse_foreign()
        for what, is_there in (
            ("shard_optimizer_state", self._shares is not None),
            ("half precision", self._masters is not None),
            ("sharded parameters", self._sharding is not None),
            ("a loss scale", self._is_scaling()),
            ("several partitions", self._stages is not None),
        ):
            if closure is not None and is_there:
                raise StepError(f"optimizer.step() has a closure and {what}", "drop one of them")
        if closure is not None:
            return self.optimizer.step(closure)
        if not self._is_scaling() and self._masters is None:
            self._clip_cut()
            return self._update()
        self._unscale()
        self._is_unscaled = False
        if not self.overflow:
            self._clip_cut()
            self._update()
        self._scale = self._scale.after(self.overflow)
        return None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. Raises StepError in a step function after its first microbatch, whose
        gradients would be lost."""
        microbatch = self._session.microbatch
        if microbatch is not None and microbatch.index > 0:
            raise StepError(
                "optimizer.zero_grad() was called in a step function, so that only the last "
                "microbatch would count",
                "call it before the step function",
            )
        self.optimizer.zero_grad(set_to_none)
        if self._stages is not None:
            self._stages.zero_grad(self.parameters(), set_to_none)
        self._is_unscaled = False
        if self._masters is not None:
            self._masters.forget_gradients()

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scales gradients down so that their norm over all parameters is at most max_norm, and
        says what it was; -1.0 where a loss scale is used and they overflow."""
        self._finish_gradients()
        if self._is_scaling() or self._masters is not None:
            self._unscale()
            if self.overflow:
                return -1.0
        given = self.parameters()
        return float(clip(given, self._session, self.model, max_norm, norm_type, self._gradient))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's."""
        self.optimizer.add_param_group(param_group)
        if self._sharding is not None:
            self.cut(self._sharding)

    def state_dict(self) -> dict[str, Any]:
        """The state of the whole model, as the wrapped optimizer gives and takes it. With several
        partitions it is collective over the pipeline, with a sharded state over the replicas; all
        of them get it."""
        found = self._states.whole()
        if self._stages is not None and self._stages.is_partitioned:
            found = merged_states(allgather(found, CommGroup.PP_GROUP))
        return self._with_scale(found)

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """The state of what this rank holds, with `_smp_is_partial`: True. gather_if_shard: where
        the state is sharded, that of all replicas together, which call it together."""
        own = self._states.whole() if gather_if_shard else self._states.local()
        return self._with_scale({**own, PARTIAL: True})

    def held_state(self) -> dict[str, Any]:
        """As `local_state_dict`, of parameters that are cut over replicas parts that know of their
        whole. Not collective."""
        return self._with_scale(self._states.held())

    def parameters(self) -> Iterator[Any]:
        """All, in the order of their numbers."""
        return self._states.parameters()

    def updated(self, parameters: Iterable[Any]) -> list[Any]:
        """Of these, which have a state, those that this rank updates."""
        return self._states.updated(parameters)

    def load_state_dict(self, state_dict: Mapping[str, Any], masters_only: bool = False) -> None:
        """Takes a full or a partial one; of a sharded state each replica its share. A share that
        was saved without being gathered is for the same replica of as many: all replicas load
        theirs together. Raises as torch's, SettingsError for another number of replicas.
        masters_only: of it the master weights and the loss scale alone."""
        given = {name: value for name, value in state_dict.items() if name != PARTIAL}
        saved = given.pop(_SCALE, None)
        with recording(self._session):
            self._states.load(given, masters_only)
        if saved is not None and self._scale.rules is not None:
            self._scale = self._scale.loaded(saved)

    def cut(self, sharding: Sharding) -> None:
        """Called when parameters of the model have been cut over replicas."""
        self._states.cut(sharding)

    def leave(self, parameters: Iterable[Any]) -> None:
        """Called when these have become other stages', with what is known of them."""
        for one in parameters:
            self.optimizer.state.pop(one, None)
            if self._masters is not None:
                self._masters.forget(one)

    @property
    def model(self) -> Any:
        """The wrapped model of this process, None before it is wrapped."""
        return self._session.model

    @property
    def _stages(self) -> Stages | None:
        return getattr(self.model, "stages", None)

    @property
    def _sharding(self) -> Sharding | None:
        return self._states.sharding

    def _clip_cut(self) -> None:
        """Key sdp_gradient_clipping."""
        limit = self._session.config.sdp_gradient_clipping
        if self._session.config.sharded_data_parallel_degree > 1 and limit > 0:
            found = clip(self.parameters(), self._session, self.model, limit, 2, self._gradient)
            self._global_grad_norm = float(found)

    def _with_scale(self, found: dict[str, Any]) -> dict[str, Any]:
        if self._scale.rules is not None:
            found[_SCALE] = self._scale.saved()
        return found

    def _gradient(self, parameter: Any) -> Any:
        """What the parameter's update is made of."""
        return parameter.grad if self._masters is None else self._masters.gradient(parameter)

    def _update(self) -> Any:
        """The wrapped optimizer's step, of this replica's share where the state is sharded."""
        given = [one for one in self.parameters() if one.grad is not None]
        with ExitStack() as stack:
            if isinstance(self.optimizer, FusedLAMB) and given:  # it clips by the norm of all
                pairs = [(one, self._gradient(one)) for one in given]
                self.optimizer.whole_norm = total_norm(pairs, self._session, self.model)
                stack.callback(setattr, self.optimizer, "whole_norm", None)
            mine = given
            if self._shares is not None:
                for one in self._shares.divide(given):
                    self.optimizer.state.pop(one, None)
                stack.enter_context(self._shares.updating(given))
                mine = [one for one in given if self._shares.has(one)]
            if self._masters is not None:
                stack.enter_context(self._masters.in_place(mine))
            if self._sharding is not None:
                stack.enter_context(_one_kind_each(self.optimizer))
            return self.optimizer.step()

    def _finish_gradients(self) -> None:
        finish = getattr(self._session.model, "finish_gradients", None)
        if finish is not None:
            finish()

    def _refuse_foreign(self) -> None:
        """Nobody sums or averages gradients of what is not in the model: each rank would train it
        by itself, or one alone."""
        if self._session.mesh.size == 1 or self.model is None:
            return
        ours = {id(one) for one in self.model.module.parameters()}
        for number, one in enumerate(self.parameters()):
            if one.requires_grad and id(one) not in ours:
                raise StepError(
                    f"optimizer.step() is to train parameter {number} of its groups, of shape "
                    f"{tuple(one.shape)}, which is not in the wrapped model: ranks would part ways",
                    "put its module into the model before smp.DistributedModel wraps it",
                )

    def _is_scaling(self) -> bool:
        """Whether a scale was asked for and there is anything of half precision."""
        if self._scale.rules is None and self._scale.value == 1:
            return False
        if self._sharding is not None and self._sharding.half is not None:
            return True
        return any(parameter.dtype in HALF for parameter in self.parameters())

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _unscale(self) -> None:
        """Divides gradients by the loss scale, once; all ranks agree on `overflow`. Those of half
        precision are float32 from then on, where there are master weights."""
        if self._is_unscaled:
            return
        self._is_unscaled = True
        factor = 1 / self.loss_scale
        if self._is_scaling():
            self.overflow = self._overflows()
        if self._masters is not None:
            self._masters.take_gradients(self.parameters(), factor)
            return
        for parameter in self.parameters():
            if parameter.grad is not None:
                _values(part(parameter.grad)).mul_(factor)

    def _overflows(self) -> bool:
        """Whether any gradient on any rank is not finite."""
        found = torch.zeros(1, device=self._session.mesh.device)
        for parameter in self.parameters():
            if parameter.grad is not None:
                found += (~torch.isfinite(_values(part(parameter.grad))).all()).to(found)
        if self._session.mesh.size > 1:
            world = self._session.mesh.group(GroupKind.WORLD)
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=world)
        return bool(found.item())


@contextmanager
def _one_kind_each(optimizer: Any) -> Iterator[None]:
    """Inside, no group has parameters that are cut beside others: torch's loops over several
    tensors take no such lists."""
    before, made, parts = optimizer.param_groups, [], []
    for group in before:
        kinds = [[one for one in group["params"] if is_cut(one) == kind] for kind in (True, False)]
        some = [{**group, "params": kind} for kind in kinds if kind] or [group]
        made += some
        parts.append(some[0])
    optimizer.param_groups = made
    try:
        yield
    finally:
        optimizer.param_groups = before
        for group, one in zip(before, parts, strict=True):  # some keep counts in them
            group.update({name: value for name, value in one.items() if name != "params"})


def _values(gradient: Any) -> Any:
    return gradient._values() if gradient.is_sparse else gradient

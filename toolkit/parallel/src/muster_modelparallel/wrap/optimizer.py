"""The wrapped optimizer: waits for averaged gradients, scales losses, saves local or full state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist

from muster_modelparallel.errors import SettingsError, StepError
from muster_modelparallel.run.objects import CommGroup, allgather
from muster_modelparallel.run.session import current
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.cut.clipping import clip, total_norm
from muster_modelparallel.wrap.cut.stages import Stages
from muster_modelparallel.wrap.layerwise import FusedLAMB
from muster_modelparallel.wrap.loss_scale import make_loss_scale
from muster_modelparallel.wrap.masters import HALF, MasterWeights
from muster_modelparallel.wrap.model import PARTIAL
from muster_modelparallel.wrap.model_arguments import half_of
from muster_modelparallel.wrap.shares import OptimizerShares

_REPLICAS = CommGroup.RDP_GROUP
_MASTERS = "master_weights"  # in a state: float32 values of parameters of half precision
_SHARED_BY = "shared_by"  # in a state: of how many replicas it is one's share
_SCALE = "loss_scale"  # in a state: where a dynamic loss scale was


class DistributedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped here
    """A torch optimizer for a DistributedModel; it may be made before that model or after.

    A torch.optim.Optimizer to schedulers and others: groups, state and defaults are those of the
    `optimizer` that it wraps, and whatever is not here is looked up there.

    static_loss_scale, dynamic_loss_scale, dynamic_loss_args (wrap/loss_scale.py) only act on
    parameters of half precision: `model.backward` multiplies by the scale, `step` divides by it and
    does nothing where any rank's gradients overflow. Raises NotStartedError before `init`,
    SettingsError for arguments that cannot be used. Source: the public documentation.
    """

    # the wrapped one may unscale by itself, but a GradScaler would hand the scale to the wrapper
    _step_supports_amp_scaling = False

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
        self._session.optimizer = self

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # while it is copied there is none yet
            raise AttributeError(name)
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
        """Whether each replica keeps the state of its own share of the parameters."""
        return self._shares is not None

    @property
    def loss_scale(self) -> float:
        """What `model.backward` multiplies gradients by; 1 without parameters of half precision."""
        return self._scale.value if self._is_scaling() else 1.0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters; returns the closure's loss, where one is given.

        With a loss scale, gradients that are not finite on any rank make it do nothing on all
        ranks, set `overflow`, and lower a dynamic scale. Raises StepError in a step function, which
        runs it for each microbatch, and for a closure with a loss scale, half precision or a
        sharded state.
        """
        if self._session.microbatch is not None:
            raise StepError(
                "optimizer.step() was called in a step function",
                "call it after the step function, which runs once for each microbatch",
            )
        self._finish_gradients()
        for what, is_there in (
            ("shard_optimizer_state", self._shares is not None),
            ("half precision", self._masters is not None),
            ("a loss scale", self._is_scaling()),
        ):
            if closure is not None and is_there:
                raise StepError(f"optimizer.step() has a closure and {what}", "drop one of them")
        if closure is not None:
            return self.optimizer.step(closure)
        if not self._is_scaling() and self._masters is None:
            return self._update()
        self._unscale()
        self._is_unscaled = False
        if not self.overflow:
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
        given = self._parameters()
        return float(clip(given, self._session, self._stages, max_norm, norm_type, self._gradient))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The state of the whole model, as the wrapped optimizer gives and takes it. With several
        partitions it is collective over the pipeline, with a sharded state over the replicas; all
        of them get it."""
        found = self._of_all_replicas()
        if self._stages is not None and self._stages.is_partitioned:
            found = merged_states(allgather(found, CommGroup.PP_GROUP))
        return self._with_scale(found)

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """The state of what this rank holds, with `_smp_is_partial`: True. gather_if_shard: where
        the state is sharded, with the shares of all replicas, which call it together."""
        own = self._of_all_replicas() if gather_if_shard else self._own_state()
        if self._shares is not None and not gather_if_shard:
            own[_SHARED_BY] = self._shares.count
        return self._with_scale({**own, PARTIAL: True})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a full or a partial one; of a sharded state each replica its share. A share that
        was saved without being gathered is for the same replica of as many: all replicas load
        theirs together. Raises as torch's, SettingsError for another number of replicas."""
        given = {name: value for name, value in state_dict.items() if name != PARTIAL}
        saved, masters = given.pop(_SCALE, None), given.pop(_MASTERS, {})
        self._adopt(given.get("state", {}), given.pop(_SHARED_BY, 0))
        if self._stages is not None and self._stages.is_partitioned:
            given["state"], masters = self._held(given["state"]), self._held(masters)
        if self._shares is not None:
            given["state"], masters = self._shared(given["state"]), self._shared(masters)
        if self._masters is None:
            self.optimizer.load_state_dict(given)
        else:
            parameters = list(self._parameters())
            self._masters.load(parameters, masters)
            of = [one for number, one in enumerate(parameters) if number in given["state"]]
            with self._masters.in_place(of):  # or it would round the state
                self.optimizer.load_state_dict(given)
        if saved is not None and self._scale.rules is not None:
            self._scale = self._scale.loaded(saved)

    @property
    def _stages(self) -> Stages | None:
        return getattr(self._session.model, "stages", None)

    def _held(self, state: Mapping[Any, Any]) -> dict[Any, Any]:
        """Of a state by numbers of parameters, what this rank holds."""
        stages = self._stages
        assert stages is not None
        names = {id(one): name for name, one in stages.module.named_parameters()}
        of = dict(enumerate(self._parameters()))
        return {
            number: value
            for number, value in state.items()
            if number not in of or stages.holds(names[id(of[number])])
        }

    def _adopt(self, state: Mapping[Any, Any], shared_by: int) -> None:
        """Divides the parameters as they were where the state is one replica's share."""
        count = 0 if self._shares is None else self._shares.count
        if not shared_by:
            return
        if shared_by != count or self._shares is None:
            now = f"has {count}" if count else "does not shard it"
            raise SettingsError(
                f"the optimizer's state is the share of one of {shared_by} replicas, and this job "
                f"{now}",
                "save it with local_state_dict(gather_if_shard=True)",
            )
        of = dict(enumerate(self._parameters()))
        shares = allgather(sorted(number for number in state if number in of), _REPLICAS)
        self._shares.adopt([[of[number] for number in share] for share in shares])

    def _shared(self, state: Mapping[Any, Any]) -> dict[Any, Any]:
        """Of a state by numbers of parameters, what is this replica's."""
        assert self._shares is not None
        of = dict(enumerate(self._parameters()))
        self._shares.divide(
            one for number, one in of.items() if one.requires_grad or number in state
        )
        return {
            number: value
            for number, value in state.items()
            if number not in of or self._shares.has(of[number])
        }

    def _of_all_replicas(self) -> dict[str, Any]:
        """The state of what this rank holds. Collective over the replicas where it is sharded."""
        found = self._own_state()
        return found if self._shares is None else merged_states(allgather(found, _REPLICAS))

    def _own_state(self) -> dict[str, Any]:
        """Of what this rank updates."""
        found = dict(self.optimizer.state_dict())
        if self._masters is not None:
            found[_MASTERS] = self._masters.saved(self._parameters())
        return found

    def _with_scale(self, found: dict[str, Any]) -> dict[str, Any]:
        if self._scale.rules is not None:
            found[_SCALE] = self._scale.saved()
        return found

    def _gradient(self, parameter: Any) -> Any:
        """What the parameter's update is made of."""
        return parameter.grad if self._masters is None else self._masters.gradient(parameter)

    def _update(self) -> Any:
        """The wrapped optimizer's step, of this replica's share where the state is sharded."""
        given = [one for one in self._parameters() if one.grad is not None]
        if isinstance(self.optimizer, FusedLAMB) and given:  # it clips by the norm of all
            gradients = [self._gradient(one) for one in given]
            pairs = zip(given, gradients, strict=True)
            self.optimizer.whole_norm = total_norm(pairs, self._session, self._stages)
        with ExitStack() as stack:
            mine = given
            if self._shares is not None:
                for one in self._shares.divide(given):
                    self.optimizer.state.pop(one, None)
                stack.enter_context(self._shares.updating(given))
                mine = [one for one in given if self._shares.has(one)]
            if self._masters is not None:
                stack.enter_context(self._masters.in_place(mine))
            return self.optimizer.step()

    def _finish_gradients(self) -> None:
        finish = getattr(self._session.model, "finish_gradients", None)
        if finish is not None:
            finish()

    def _parameters(self) -> Iterator[Any]:
        for group in self.param_groups:
            yield from group["params"]

    def _is_scaling(self) -> bool:
        """Whether a scale was asked for and there is anything of half precision."""
        if self._scale.rules is None and self._scale.value == 1:
            return False
        return any(parameter.dtype in HALF for parameter in self._parameters())

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
            self._masters.take_gradients(self._parameters(), factor)
            return
        for parameter in self._parameters():
            if parameter.grad is not None:
                _values(parameter.grad).mul_(factor)

    def _overflows(self) -> bool:
        """Whether any gradient on any rank is not finite."""
        found = torch.zeros(1, device=self._session.mesh.device)
        for parameter in self._parameters():
            if parameter.grad is not None:
                found += (~torch.isfinite(_values(parameter.grad)).all()).to(found)
        if self._session.mesh.size > 1:
            world = self._session.mesh.group(GroupKind.WORLD)
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=world)
        return bool(found.item())


def _values(gradient: Any) -> Any:
    return gradient._values() if gradient.is_sparse else gradient


def merged_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of an optimizer from those of the ranks of a pipeline."""
    made = dict(states[0])
    for name in ("state", _MASTERS):
        if name in made:
            made[name] = {
                number: value for state in reversed(states) for number, value in state[name].items()
            }
    return made

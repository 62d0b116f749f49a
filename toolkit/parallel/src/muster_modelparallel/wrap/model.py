"""The wrapped model: replicas that agree, gradients averaged over microbatches and replicas."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from muster_modelparallel.errors import StepError
from muster_modelparallel.run.outputs import StepOutput
from muster_modelparallel.run.session import current
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.creation import check_values, make_parameters, recording
from muster_modelparallel.wrap.cut.clipping import clip
from muster_modelparallel.wrap.cut.stages import Stages, load_local
from muster_modelparallel.wrap.model_arguments import (
    check,
    check_numbers,
    half_of,
    listed,
    make_group,
    scaled,
)
from muster_modelparallel.wrap.reduce import GradientReducer, ReduceOptions
from muster_modelparallel.wrap.replicas import broadcast_tensors, require_same_model
from muster_modelparallel.wrap.watch import BackwardWatch
from muster_modelparallel.wrap.whole_layers import WholeLayers

if TYPE_CHECKING:
    from muster_modelparallel.wrap.shard.sharding import Sharding

PARTIAL = "_smp_is_partial"  # marks the state of one partition
_PREFIX = "module."
_NO_AVERAGE = "gradients came from loss.backward() or autograd, so they are not averaged"
_USE_OURS = "call model.backward(loss) in place of loss.backward()"


class DistributedModel(WholeLayers):
    """A module at work on all ranks, of which a process has one.

    Parameters and buffers are the first replica's from the start, and on this rank's device.
    Names in state dictionaries, `named_parameters` and `named_buffers` are those of the module.
    With one partition it also works outside step functions, each `backward` being a step then.
    Source: the public documentation of DistributedModel, and of its arguments:

    trace_device, trace_execution_times, trace_memory_usage: how partitions are found; with one
    there is nothing to find. overlapping_allreduce: whether gradients are averaged during the
    backward pass that ends a step; the parameter of that name goes before it.
    backward_passes_per_step: steps whose gradients add up before they are averaged over replicas,
    or less where the optimizer's step comes sooner. torch.nn.utils.clip_grad_norm_ cannot know of
    it and clips on each rank by that rank's norm: use `clip_grad_norm_` of the model.
    average_grads_across_microbatches: False for losses that sum over a batch.
    bucket_cap_mb: MiB of gradients that are averaged together. broadcast_buffers: whether each step
    in training mode begins with the buffers of the first replica. gradient_as_bucket_view: saves
    the memory of one set of gradients.

    Wrapping its module again gives the same model, as it is: transformers 5 does so to evaluate.
    Raises NotStartedError before `init`, StepError for a second model and for ranks whose modules
    differ, SettingsError for an argument that cannot be used.
    """

    def __new__(cls, module: nn.Module | None = None, *_: Any, **__: Any) -> Any:
        there = current().model if module is not None else None  # None: of a copy
        return there if there is not None and there.module is module else super().__new__(cls)

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        trace_memory_usage: bool = False,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: float = 25,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        if self.__dict__:
            return  # it is there already
        super().__init__()
        session = current()
        check(session, module, trace_device, trace_execution_times)
        check_numbers(backward_passes_per_step, bucket_cap_mb)
        if trace_execution_times or trace_memory_usage:
            session.note(
                "trace_execution_times and trace_memory_usage have no effect: both are measured "
                "wherever a model is partitioned"
            )
        check_values(session, module)
        with recording(session):
            self.module = module.to(session.mesh.device, half_of(session.config))
        self.overlapping_allreduce = overlapping_allreduce
        if session.config.overlapping_allreduce is not None:
            self.overlapping_allreduce = session.config.overlapping_allreduce
        self.backward_passes_per_step = backward_passes_per_step
        self.average_grads_across_microbatches = average_grads_across_microbatches
        self.broadcast_buffers = broadcast_buffers
        self._session = session
        self._watch = BackwardWatch(
            self.uncut_parameters,
            # the pipeline's backward passes come between those of the step function
            (lambda: session.microbatch is None) if session.topology.pipeline > 1 else None,
        )
        self._sharding: Sharding | None = None
        if session.config.shard_degree > 1:
            from muster_modelparallel.wrap.shard.sharding import Sharding  # takes seconds

            self._sharding = Sharding(session, self.module, self._watch.see)
        self._stages: Stages | None = None
        if session.topology.pipeline > 1:
            self._stages = Stages(session, self.module, self._sharding)
        self._hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self._passes = 0  # whose gradients are not averaged over replicas yet
        self._expects_backward = False
        self._group: Any = None
        self._reducer: GradientReducer | None = None
        if session.topology.dp_size > 1:
            self._begin_replicas(bucket_cap_mb, gradient_as_bucket_view)
            self._watch.begin()  # the script might never call `backward`
        if self._sharding is not None and self._stages is None:
            self._sharding.cut(self._sharding.names, [(self.module, 0)])
            session.cut_optimizers(self._sharding)
            make_parameters(session, self.module.parameters())  # what was not cut
            session.delayed = None
        session.model = self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles of a model with several partitions would not be whole: StepError."""
        if self._stages is None:
            return super().__reduce_ex__(protocol)
        raise StepError(
            "a model with several partitions was copied or pickled",
            "copy model.get_module() before the first step, or load model.state_dict() into a "
            "model of your own",
        )

    @property
    def partitioned(self) -> bool:
        """Whether it is known which rank has which part. Always, with one partition; with several
        from the first step function on that trains."""
        return self._stages is None or self._stages.is_partitioned

    @property
    def is_cut(self) -> bool:
        """Whether it has several partitions."""
        return self._stages is not None

    @property
    def is_stray(self) -> bool:
        """Whether gradients came without `backward` in this step."""
        return self._watch.is_stray

    @property
    def stages(self) -> Stages | None:
        """What this rank has of it; None with one partition."""
        return self._stages

    @property
    def sharding(self) -> Sharding | None:
        """How its parameters are cut over replicas; None where each has them whole."""
        return self._sharding

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's. With several partitions only a step function calls it, and it raises
        StepError elsewhere."""
        if self._stages is not None:
            steps = self._session.cut_steps
            if self._session.microbatch is None or steps is None:
                raise StepError(
                    "the model has several partitions and was called outside a step function",
                    "call it in a function with @smp.step, also to evaluate",
                )
            return steps.call(args, kwargs)
        is_step = self._session.microbatch is not None and torch.is_grad_enabled()
        if self._session.plan is not None and is_step:
            from muster_modelparallel.wrap.cut.planning import plan_and_end

            plan_and_end(self._session, self.module, args, kwargs)
        if self._session.microbatch is None:
            self._run_hooks()
            self._broadcast_buffers()
            if self._reducer is not None and torch.is_grad_enabled():
                self._watch.look()
            if self._sharding is not None:
                self._sharding.begin_step()
        run: Callable[..., Any] = self.module
        if self._sharding is not None:
            run = partial(self._sharding.run, self.module)
        offload = self._session.offload
        if offload is None or not torch.is_grad_enabled():
            return run(*args, **kwargs)
        with offload.saving(self.module.parameters(), loads_ahead=True):
            return run(*args, **kwargs)

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """As torch.autograd.backward of one tensor or several, with gradients scaled so that they
        are averaged over microbatches. Outside a step function they are averaged over replicas at
        once; inside, at its end. Raises StepError for a StepOutput."""
        microbatch = self._session.microbatch
        index = 0 if microbatch is None else microbatch.index
        count = 1 if microbatch is None else microbatch.count
        outputs, seeds = listed(tensors, grad_tensors)
        if any(isinstance(each, StepOutput) for each in outputs):
            raise StepError(
                "backward was given a StepOutput", "call model.backward in the step function"
            )
        steps = self._session.cut_steps
        if self._stages is not None:
            if microbatch is None or steps is None:
                raise StepError(
                    "model.backward was called outside a step function", "call it in one"
                )
            if not steps.has_last:  # the values are elsewhere
                return
        scale = self._scale(count)
        if scale != 1:
            seeds = [scaled(one, seed, scale) for one, seed in zip(outputs, seeds, strict=True)]
        if steps is not None:
            steps.backward(outputs, seeds)
            return
        if microbatch is None:
            self._begin_pass()
        ends_pass = index == count - 1 and self._is_due
        with ExitStack() as stack:
            is_last = stack.enter_context(self._watch.backward(index))
            if self._sharding is not None:
                stack.enter_context(self._sharding.to_its_end())
            if self._reducer is not None:
                self._reducer.before_backward(is_last and ends_pass)
            torch.autograd.backward(outputs, seeds)
        if microbatch is None:
            self._end_pass()

    def begin_step(self, microbatches: int) -> None:
        """Called by a step function before its first microbatch."""
        if self._sharding is not None:
            self._sharding.begin_step()
        if self.partitioned:
            self._run_hooks()
        self._broadcast_buffers()
        self._begin_pass()
        # known on all ranks alike, even where one of them does not get to backward
        self._expects_backward = self.module.training and torch.is_grad_enabled()

    def begin_backward(self, stage: int, ends_step: bool) -> None:
        """Called before each backward pass of a stage of this rank. ends_step: as far as one knows
        it is this rank's last one in the step."""
        if self._sharding is not None:
            self._sharding.begin_backward()
        if self._reducer is not None and self._stages is not None:
            is_last = ends_step and self._is_due
            self._reducer.before_backward(
                is_last, self._stages.others(stage) if is_last else frozenset()
            )

    def end_step(self) -> None:
        """Called by a step function after its last microbatch. Raises StepError where gradients
        came without `backward`."""
        steps = self._session.cut_steps
        if self._watch.is_stray or (steps is not None and steps.has_stray):
            raise StepError(_NO_AVERAGE, _USE_OURS)
        has_begun = self._watch.has_begun
        if self._stages is not None and steps is not None:
            has_begun = steps.has_backward
        if self._sharding is not None:
            self._sharding.end_step(has_begun or self._expects_backward)
        if self._stages is not None:
            self._stages.end_step(has_begun)
        if has_begun or self._expects_backward:
            self._end_pass()

    def partition(self, call: Any) -> None:
        """Finds the stages by this call and moves parameters; then the hooks are called."""
        assert self._stages is not None
        self._stages.partition(call)
        self._watch.begin()
        if self._reducer is not None:
            self._reducer.prepare()
        self._run_hooks()

    def finish_gradients(self) -> None:
        """Averages what `backward_passes_per_step` has left: an optimizer is to use it now. Raises
        StepError with replicas where gradients came without `backward`, and in a step function, at
        whose end they are averaged."""
        if self._reducer is not None:
            if self._session.microbatch is not None:
                what = "gradients were to be used in a step function, before they are averaged"
                raise StepError(what, "clip and unscale them after the step function")
            if self._passes:
                self._reducer.reduce()
                self._watch.is_unaveraged = False
            elif self._watch.is_unaveraged:
                raise StepError(_NO_AVERAGE, _USE_OURS)
        self._passes = 0

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Any:
        """As torch.nn.utils.clip_grad_norm_ of all parameters, whose gradients are averaged before.
        Raises StepError where a loss scale is used, which `clip_master_grads` knows of, and as
        `finish_gradients`."""
        if getattr(self._session.optimizer, "loss_scale", 1.0) != 1.0:
            raise StepError(
                "model.clip_grad_norm_ was called where gradients have a loss scale",
                "call optimizer.clip_master_grads(max_norm)",
            )
        self.finish_gradients()
        given = self.local_parameters()
        return clip(given, self._session, self, max_norm, norm_type)

    def get_module(self) -> nn.Module:
        """The user's module."""
        return self.module

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Those of the module, by its names."""
        found = self.module.named_parameters(prefix, recurse, remove_duplicate)
        return iter(found) if self._sharding is None else self._sharding.parts(found)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Those of the module, by its names."""
        return self.module.named_buffers(  # type: ignore[no-any-return]
            prefix, recurse, remove_duplicate
        )

    def local_named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Parameters of this rank's partition, by the module's names; all of them before it is
        known."""
        return iter(self.named_parameters() if self._stages is None else self._stages.parameters())

    def local_parameters(self) -> Iterator[Any]:
        """Parameters of this rank's partition."""
        return (parameter for _, parameter in self.local_named_parameters())

    def local_named_buffers(self) -> Iterator[tuple[str, Any]]:
        """Buffers of this rank's partition, by the module's names."""
        stages = self._stages
        return (
            (name, one)
            for name, one in self.module.named_buffers()
            if stages is None or stages.holds_buffer(name)
        )

    def local_buffers(self) -> Iterator[Any]:
        """Buffers of this rank's partition."""
        return (buffer for _, buffer in self.local_named_buffers())

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Modules of this rank's partition, by their names in the module, itself as ""."""
        stages = self._stages
        return (
            (path, one)
            for path, one in self.module.named_modules()
            if stages is None or stages.holds_module(path)
        )

    def local_modules(self) -> Iterator[nn.Module]:
        """Modules of this rank's partition."""
        return (module for _, module in self.local_named_modules())

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The whole model, by the module's names: a plain module of the same kind loads it. With
        several partitions it is collective over the pipeline, all of whose ranks get it; with
        parameters that are cut over replicas also over these."""
        found = self._state(*args, **kwargs)
        if self._stages is None or not self._stages.is_partitioned:
            return found
        return type(found)(self._stages.whole(found))

    def local_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """What this rank holds, with `_smp_is_partial`: True. Collective over the replicas where
        parameters are cut over them: each gets the whole of them."""
        found = self._state(*args, **kwargs)
        if self._stages is not None:
            found = type(found)(self._stages.local(found))
        found[PARTIAL] = True
        return found

    def held_state(self) -> dict[str, Any]:
        """As `local_state_dict` without its mark, of parameters that are cut over replicas parts
        that know of their whole. Not collective."""
        found = self._made(self.module.state_dict())
        if self._sharding is not None:
            found = self._sharding.computed(found)
        return dict(found if self._stages is None else self._stages.held(found))

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Takes a full or a partial one, by the module's names or with "module." before them.
        Returns and raises as torch's. Of a full one a rank takes what it holds, and all buffers,
        which its stages may read."""
        given = {name: value for name, value in state_dict.items() if name != PARTIAL}
        own = self.module.state_dict()
        if given and all(name.startswith(_PREFIX) and name not in own for name in given):
            given = {name.removeprefix(_PREFIX): value for name, value in given.items()}
        if self._sharding is not None:
            self._sharding.rest()
            given, assign = self._sharding.loadable(given), False
        if self._stages is None or not self._stages.is_partitioned:
            with recording(self._session):
                return self.module.load_state_dict(given, strict=strict, assign=assign)
        wanted = self._stages.local(own) if state_dict.get(PARTIAL) else own
        buffers = [name for name, _ in self.module.named_buffers(remove_duplicate=False)]
        mine = [*self._stages.local(own), *buffers]
        return load_local(self.module, mine, wanted, given, strict)

    def share_buffers(self) -> None:
        """After each rank has loaded its own: all have those that count. Collective over the
        pipeline."""
        if self._stages is not None and self._stages.is_partitioned:
            buffers = {name for name, _ in self.module.named_buffers(remove_duplicate=False)}
            own = {name: one for name, one in self.module.state_dict().items() if name in buffers}
            self.module.load_state_dict(self._stages.whole(own), strict=False)

    def register_post_partition_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """`hook(model, optimizer)` is called once: at the next call of a step function or, outside,
        of the model, before its first forward pass. The handle's `remove()` takes it back."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """What `to`, `half`, `float` and such are made of. Raises StepError where parameters that
        are cut would get another type or device."""
        if self._sharding is not None:
            for one in self.local_parameters():
                there = torch.empty(0, dtype=one.dtype, device=one.device)
                made = fn(there)
                if (made.dtype, made.device) != (there.dtype, there.device):
                    raise StepError(
                        f"a model whose parameters are cut over replicas was to become {made.dtype}"
                        f" on {made.device}",
                        "do so before DistributedModel, or use the parameters fp16 or bf16",
                    )
            return self
        return super()._apply(fn, recurse)

    def uncut_parameters(self) -> Iterator[Any]:
        """Those of this rank's partition that are not cut over replicas."""
        return (parameter for _, parameter in self._averaged())

    @property
    def _is_due(self) -> bool:
        """Whether gradients are averaged over replicas at the end of this pass."""
        return self._passes + 1 >= self.backward_passes_per_step

    def _begin_replicas(self, bucket_cap_mb: float, as_view: bool) -> None:
        mesh = self._session.mesh
        named = [*self.named_parameters(), *self.named_buffers()]
        require_same_model(named, mesh.objects(GroupKind.DP))
        self._group = make_group(self._session)
        delayed = self._session.delayed
        there = [one for _, one in named if delayed is None or not delayed.has(one)]
        broadcast_tensors(there, self._group)
        options = ReduceOptions(self.overlapping_allreduce, bucket_cap_mb, as_view)
        self._reducer = GradientReducer(
            self._averaged, self._group, options,
            frozenset if self._stages is None else self._stages.tied,
        )  # fmt: skip

    def _averaged(self) -> Iterator[tuple[str, Any]]:
        """What is averaged over replicas as a whole."""
        named, sharding = self.local_named_parameters(), self._sharding
        return ((name, one) for name, one in named if sharding is None or not sharding.has(name))

    def _state(self, *args: Any, **kwargs: Any) -> Any:
        found = self._made(self.module.state_dict(*args, **kwargs))
        return found if self._sharding is None else type(found)(self._sharding.whole(found))

    def _made(self, state: dict[str, Any]) -> dict[str, Any]:
        """With their values for parameters that have no memory yet."""
        delayed = self._session.delayed
        return state if delayed is None else delayed.values(state)

    def _broadcast_buffers(self) -> None:
        if self._reducer is None or not self.broadcast_buffers or not self.module.training:
            return
        if not torch.is_grad_enabled():  # a look at the model may be one rank's alone
            return
        stages, named = self._stages, self.module.named_buffers()
        buffers = [one for name, one in named if stages is None or stages.uses_buffer(name)]
        if buffers:
            broadcast_tensors(buffers, self._group)

    def _begin_pass(self) -> None:
        self._watch.begin()
        if self._reducer is not None:
            self._reducer.prepare()

    def _end_pass(self) -> None:
        self._passes += 1
        if self._passes >= self.backward_passes_per_step:
            self.finish_gradients()

    def _run_hooks(self) -> None:
        while self._hooks:
            _, hook = self._hooks.popitem(last=False)
            hook(self, self._session.optimizer)

    def _scale(self, microbatches: int) -> float:
        """What the gradients of one microbatch are multiplied by."""
        loss_scale = float(getattr(self._session.optimizer, "loss_scale", 1.0))
        return loss_scale / (microbatches if self.average_grads_across_microbatches else 1)

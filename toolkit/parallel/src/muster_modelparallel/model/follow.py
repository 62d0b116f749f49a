"""Runs a model once and writes down what happened: a Trace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import flop_registry

from muster_modelparallel.model.hollow import answered_by_shape
from muster_modelparallel.model.nests import filled, leaves
from muster_modelparallel.model.operators import OperatorMode
from muster_modelparallel.model.recomputed import Regions, sealed, with_gradients
from muster_modelparallel.model.trace import (
    OF_TORCH,
    Enter,
    Event,
    Exit,
    Leaf,
    Meta,
    Op,
    Saved,
    Trace,
    is_opaque,
    tensors,
)

Forward = Callable[..., Any]


@contextmanager
def replaced_forwards(
    modules: Mapping[str, nn.Module], make: Callable[[str, nn.Module, Forward], Forward]
) -> Iterator[None]:
    """Inside, the modules' `forward` is what `make(path, module, forward)` gave. A module's class
    and its hooks stay as they are."""
    before: list[tuple[nn.Module, Any]] = []
    try:
        for path, module in modules.items():
            forward = module.forward
            before.append((module, module.__dict__.get("forward")))
            module.__dict__["forward"] = functools.wraps(forward)(make(path, module, forward))
        yield
    finally:
        for module, own in reversed(before):
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own


def trace(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], hollow: bool = False
) -> Trace:
    """What one forward pass of the model does with these arguments, in the mode it is in.

    hollow: parameters have one element each (`hollow_parameters`), and operators that meet one
    give the shape of their result alone. The caller keeps random state and buffers if it must.
    """
    recorder = _Recorder(hollow)
    given = recorder.storages_of([*args, *kwargs.values()])
    parameters = {recorder.storage(p): name for name, p in reversed(_named(model))}
    buffers = {recorder.storage(b): name for name, b in model.named_buffers()}
    modules = dict(model.named_modules())
    with (
        replaced_forwards(modules, recorder.forward),
        recorder.seeing_attributes(),
        torch.autograd.graph.saved_tensors_hooks(recorder.save, lambda tensor: tensor),
        recorder,
    ):
        output = model(*args, **kwargs)
    outputs = recorder.storages_of(output)
    recorder.regions.at(len(recorder.events), True, _used(outputs))
    regions = recorder.regions.found()
    return Trace(
        type(model).__name__,
        with_gradients(recorder.events, regions),
        given,
        outputs,
        parameters,
        buffers,
        {name: p.numel() * p.element_size() for name, p in _named(model)},
        {name: b.numel() * b.element_size() for name, b in model.named_buffers()},
        _inside(model),
        {path: _kind(module) for path, module in modules.items()},
        hollow,
        regions,
        sealed(recorder.events, regions),
        {name: recorder.storage(b) for name, b in model.named_buffers()},
        {
            (path, name): (
                recorder.set_at.get((id(module), name), 0),
                tuple(recorder.storage(one) for one in tensors(value)),
            )
            for path, module in modules.items()
            for name, value in vars(module).items()
            if name not in OF_TORCH
            if (id(module), name) in recorder.set_at or tensors(value)
        },
    )


class _Recorder(OperatorMode):
    """Sees every operator; modules tell it when they begin and end."""

    def __init__(self, hollow: bool) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.regions = Regions()
        self.set_at: dict[tuple[int, str], int] = {}  # attributes of modules
        self._hollow = hollow
        self._numbers: dict[Any, int] = {}
        self._kept: list[Any] = []

    @contextmanager
    def seeing_attributes(self) -> Iterator[None]:
        """Inside, what modules set as attributes is seen: the memory alone does not tell when, for
        a tensor may be kept long after it was made."""
        real = nn.Module.__setattr__

        def seen(module: nn.Module, name: str, value: Any) -> None:
            self.set_at[id(module), name] = len(self.events)
            real(module, name, value)

        nn.Module.__setattr__ = seen
        try:
            yield
        finally:
            nn.Module.__setattr__ = real

    def storage(self, tensor: torch.Tensor) -> int:
        """The number of its memory. A storage that has gone keeps its number to itself: the weak
        reference keeps its address from being used again."""
        try:
            storage = tensor.untyped_storage()
            key: Any = storage._cdata
        except NotImplementedError:  # sparse
            key, storage = ("object", id(tensor)), None
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._kept.append(tensor if storage is None else StorageWeakRef(storage))
        return self._numbers[key]

    def storages_of(self, value: Any, arguments: Sequence[Any] = ()) -> tuple[Leaf, ...]:
        """The leaves of a value, and which of the leaves `arguments` they are."""
        seen: dict[int, int] = {}
        places = {id(leaf): place for place, leaf in reversed(list(enumerate(arguments)))}
        found = []
        for place, leaf in enumerate(leaves(value)):
            if isinstance(leaf, torch.Tensor):
                twin = seen.setdefault(id(leaf), place)
                found.append(
                    Leaf(
                        self.storage(leaf),
                        Meta.of(leaf),
                        argument=places.get(id(leaf), -1),
                        twin=twin if twin != place else -1,
                    )
                )
            elif is_opaque(leaf):
                found.append(Leaf(argument=places.get(id(leaf), -1), opaque=True))
            else:
                found.append(Leaf(value=leaf))
        return tuple(found)

    def forward(self, path: str, module: nn.Module, real: Forward) -> Forward:
        """A module's forward that says when it begins and ends."""

        def traced(*args: Any, **kwargs: Any) -> Any:
            given = leaves([*args, *kwargs.values()])
            entered = self.storages_of(given)
            self.regions.at(len(self.events), torch.is_grad_enabled(), _used(entered))
            self.events.append(Enter(path, entered))
            output = real(*args, **kwargs)
            returned = leaves(output)
            tree = filled(output, iter([None] * len(returned)))
            hooked = bool(module._forward_hooks)
            left = self.storages_of(returned, given)
            self.regions.at(len(self.events), torch.is_grad_enabled(), _used(left))
            self.events.append(Exit(left, tree, hooked))
            return output

        return traced

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Autograd saves the tensor for backward."""
        size = tensor.numel() * tensor.element_size()
        self.events.append(Saved(self.storage(tensor), size))
        return tensor.detach()  # the tensor itself would be a cycle that nothing frees

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = answered_by_shape(func, args, kwargs) if self._hollow else NotImplemented
        given = _tensors((args, kwargs))
        read = [self.storage(t) for t in given]
        used = zip(read, (t.requires_grad for t in given), strict=True)
        self.regions.at(len(self.events), torch.is_grad_enabled(), used)
        written = {self.storage(t) for t in _written(func, args, kwargs)}
        known = len(self._numbers)
        if output is NotImplemented:
            output = func(*args, **kwargs)
        found = [self.storage(t) for t in _tensors(output)]
        self.regions.made(s for s in found if s >= known)
        count = flop_registry.get(func._overloadpacket)
        self.events.append(
            Op(
                func.name(),
                tuple(dict.fromkeys(read)),
                tuple(dict.fromkeys(s for s in found if s >= known)),
                tuple(written),
                _leaks(func, args),
                float(count(*args, **kwargs, out_val=output)) if count else 0.0,
                torch.Tag.nondeterministic_seeded in func.tags,
            )
        )
        return output


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


def _used(found: Sequence[Leaf]) -> list[tuple[int, bool]]:
    return [(leaf.storage, leaf.meta.requires_grad) for leaf in found if leaf.meta is not None]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for member in value for tensor in _tensors(member)]
    return []


@functools.cache
def _written_places(func: Any) -> tuple[tuple[int, str], ...]:
    """The operator's arguments that it changes, by its schema."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    return [
        tensor
        for place, name in _written_places(func)
        for tensor in _tensors(args[place] if place < len(args) else kwargs.get(name))
    ]


def _leaks(func: Any, args: Sequence[Any]) -> bool:
    """Whether what python does next may depend on the values: `item()`, or a shape."""
    if torch.Tag.data_dependent_output in func.tags:
        return True
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if func.overloadpacket is torch.ops.aten.index:  # dynamic with masks alone
        return any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1]))
    return True


def _inside(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The names of the parameters in each module, a tied one under its first name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        path: tuple(dict.fromkeys(names[id(p)] for p in module.parameters()))
        for path, module in model.named_modules()
    }


def _kind(module: nn.Module) -> str:
    """Equal for modules that cost the same with equal arguments."""
    sizes = [tuple(parameter.shape) for parameter in module.parameters()]
    return f"{type(module).__qualname__} {sizes}"

"""What one forward pass did, told without torch's graph: module calls, and where tensors went.

A tensor is known by its storage, so that views, `detach` and in-place versions stay what they are:
the same memory. Operators are seen below autograd, where none can hide: custom functions, hooks,
`item()`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from muster_modelparallel.errors import SplitError
from muster_modelparallel.model.nests import leaves

OF_TORCH = frozenset(nn.Module().__dict__)
"""Attributes that each module has."""

_CONSTANTS = (
    type(None), bool, int, float, complex, str, bytes, slice, type,
    torch.dtype, torch.device, torch.Size, torch.layout,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Meta:
    """A tensor without its values. `stride`: in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @property
    def bytes(self) -> int:
        """Of all elements, also where several share memory."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Meta:
        """Raises SplitError for a nested one."""
        if tensor.is_nested and tensor.layout == torch.strided:
            raise SplitError(
                "a module takes or returns a nested tensor, as torch's TransformerEncoder gives "
                "its layers in evaluation with a padding mask: it has no shape to make room for",
                "build nn.TransformerEncoder with enable_nested_tensor=False",
            )
        return cls(
            tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device,
            tensor.requires_grad,
        )  # fmt: skip

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with these strides, if it has this shape: kernels add up in another order over
        other strides. Memory that overlaps itself stays as it came."""
        extent = 1 + sum(
            (size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)
        )
        if tensor.stride() == self.stride or tensor.shape != self.shape or extent < tensor.numel():
            return tensor
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return made.copy_(tensor)

    def placeholder(self, writable: bool) -> torch.Tensor:
        """Zeros of this shape in one element, or in memory of their own if they are written to.
        requires_grad is as it was: reentrant checkpoints go by it."""
        if not writable:
            made = torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)
            return made.requires_grad_(self.requires_grad)
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        made.zero_().requires_grad_(self.requires_grad)
        return made.clone() if self.requires_grad else made  # a leaf cannot be written to


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a call's arguments or return: a tensor with its storage, or a constant `value`.

    `argument`: the argument's leaf that is the same object, `twin`: the earlier leaf of the same
    return that is; -1 for none. `opaque`: an object that no other process can be given.
    """

    storage: int = -1
    meta: Meta | None = None
    value: Any = None
    argument: int = -1
    twin: int = -1
    opaque: bool = False


@dataclass(frozen=True, slots=True)
class Enter:
    """A module's forward begins."""

    path: str
    arguments: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """The innermost forward ends. `tree`: its return without the leaves' values. `hooked`: hooks
    of the module see it."""

    leaves: tuple[Leaf, ...]
    tree: Any
    hooked: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """An operator that read, made and wrote storages. `leaks`: python learnt values from it;
    `draws`: it may draw random numbers."""

    name: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    writes: tuple[int, ...]
    leaks: bool
    flops: float
    draws: bool = False


@dataclass(frozen=True, slots=True)
class Saved:
    """Autograd keeps this storage for backward."""

    storage: int
    bytes: int


Event = Enter | Exit | Op | Saved


@dataclass(frozen=True, slots=True)
class Region:
    """The events from `begin` to before `end` are computed again in backward by a custom function.
    `results`: memory that it gave gradients."""

    begin: int
    end: int
    results: frozenset[int]


@dataclass(frozen=True, slots=True)
class Trace:
    """One forward pass of a model.

    Storages are numbered in the order in which they were seen. `parameters` and `buffers` give the
    name of theirs, as in `named_parameters` and `named_buffers`; `left` the storages of the buffers
    after the pass, `kept` those of what modules then hold as attributes, by path and name, and
    before which event it was set.
    `parts`: the modules in a module.
    `sealed`: modules that must stay whole, for what is in them is computed again (`regions`).
    """

    model: str
    events: tuple[Event, ...]
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    parameters: dict[int, str]
    buffers: dict[int, str]
    parameter_bytes: dict[str, int]
    buffer_bytes: dict[str, int]
    parameters_in: dict[str, tuple[str, ...]]
    kinds: dict[str, str] = field(default_factory=dict)
    hollow: bool = False
    regions: tuple[Region, ...] = ()
    sealed: frozenset[str] = frozenset()
    left: dict[str, int] = field(default_factory=dict)
    kept: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def tree(self) -> Any:
        """What the model returns, without the leaves' values."""
        return next(event.tree for event in reversed(self.events) if isinstance(event, Exit))


def is_opaque(value: Any) -> bool:
    """Whether a value other than a tensor may be more than what it looks like."""
    return not isinstance(value, _CONSTANTS)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in containers."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]

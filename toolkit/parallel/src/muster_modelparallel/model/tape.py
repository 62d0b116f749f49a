"""What was done to tensors that have no memory yet, so that the values of any of them can be made
later, alone and with the same bits.

An operation is kept with its arguments and, where it draws random numbers, with the state that the
generator had. Tensors that share memory (a view and its base) are one family: what is written to
one of them changes all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from muster_modelparallel.errors import ModelParallelError

COPIED_BYTES = 16 << 10
"""Smaller tensors with memory are copied when an operation is given them."""


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """A tensor without memory: its number, its family, and shape, strides and dtype by a tensor on
    the device "meta"; `device` is where its values belong."""

    number: int
    family: int
    meta: torch.Tensor
    device: torch.device

    @property
    def bytes(self) -> int:
        return int(self.meta.numel() * self.meta.element_size())


@dataclass(frozen=True, slots=True)
class _Given:
    """A tensor with memory that an operation was given. It must not change until it is used."""

    tensor: torch.Tensor
    mark: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: Any  # Absent in the places of results
    reads: frozenset[int]  # families
    random: Random | None
    dtype: torch.dtype  # torch's default then


@dataclass(frozen=True, slots=True)
class Random:
    """A generator, and the state it had before an operation drew from it."""

    generator: torch.Generator
    state: torch.Tensor

    @classmethod
    def now(cls, generator: torch.Generator) -> Random:
        return cls(generator, generator.get_state())

    @contextmanager
    def back(self) -> Iterator[None]:
        """Inside, the generator is where it was then; afterwards where it is now."""
        now = self.generator.get_state()
        self.generator.set_state(self.state)
        try:
            yield
        finally:
            self.generator.set_state(now)


@dataclass(slots=True)
class Tape:
    """Operations in their order."""

    _entries: list[_Entry] = field(default_factory=list)
    _of_family: dict[int, list[int]] = field(default_factory=dict)  # entries by what they make
    _numbers: int = 0

    def absent(self, meta: torch.Tensor, device: torch.device, base: Absent | None) -> Absent:
        """A new one, of the family of `base` or of its own."""
        self._numbers += 1
        family = self._numbers if base is None else base.family
        return Absent(self._numbers, family, meta, device)

    def add(
        self,
        function: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        made: Any,
        changed: Sequence[Absent],
        random: Random | None,
    ) -> None:
        """`args`, `kwargs`: with Absent for tensors without memory; the others are kept. `changed`:
        what the operation makes or writes."""
        reads: set[int] = set()

        def keep(value: Any) -> Any:
            if isinstance(value, Absent):
                reads.add(value.family)
            if isinstance(value, torch.Tensor):
                if value.layout is torch.strided and value.nbytes < COPIED_BYTES:
                    value = value.clone()  # it may change as it likes
                return _Given(value, _mark(value))
            return value

        kept, named = tree_map_only((torch.Tensor, Absent), keep, (tuple(args), dict(kwargs)))
        dtype = torch.get_default_dtype()
        self._entries.append(_Entry(function, kept, named, made, frozenset(reads), random, dtype))
        for family in {one.family for one in changed}:
            self._of_family.setdefault(family, []).append(len(self._entries) - 1)

    def value(self, wanted: Absent) -> torch.Tensor:
        """A tensor of its own memory, as if nothing had been put off. Raises ModelParallelError if
        a tensor that was used has been changed since."""
        found: dict[int, torch.Tensor] = {}
        for at in self._needed(wanted):
            self._again(self._entries[at], found)
        value = found[wanted.number]
        alone = value.untyped_storage().nbytes() == value.numel() * value.element_size()
        return value if alone else value.clone()

    def _needed(self, wanted: Absent) -> list[int]:
        """The operations that have a part in it, in their order: for each family all those before
        the last one that uses it."""
        until: dict[int, int] = {}
        queue = [(wanted.family, len(self._entries))]
        while queue:
            family, end = queue.pop()
            begin = until.get(family, 0)
            if end <= begin:
                continue
            until[family] = end
            for at in self._of_family.get(family, ()):
                if begin <= at < end:
                    queue += [(one, at) for one in self._entries[at].reads if one != family]
        return sorted(
            {at for family, end in until.items() for at in self._of_family[family] if at < end}
        )

    def _again(self, entry: _Entry, found: dict[int, torch.Tensor]) -> None:
        def there(value: Any) -> Any:
            if isinstance(value, Absent):
                return found[value.number]
            if _mark(value.tensor) != value.mark:
                raise ModelParallelError(
                    f"{entry.function}: a tensor of shape {tuple(value.tensor.shape)} that a "
                    "parameter was to be made from has been changed since",
                    "leave it as it is until the model is partitioned, or copy it",
                )
            return value.tensor

        args, kwargs = tree_map_only((Absent, _Given), there, (entry.args, dict(entry.kwargs)))
        with (
            nullcontext() if entry.random is None else entry.random.back(),
            default_dtype(entry.dtype),
        ):
            made = entry.function(*args, **kwargs)
        _match(entry.made, made, lambda one, tensor: found.update({one.number: tensor}))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Inside, what is made without a dtype has this one."""
    now = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(now)


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    """Another one where it has been changed: by torch and, on the CPU, by numpy or through `data`,
    which torch does not count."""
    version = 0 if tensor.is_inference() else tensor._version
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return version, 0
    offset = tensor.storage_offset() * tensor.element_size()
    if tensor.is_contiguous() and offset % 8 == tensor.nbytes % 8 == 0:
        words = torch.empty(0, dtype=torch.int64).set_(
            tensor.untyped_storage(), offset // 8, (tensor.nbytes // 8,)
        )  # many times as fast as by bytes
    else:
        words = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return version, int(words.sum(dtype=torch.int64))


def _match(made: Any, tensors: Any, take: Callable[[Absent, torch.Tensor], None]) -> None:
    """Gives each tensor of a result to the Absent in its place."""
    if isinstance(made, Absent):
        take(made, tensors)
    elif isinstance(made, (list, tuple)):
        for one, tensor in zip(made, tensors, strict=True):
            _match(one, tensor, take)

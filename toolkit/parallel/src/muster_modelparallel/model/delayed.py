"""Parameters that get their memory and values when it is known which rank holds them.

Inside `Delayed.recording` a tensor that would be large has one stored element, and what is done to
it is written down (tape.py) in place of being done. Random numbers are drawn nevertheless, into
memory that is given back at once: so the values are, bit for bit, those that the script would have
got, and so is the state in which it finds the generator.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from muster_modelparallel.model.operators import OperatorMode
from muster_modelparallel.model.tape import Absent, Random, Tape

LEAST_BYTES = 16 << 10
"""Smaller tensors are made at once."""


class Delayed:
    """The tensors of this process that have no memory yet. `draws`: False where nobody will ask for
    the bits of a model, which is only planned; random numbers are then not drawn."""

    def __init__(self, least_bytes: int = LEAST_BYTES, draws: bool = True) -> None:
        self.least_bytes = least_bytes
        self.draws = draws
        self.tape = Tape()
        self._absent: dict[int, tuple[Absent, torch.Tensor]] = {}  # by the storage that they share
        self._handed_out: list[weakref.ref[torch.Tensor]] = []
        self._is_recording = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, large tensors get no memory. Of those that are left at the end only parameters
        stay so: buffers and such are needed by all."""
        if self._is_recording:
            yield
            return
        self._is_recording = True
        try:
            with _Reading(self), _Recording(self):
                yield
        finally:
            self._is_recording = False
        for ref in self._handed_out:
            tensor = ref()
            if tensor is not None and not isinstance(tensor, nn.Parameter):
                tensor.data = self.value(tensor)
        self._handed_out.clear()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, an operation that is given such a tensor gets its values, made for it alone."""
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # it would keep what is made for one operation
        try:
            with _Reading(self), _Using(self):
                yield
        finally:
            torch.set_autocast_cache_enabled(cached)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether its values are yet to be made."""
        return self.find(tensor) is not None

    def is_dense(self, tensor: torch.Tensor) -> bool:
        """Whether its values will lie in memory without gaps, row by row."""
        absent = self.find(tensor)
        return bool((tensor if absent is None else absent.meta).is_contiguous())

    def find(self, tensor: torch.Tensor) -> Absent | None:
        if tensor.layout is not torch.strided or tensor.is_meta or not self._absent:
            return None
        found = self._absent.get(_storage(tensor))
        return found[0] if found is not None else None

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself, or its values in memory of their own."""
        absent = self.find(tensor)
        if absent is None:
            return tensor
        with _disable_current_modes(), torch.no_grad():
            return self.tape.value(absent)

    def make(self, *parameters: torch.Tensor) -> None:
        """Gives each its memory and its values. Those that are the same part of the same memory
        share what is made."""
        made: dict[Any, torch.Tensor] = {}
        for one in parameters:
            if (absent := self.find(one)) is not None:
                meta = absent.meta
                layout = (meta.storage_offset(), meta.shape, meta.stride(), meta.dtype)
                place = (absent.family, *layout)
                one.data = made[place] if place in made else self.value(one)
                made[place] = one.data

    def stand_in(self, absent: Absent) -> torch.Tensor:
        """A tensor of its shape with one stored element: not a number, so that who uses it by
        mistake notices."""
        dtype = absent.meta.dtype
        fill = float("nan") if dtype.is_floating_point or dtype.is_complex else 0
        one = torch.full((), fill, dtype=dtype, device=absent.device)
        self._absent[_storage(one)] = (absent, one)
        made = one.expand(absent.meta.shape)
        self._handed_out.append(weakref.ref(made))
        return made

    def values(self, nest: Any) -> Any:
        """With their values for all such tensors in it."""
        return tree_map_only(torch.Tensor, self.value, nest)


_SILENT_WRITERS = frozenset({torch.ops.aten.native_batch_norm.default})
"""What writes to arguments that its schema does not name."""


class _Recording(OperatorMode):
    def __init__(self, delayed: Delayed) -> None:
        super().__init__()
        self._delayed = delayed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs, delayed = kwargs or {}, self._delayed
        found = [delayed.find(one) for one in _tensors((args, kwargs))]
        is_given = any(one is not None for one in found)
        writes = any(one.alias_info and one.alias_info.is_write for one in func._schema.arguments)
        if not is_given and (writes or _views(func) or _is_elsewhere(args, kwargs)):
            return func(*args, **kwargs)
        absent_args, absent_kwargs = tree_map_only(
            torch.Tensor, lambda one: delayed.find(one) or one, (tuple(args), dict(kwargs))
        )
        if torch.Tag.inplace_view in func.tags:
            return self._reshaped(func, args, kwargs)
        made = self._by_shape(func, absent_args, absent_kwargs)
        written = _written(func, absent_args, absent_kwargs)
        is_unfit = not all(isinstance(one, torch.Tensor) and one.layout is torch.strided
                           for one in tree_leaves(made) if one is not None)  # fmt: skip
        if (
            is_unfit
            or func in _SILENT_WRITERS
            or (written and not _returns_written(func))
            or not all(isinstance(one, Absent) for one in written)
            or (not is_given and not self._is_large(made))
        ):
            # needs values, or has no place on the tape
            return self._at_once(func, args, kwargs, written)
        random = self._drawn(func, absent_args, absent_kwargs)
        if written:
            delayed.tape.add(func, absent_args, absent_kwargs, None, written, random)
            return _returned(func, args, kwargs)
        base = next((one for one in found if one is not None), None) if _views(func) else None
        device = _device(args, kwargs)
        absents = tree_map_only(
            torch.Tensor, lambda one: delayed.tape.absent(one, device, base), made
        )
        changed = [one for one in tree_leaves(absents) if isinstance(one, Absent)]
        delayed.tape.add(func, absent_args, absent_kwargs, absents, changed, random)
        return tree_map_only(Absent, delayed.stand_in, absents)

    def _at_once(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], written: Sequence[Any]
    ) -> Any:
        """With values; what they have become is then what `written` is given."""
        delayed = self._delayed
        args_there, kwargs_there = delayed.values(tuple(args)), delayed.values(dict(kwargs))
        made = func(*args_there, **kwargs_there)
        there = _written(func, args_there, kwargs_there)
        for one, value in zip(written, there, strict=True):
            if isinstance(one, Absent):
                delayed.tape.add(torch.ops.aten.copy_.default, (one, value), {}, None, [one], None)
        whose = dict(zip(map(id, there), _written(func, args, kwargs), strict=True))
        return tree_map_only(torch.Tensor, lambda one: whose.get(id(one), one), made)

    def _reshaped(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """For what gives a tensor another shape or other memory: it becomes the view that an
        operation would return that leaves it as it is."""
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        if name == "set":  # shares the memory of what it is given
            return func(*args, **kwargs)
        view = getattr(getattr(torch.ops.aten, name, None), func._overloadname, None)
        if view is not None and _views(view):
            args[0].set_(self.__torch_dispatch__(view, (), args, kwargs))
            return args[0]
        args[0].set_(self._delayed.value(args[0]))
        return func(*args, **kwargs)

    def _is_large(self, made: Any) -> bool:
        return any(
            one.numel() * one.element_size() >= self._delayed.least_bytes for one in _tensors(made)
        )

    def _by_shape(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Its results on "meta"; a number where there are none without values."""
        meta = torch.device("meta")

        def shape(value: Any) -> Any:
            if isinstance(value, Absent):
                return value.meta
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=meta
            ) if value.layout is torch.strided else value  # fmt: skip

        given, named = tree_map_only((Absent, torch.Tensor), shape, (tuple(args), dict(kwargs)))
        named = {name: value for name, value in named.items() if name != "generator"}
        if any(one.name == "device" for one in func._schema.arguments):
            named["device"] = meta
        if "pin_memory" in named:
            named["pin_memory"] = False
        try:
            return func(*given, **named)
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            return 0

    def _drawn(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Random | None:
        """The state before it drew, which it does here, so that what follows draws as ever."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return None
        device = _device(args, kwargs)
        random = Random.now(kwargs.get("generator") or _generator(device))
        if self._delayed.draws:
            # how many numbers are drawn may depend on what is read; not on what is written
            written = [one for one in _written(func, args, kwargs) if isinstance(one, Absent)]
            is_read = not func._schema.name.endswith("_like")

            def scratch(one: Absent) -> torch.Tensor:
                if is_read and one not in written:
                    return self._delayed.tape.value(one)
                meta = one.meta  # it depends on strides, too
                return torch.empty_strided(
                    meta.shape, meta.stride(), dtype=meta.dtype, device=one.device
                ).zero_()

            func(*tree_map_only(Absent, scratch, args), **tree_map_only(Absent, scratch, kwargs))
        return random


class _Using(OperatorMode):
    def __init__(self, delayed: Delayed) -> None:
        super().__init__()
        self._delayed = delayed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        values = self._delayed.values
        return func(*values(tuple(args)), **values(kwargs or {}))


_ARRAYS = frozenset({torch.Tensor.numpy, torch.Tensor.__array__})
_SHAPE = frozenset({torch.Tensor.stride, torch.Tensor.is_contiguous})


class _Reading(TorchFunctionMode):  # type: ignore[misc]
    """For what reads memory, or how it is laid out, without an operation."""

    def __init__(self, delayed: Delayed) -> None:
        super().__init__()
        self._delayed = delayed

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs, delayed = kwargs or {}, self._delayed
        if func in _ARRAYS and delayed.has(args[0]):
            array = func(delayed.value(args[0]), *args[1:], **kwargs)
            array.flags.writeable = False  # the tensor would not notice
            return array
        if func is torch.Tensor.tolist:
            args = delayed.values(tuple(args))
        elif func in _SHAPE and (absent := delayed.find(args[0])) is not None:
            return func(absent.meta, *args[1:], **kwargs)
        elif func is torch.Tensor.fill_diagonal_ and args[0].dim() == 2 and delayed.has(args[0]):
            return _fill_diagonal(*args, **kwargs)
        return func(*args, **kwargs)


def _fill_diagonal(tensor: torch.Tensor, value: Any, wrap: bool = False) -> torch.Tensor:
    """torch's asks for strides in a way of its own."""
    width = tensor.size(1)
    for start in range(0, tensor.size(0) if wrap else 1, width + 1):
        tensor[start:].diagonal().fill_(value)
    return tensor


def _tensors(nest: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(nest) if isinstance(one, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_elsewhere(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether memory is not the matter: tensors on "meta", and such as have none of this kind."""
    device = kwargs.get("device")
    return (device is not None and torch.device(device).type == "meta") or any(
        one.is_meta or type(one) not in (torch.Tensor, nn.Parameter) or one.is_sparse
        for one in _tensors((args, kwargs))
    )


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors that it changes."""
    found: list[Any] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        found += [one for one in tree_leaves(value) if isinstance(one, (torch.Tensor, Absent))]
    return found


def _returned(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operation returns that writes: what it has written, or nothing."""
    made = _written(func, args, kwargs)
    count = len(func._schema.returns)
    return None if not count else made[0] if count == 1 else tuple(made)


def _returns_written(func: Any) -> bool:
    """Whether all that an operation returns which writes is what it has written."""
    return all(one.alias_info and one.alias_info.is_write for one in func._schema.returns)


def _views(func: Any) -> bool:
    return any(
        one.alias_info and not one.alias_info.is_write for one in func._schema.arguments
    ) and any(one.alias_info for one in func._schema.returns)


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Where its results are."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, (torch.Tensor, Absent))]
    return given[0].device if given else torch.device("cpu")


def _generator(device: torch.device) -> torch.Generator:
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]

"""Activation checkpointing: what a module computes on the way is computed again for the backward.

Over torch.utils.checkpoint, not reentrant, so nested arguments, keywords, autocast and unused
outputs work. Source: "Activation Checkpointing APIs" of the public documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

from muster_modelparallel.errors import SettingsError

EACH = "each"
CONTIGUOUS = "contiguous"


class _Recomputed:
    """A module's `forward` while the module is checkpointed.

    It hangs on the module itself and finds it anew in a copy, so that copies of a model run their
    own parameters. `length`: how many modules of a Sequential go together, 0 for a whole module.
    """

    def __init__(self, module: nn.Module, preserve_rng_state: bool, length: int) -> None:
        own = module.__dict__.get("forward")  # that of hooks of other packages
        self.inner: Callable[..., Any] | None = own.inner if isinstance(own, _Recomputed) else own
        self.module = module
        self.preserve_rng_state = preserve_rng_state
        self.length = length

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.length:
            assert isinstance(self.module, nn.Sequential)
            return _in_pieces(self.module, args, self.length, self.preserve_rng_state)
        return _recompute(self._forward, args, kwargs, self.preserve_rng_state)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.inner is not None:
            return self.inner(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


def set_activation_checkpointing(
    module: nn.Module,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
    strategy: str = EACH,
) -> None:
    """From now on every call of the module that records gradients is checkpointed.

    preserve_rng_state: the second computation draws the random numbers of the first. strategy, for
    an nn.Sequential: "each" of its modules alone, "contiguous" all that are on one partition
    together, "group_N" N at a time. pack_args_as_tuple: accepted; tuples work either way. Each
    module of an nn.ModuleList is checkpointed alone. Raises SettingsError for a strategy that is
    not known or that the module cannot follow.
    """
    _check_module(module)
    length = _length(module, strategy)
    if isinstance(module, nn.ModuleList):  # nobody calls the list itself
        for each in module:
            set_activation_checkpointing(each, preserve_rng_state)
        return
    object.__setattr__(module, "forward", _Recomputed(module, preserve_rng_state, length))


def checkpoint(
    module: nn.Module, *args: Any, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:
    """Calls the module, checkpointed. Raises SettingsError for what is no module."""
    _check_module(module)
    return _recompute(module, args, kwargs, preserve_rng_state)


def checkpoint_sequential(
    sequential_module: nn.Sequential,
    input: Any,
    strategy: str = EACH,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> Any:
    """Calls the modules of a Sequential, checkpointed; the arguments are those of
    `set_activation_checkpointing`. input: a tensor, or a tuple for a first module that takes one.
    """
    if not isinstance(sequential_module, nn.Sequential):
        raise SettingsError(
            f"checkpoint_sequential was given a {type(sequential_module).__name__}",
            "it takes an nn.Sequential; checkpoint takes any module",
        )
    length = _length(sequential_module, strategy)
    return _in_pieces(sequential_module, (input,), length, preserve_rng_state)


def _in_pieces(
    module: nn.Sequential, args: tuple[Any, ...], length: int, preserve_rng_state: bool
) -> Any:
    (value,) = args
    for piece in _pieces(list(module), length):
        value = _recompute(_chain(piece), (value,), {}, preserve_rng_state)
    return value


def _pieces(modules: Sequence[nn.Module], length: int) -> Iterator[Sequence[nn.Module]]:
    for start in range(0, len(modules), length):
        yield modules[start : start + length]


def _chain(modules: Sequence[nn.Module]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for module in modules:
            value = module(value)
        return value

    return run


def _recompute(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    preserve_rng_state: bool,
) -> Any:
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    return torch.utils.checkpoint.checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **kwargs
    )


def _length(module: nn.Module, strategy: str) -> int:
    """How many modules of a Sequential go together; 0 for another module, which is one whole."""
    group = re.fullmatch(r"group_([1-9][0-9]*)", strategy) if isinstance(strategy, str) else None
    if strategy not in (EACH, CONTIGUOUS) and group is None:
        raise SettingsError(
            f"strategy {strategy!r} of activation checkpointing is not known",
            "it is 'each', 'contiguous' or 'group_N', such as 'group_2'",
        )
    if not isinstance(module, nn.Sequential):
        if strategy != EACH:
            raise SettingsError(
                f"strategy {strategy!r} is for an nn.Sequential, not for {type(module).__name__}",
                "leave strategy out",
            )
        return 0
    if group is not None:
        return int(group[1])
    return 1 if strategy == EACH else max(1, len(module))  # one partition has them all


def _check_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise SettingsError(
            f"activation checkpointing was given {module!r}", "it takes an instance of nn.Module"
        )

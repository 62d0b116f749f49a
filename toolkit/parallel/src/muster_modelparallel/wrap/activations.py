"""Activation checkpointing: what a module computed on the way forward is computed again on the way
back instead of being kept.

Names and arguments as in the developer guide, "Activation Checkpointing"; what does it is
torch.utils.checkpoint, without reentry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.utils import checkpoint as recomputation

from muster_modelparallel.errors import SettingsError

_STRATEGIES = "each, contiguous or group_N with N of at least 1"


def set_activation_checkpointing(
    module: nn.Module,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
    strategy: str = "each",
) -> None:
    """Checkpoints every later call of the module that needs gradients. Names of parameters stay,
    and hooks on the module run once. A second call takes the place of the first.

    `preserve_rng_state`: dropout drops the same elements again. `strategy`: of an nn.Sequential,
    whether each of its modules, all together (`contiguous`: those of one partition) or N at a time
    are computed again; each of an nn.ModuleList. `pack_args_as_tuple` changes nothing: the modules
    of a sequence pass on one value, which may be a tuple. Raises SettingsError for other
    strategies and for what is no module.
    """
    _require(module, nn.Module, "set_activation_checkpointing")
    size = _size_of_groups(strategy)
    if isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and size == 1):
        _forget(module)
        for child in module:
            _Recomputed.put_in(child, preserve_rng_state, 0)
        return
    if size != 1 and not isinstance(module, nn.Sequential):
        raise SettingsError(
            f"strategy {strategy!r} was given for a {type(module).__name__}",
            "it is for an nn.Sequential: leave it out",
        )
    for child in module if isinstance(module, nn.Sequential) else ():
        _forget(child)
    _Recomputed.put_in(module, preserve_rng_state, size if isinstance(module, nn.Sequential) else 0)


def checkpoint(
    module: nn.Module, *args: Any, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:
    """One call of the module, checkpointed. Raises SettingsError for what is no module."""
    _require(module, nn.Module, "checkpoint")
    return _recompute(module, preserve_rng_state, args, kwargs)


def checkpoint_sequential(
    sequential_module: nn.Sequential,
    input: Any,
    strategy: str = "each",
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> Any:
    """One call of the sequence, checkpointed as `set_activation_checkpointing` would.
    Raises SettingsError for other strategies and for what is no nn.Sequential."""
    _require(sequential_module, nn.Sequential, "checkpoint_sequential")
    size = _size_of_groups(strategy)
    return _in_groups(list(sequential_module), size, preserve_rng_state, input)


class _Recomputed:
    """Stands as a module's `forward`: the forward of its class, checkpointed. `size`: modules of a
    sequence that are computed again together, 0 for a module that is computed again whole, -1 for
    all of a sequence."""

    def __init__(self, module: nn.Module, preserve_rng_state: bool, size: int) -> None:
        self._module = module
        self._preserve = preserve_rng_state
        self._size = size
        self._given = module.__dict__.get("forward")  # what another library has put there

    @classmethod
    def put_in(cls, module: nn.Module, preserve_rng_state: bool, size: int) -> None:
        _forget(module)
        module.forward = cls(module, preserve_rng_state, size)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._size:
            return _in_groups(list(self._module), self._size, self._preserve, *args, **kwargs)
        return _recompute(self._plain, self._preserve, args, kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """Of the forward that it stands for, which libraries look at."""
        return inspect.signature(self._plain)

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        if self._given is not None:
            return self._given(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)

    def leave(self) -> None:
        """What stood there before stands there again."""
        if self._given is None:
            del self._module.forward
        else:
            self._module.forward = self._given


def _in_groups(modules: list[nn.Module], size: int, preserve_rng_state: bool, input: Any) -> Any:
    """A sequence, `size` modules at a time; all at once for -1."""
    size = size if size > 0 else max(1, len(modules))
    for first in range(0, len(modules), size):
        input = _recompute(_chain(modules[first : first + size]), preserve_rng_state, (input,), {})
    return input


def _chain(modules: Iterable[nn.Module]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for module in modules:
            value = module(value)
        return value

    return run


def _recompute(
    function: Callable[..., Any],
    preserve_rng_state: bool,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    return recomputation.checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **kwargs
    )


def _forget(module: nn.Module) -> None:
    if isinstance(ours := module.__dict__.get("forward"), _Recomputed):
        ours.leave()


def _size_of_groups(strategy: Any) -> int:
    """Modules that are computed again together; -1 for all. Raises SettingsError."""
    if strategy in ("each", "contiguous"):
        return 1 if strategy == "each" else -1
    number = strategy.removeprefix("group_") if isinstance(strategy, str) else ""
    if number == strategy or not (number.isascii() and number.isdigit() and int(number)):
        raise SettingsError(f"strategy is {strategy!r}", f"use {_STRATEGIES}")
    return int(number)


def _require(module: Any, kind: type, name: str) -> None:
    if not isinstance(module, kind):
        article = "takes an nn.Sequential" if kind is nn.Sequential else "takes an nn.Module"
        raise SettingsError(f"{name} {article}, and was given {module!r}", "give it one")

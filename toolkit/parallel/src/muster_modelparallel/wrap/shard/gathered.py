"""Modules that stand around the user's, for torch's `fully_shard`: the user's keep their class,
their hooks and their place in the model.

What torch has no public name for is asked here alone: which parameters a group has, and the
gradients that it has not reduced yet.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from muster_modelparallel.model.nests import map_tensors


class Gathered(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Stands around the forward of a module of stage `stage`. `is_aside`: for now it is called as
    if nothing were cut."""

    def __init__(self, module: nn.Module, stage: int) -> None:
        super().__init__()
        self.module = module
        self.stage = stage
        self.has_run = False
        self.is_aside = False
        self.real = module.forward
        module.__dict__["forward"] = _Entry(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.has_run = True
        return _without_views(self.real(*args, **kwargs))


class Root(nn.Module):  # type: ignore[misc]
    """Stands around whole passes, and owns what no unit has."""

    def __init__(self, module: nn.Module, units: Iterable[nn.Module]) -> None:
        super().__init__()
        self.module = module
        self.units = nn.ModuleList(units)

    def forward(self, run: Callable[[], Any]) -> Any:
        """What `run` gives. It has its arguments already, so that they come to it as they are."""
        return run()


class _Entry:
    """The forward of a module that others call. Not a function: a copy of the module would share
    it, and compute with this module's parameters; fully_shard refuses to be copied."""

    def __init__(self, around: Gathered) -> None:
        self._around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        around = self._around
        return around.real(*args, **kwargs) if around.is_aside else around(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """Of the forward that it stands for, which libraries look at."""
        return inspect.signature(self._around.real)


def set_parameter(module: nn.Module, name: str, one: nn.Parameter) -> None:
    """Some modules keep a list of their parameters, too."""
    if type(module).__setattr__ is nn.Module.__setattr__:
        module._parameters[name] = one
    else:
        setattr(module, name, one)


def refresh_dtypes(modules: Iterable[Any]) -> None:
    """To be called when other parameters need gradients than before: fully_shard has looked at the
    types of those that did."""
    for group in _groups(modules):
        group._init_mp_dtypes()


def forget_gradients(modules: Iterable[Any]) -> None:
    """Those that were not reduced."""
    for one in _cut_parameters(modules):
        one.unsharded_accumulated_grad = None
        one._unsharded_param.grad = None


def unreduced(modules: Iterable[Any]) -> list[tuple[Any, bool]]:
    """The parameters that are whole now and need a gradient, and whether they have one."""
    return [
        (
            one._unsharded_param,
            one._unsharded_param.grad is not None or one.unsharded_accumulated_grad is not None,
        )
        for one in _cut_parameters(modules)
        if one.sharded_param.requires_grad
    ]


def _cut_parameters(modules: Iterable[Any]) -> Iterator[Any]:
    for group in _groups(modules):
        yield from (one for one in group.fsdp_params if hasattr(one, "_unsharded_param"))


def _groups(modules: Iterable[Any]) -> Iterator[Any]:
    for module in modules:
        yield from module._get_fsdp_state()._fsdp_param_groups


def _without_views(output: Any) -> Any:
    """A view that is changed in place would lose the hook by which its unit is gathered again."""
    return map_tensors(lambda one: one.clone() if _is_view(one) else one, output)


def _is_view(one: torch.Tensor) -> bool:
    return one.requires_grad and one._base is not None

"""What a script says of modules while it makes them: their stage, and tensor parallelism.

Source: the public documentation. With one stage and tensors that are not cut, stages are checked
and recorded, and tensor parallelism has nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from muster_modelparallel.errors import NotBuiltError, SettingsError
from muster_modelparallel.run.session import current

_STAGE = "_modelparallel_stage"


@contextmanager
def partition(index: int) -> Iterator[None]:
    """Every module that is created inside belongs to that stage; the innermost context counts.

    Stages count from 0. Without effect where `auto_partition` is true, as it is unless said
    otherwise. Raises SettingsError for a stage that is not there.
    """
    _check_stage(index, f"partition({index!r})")
    before = nn.Module.__init__

    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        object.__setattr__(self, _STAGE, index)

    nn.Module.__init__ = init
    try:
        yield
    finally:
        nn.Module.__init__ = before


def set_partition(module: nn.Module, index: int) -> None:
    """The module, with all modules in it, belongs to that stage, whatever was said before.

    Raises SettingsError for a stage that is not there.
    """
    _check_stage(index, f"set_partition(..., {index!r})")
    for each in module.modules():
        object.__setattr__(each, _STAGE, index)


def get_partition(module: nn.Module) -> int | None:
    """The stage that was said of the module; None where nothing was said."""
    found = module.__dict__.get(_STAGE)
    return found if isinstance(found, int) else None


@contextmanager
def tensor_parallelism(enabled: bool = True, **tensor_parallel_config: Any) -> Iterator[None]:
    """Modules that are created inside are cut over the ranks of the tensor-parallel group.

    With a group of one there is nothing to cut. Raises NotBuiltError where there is.
    """
    check_whole(enabled, "tensor_parallelism")
    yield


def set_tensor_parallelism(
    module: nn.Module, enabled: bool = True, **tensor_parallel_config: Any
) -> None:
    """`tensor_parallelism` for the modules in one that exists already. Raises NotBuiltError."""
    check_whole(enabled, "set_tensor_parallelism")


def _check_stage(index: int, name: str) -> None:
    count = current().config.pipeline_parallel_degree
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise SettingsError(
            f"{name}: the job has {count} partition{'s' if count > 1 else ''}, counted from 0",
            'set "pipeline_parallel_degree" to at least the largest index + 1',
        )


def check_whole(enabled: bool, name: str) -> None:
    """Raises NotBuiltError where tensors are to be cut over more than one rank."""
    degree = current().config.tensor_parallel_degree
    if enabled and degree > 1:
        raise NotBuiltError(
            f"{name}: tensors are to be cut over {degree} ranks, which comes with a later release "
            "of muster",
            'set "tensor_parallel_degree" to 1',
        )

"""How a model is made: in which dtype, and when its parameters get memory and values.

Source: the public documentation of `model_creation` and `delay_param_initialization`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from muster_modelparallel.errors import SettingsError, StepError
from muster_modelparallel.model.delayed import Delayed
from muster_modelparallel.model.tape import default_dtype
from muster_modelparallel.run.session import Session, current
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.partitions import check_whole
from muster_modelparallel.wrap.replicas import broadcast_tensors


@contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Parameters of the model that is created and initialised inside get their memory and their
    values when it is known which rank holds them: at the first step that trains or, where they are
    cut over replicas of one partition, in DistributedModel. Until then they have their shapes, and
    NaN for values. The values are those that they would have had, bit for bit.

    Without effect where each rank holds the whole model, and after DistributedModel. Parameters
    that are not the wrapped model's get no values. Raises NotStartedError before `init`.
    """
    session = current()
    config = session.config
    is_whole = session.topology.pipeline == config.shard_degree == 1 and session.plan is None
    if not enabled or is_whole or session.model is not None:
        yield
        return
    if session.delayed is None:
        session.delayed = Delayed(draws=session.plan is None)
    with session.delayed.recording():
        yield


@contextmanager
def model_creation(
    tensor_parallelism: bool = False,
    dtype: torch.dtype | None = None,
    **tensor_parallel_config: Any,
) -> Iterator[None]:
    """`tensor_parallelism` and, with the parameter delayed_parameter_initialization,
    `delay_param_initialization` at once. dtype: of the floating-point parameters that are created
    inside; None leaves torch's default.

    Raises NotBuiltError for tensor parallelism over more than one rank, SettingsError for a dtype
    that parameters cannot have.
    """
    if "zero_init" in tensor_parallel_config:
        current().note(
            "zero_init has no effect: set delayed_parameter_initialization; parameters have "
            "no ds_shape and ds_tensor, but shape and, once they are cut, to_local()"
        )
    check_whole(tensor_parallelism, "model_creation")
    if dtype is not None and not dtype.is_floating_point:
        raise SettingsError(
            f"model_creation was given dtype={dtype}", "parameters are of a floating-point dtype"
        )
    delays = current().config.delayed_parameter_initialization
    with default_dtype(dtype or torch.get_default_dtype()), delay_param_initialization(delays):
        yield


@contextmanager
def recording(session: Session) -> Iterator[None]:
    """Inside, parameters without memory can be written and converted."""
    with nullcontext() if session.delayed is None else session.delayed.recording():
        yield


def check_values(session: Session, module: nn.Module) -> None:
    """Raises StepError for a parameter that was copied or converted while it had no values."""
    delayed = session.delayed
    if delayed is None:
        return
    for name, one in module.named_parameters():
        if not delayed.has(one) and one.numel() and bool(one.detach().isnan().all()):
            raise StepError(
                f"the parameter {name} is not a number: it was copied or converted after "
                "delay_param_initialization, before it had its values",
                "do so inside, or after the first step",
            )


def make_parameters(session: Session, parameters: Iterable[torch.Tensor]) -> None:
    """Gives those their memory that have none yet, and the values of the first replica. Collective
    over the replicas, with the same parameters in one order."""
    delayed = session.delayed
    if delayed is None:
        return
    made = [one for one in parameters if delayed.has(one)]
    delayed.make(*made)
    if made and session.topology.dp_size > 1:
        broadcast_tensors(made, session.mesh.group(GroupKind.DP))

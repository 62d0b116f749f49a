"""What DistributedModel is given: checked, and brought into one form."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from muster_modelparallel.errors import SettingsError, StepError
from muster_modelparallel.run.outputs import StepOutput
from muster_modelparallel.run.session import Session
from muster_modelparallel.settings.config import Config
from muster_modelparallel.shape.topology import GroupKind


def make_group(session: Session) -> Any:
    """The DP group of this rank once more, for its model alone: collectives of the script may come
    between those of a backward pass, and not at the same place on all ranks. Collective; every rank
    takes part in the making of all such groups, in one order."""
    mine = None
    for ranks in session.topology.all_groups(GroupKind.DP):
        group = dist.new_group(list(ranks))  # of the world's backend, as the groups of the mesh
        if session.mesh.rank in ranks:
            mine = group
    return mine


def listed(tensors: Any, grad_tensors: Any) -> tuple[list[Any], list[Any]]:
    """Tensors and their gradients, None for those without."""
    outputs = [tensors] if isinstance(tensors, (torch.Tensor, StepOutput)) else list(tensors)
    if grad_tensors is None:
        return outputs, [None] * len(outputs)
    is_one = isinstance(grad_tensors, torch.Tensor)
    return outputs, [grad_tensors] if is_one else list(grad_tensors)


def scaled(tensor: Any, seed: Any, scale: float) -> Any:
    if seed is not None:
        return seed * scale
    # for others torch says that they need a gradient
    return torch.full_like(tensor, scale) if tensor.numel() == 1 else None


def half_of(config: Config) -> torch.dtype | None:
    """The type of the parameters of a model; None where it keeps its own."""
    if config.bf16:
        return torch.bfloat16
    return torch.float16 if config.fp16 or config.fp16_params else None


def check(session: Session, module: Any, trace_device: str, trace_times: bool) -> None:
    if session.model is not None:
        raise StepError(
            "a second DistributedModel was made", "wrap one model only, which may hold others"
        )
    if not isinstance(module, nn.Module):
        raise SettingsError(f"DistributedModel was given {module!r}", "give it a torch.nn.Module")
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise SettingsError(
            "DistributedModel was given a model in DistributedDataParallel",
            "give it the model itself: it does data parallelism as well",
        )
    if trace_device not in ("cpu", "gpu"):
        raise SettingsError(f"trace_device is {trace_device!r}", "use 'cpu' or 'gpu'")
    if trace_times and trace_device == "cpu":
        raise SettingsError(
            "trace_execution_times is True and trace_device is 'cpu'", "leave one of them out"
        )
    every = itertools.chain(module.parameters(), module.buffers())
    if any(nn.parameter.is_lazy(each) for each in every):
        raise SettingsError(
            "the model has lazy modules, whose parameters have no shape yet",
            "run the model once before DistributedModel",
        )


def check_numbers(backward_passes_per_step: Any, bucket_cap_mb: Any) -> None:
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise SettingsError(
            f"backward_passes_per_step is {backward_passes_per_step!r}", "use 1, 2, ..."
        )
    if not bucket_cap_mb > 0:
        raise SettingsError(f"bucket_cap_mb is {bucket_cap_mb!r}", "use a number above 0")

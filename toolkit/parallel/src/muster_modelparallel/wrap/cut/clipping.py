"""Gradients scaled down to a norm that is taken over all stages of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from muster_modelparallel.run.session import Session
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.cut.stages import Stages

_TINY = 1e-6  # as torch has it


def clip(
    parameters: Iterable[Any],
    session: Session,
    stages: Stages | None,
    max_norm: float,
    norm_type: float = 2.0,
) -> Any:
    """As torch.nn.utils.clip_grad_norm_, of this rank's parameters and those of the other stages,
    all of whose ranks come here: each counts once. Returns the norm that was, alike on all."""
    if stages is None:
        return torch.nn.utils.clip_grad_norm_(list(parameters), max_norm, norm_type)
    found = [one for one in parameters if one.grad is not None]
    total = total_norm(found, session, stages, norm_type)
    factor = (max_norm / (total + _TINY)).clamp(max=1.0)
    for one in found:
        one.grad.mul_(factor.to(one.grad.device))
    return total


def total_norm(
    parameters: list[Any], session: Session, stages: Stages, norm_type: float = 2.0
) -> torch.Tensor:
    """The norm of the gradients of this rank's parameters and those of the other stages, all of
    whose ranks come here: each counts once."""
    names = {id(one): name for name, one in stages.module.named_parameters()}
    gradients = [one.grad for one in parameters if stages.speaks_for(names.get(id(one), ""))]
    norm_type = float(norm_type)
    is_max = norm_type == float("inf")
    device = session.mesh.device
    total = torch.zeros((), device=device, dtype=torch.get_default_dtype())
    if gradients:
        norms = [torch.linalg.vector_norm(one, norm_type).to(total) for one in gradients]
        stacked = torch.stack(norms)
        total = stacked.max() if is_max else (stacked**norm_type).sum()
    op = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM
    dist.all_reduce(total, op=op, group=session.mesh.group(GroupKind.PP))
    return total if is_max else total ** (1.0 / norm_type)

"""Gradients scaled down to a norm that is taken over all stages of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
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
    gradient: Callable[[Any], Any] = attrgetter("grad"),
) -> Any:
    """As torch.nn.utils.clip_grad_norm_, of this rank's parameters and those of the other stages,
    all of whose ranks come here: each counts once. Returns the norm that was, alike on all.

    gradient: of a parameter, what is scaled."""
    found = [(one, gradient(one)) for one in parameters if gradient(one) is not None]
    total = total_norm(found, session, stages, norm_type)
    factor = (max_norm / (total + _TINY)).clamp(max=1.0)
    for _, grad in found:
        grad.mul_(factor.to(grad.device))
    return total


def total_norm(
    found: Iterable[tuple[Any, Any]],
    session: Session,
    stages: Stages | None,
    norm_type: float = 2.0,
) -> torch.Tensor:
    """The norm of the gradients of this rank's parameters, each with its own, and of those of the
    other stages, all of whose ranks come here: each counts once."""
    norm_type = float(norm_type)
    if stages is not None:
        names = {id(one): name for name, one in stages.module.named_parameters()}
        found = [pair for pair in found if stages.speaks_for(names.get(id(pair[0]), ""))]
    dtype = torch.promote_types(torch.float32, torch.get_default_dtype())
    zero = torch.zeros((), device=session.mesh.device, dtype=dtype)
    norms = [torch.linalg.vector_norm(grad, norm_type).to(zero) for _, grad in found]
    stacked = torch.stack(norms or [zero])
    if stages is None:
        return torch.linalg.vector_norm(stacked, norm_type)
    is_max = norm_type == float("inf")
    total = stacked.max() if is_max else (stacked**norm_type).sum()
    op = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM
    dist.all_reduce(total, op=op, group=session.mesh.group(GroupKind.PP))
    return total if is_max else total ** (1.0 / norm_type)

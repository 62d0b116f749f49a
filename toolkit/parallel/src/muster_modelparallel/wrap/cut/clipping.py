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
    dtype = torch.promote_types(torch.float32, torch.get_default_dtype())
    kind = {"device": session.mesh.device, "dtype": dtype}
    if stages is None:
        norms = [torch.linalg.vector_norm(grad, norm_type).to(**kind) for _, grad in found]
        return torch.linalg.vector_norm(torch.stack(norms or [torch.zeros((), **kind)]), norm_type)
    names = {id(one): name for name, one in stages.module.named_parameters()}
    gradients = [grad for one, grad in found if stages.speaks_for(names.get(id(one), ""))]
    is_max = norm_type == float("inf")
    total = torch.zeros((), **kind)
    if gradients:
        norms = [torch.linalg.vector_norm(one, norm_type).to(total) for one in gradients]
        stacked = torch.stack(norms)
        total = stacked.max() if is_max else (stacked**norm_type).sum()
    op = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM
    dist.all_reduce(total, op=op, group=session.mesh.group(GroupKind.PP))
    return total if is_max else total ** (1.0 / norm_type)

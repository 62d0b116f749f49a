"""Gradients scaled down to a norm that is taken over all stages of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist

from muster_modelparallel.run.session import Session
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.shard.values import is_cut, part

_TINY = 1e-6  # as torch has it


def clip(
    parameters: Iterable[Any],
    session: Session,
    model: Any,
    max_norm: float,
    norm_type: float = 2.0,
    gradient: Callable[[Any], Any] = attrgetter("grad"),
) -> Any:
    """As torch.nn.utils.clip_grad_norm_, of this rank's parameters and those of the other stages,
    all of whose ranks come here: each counts once. Returns the norm that was, alike on all.

    gradient: of a parameter, what is scaled."""
    found = [(one, gradient(one)) for one in parameters if gradient(one) is not None]
    total = total_norm(found, session, model, norm_type)
    factor = (max_norm / (total + _TINY)).clamp(max=1.0)
    for _, grad in found:
        part(grad).mul_(factor.to(grad.device))
    return total


def total_norm(
    found: Iterable[tuple[Any, Any]],
    session: Session,
    model: Any,
    norm_type: float = 2.0,
) -> torch.Tensor:
    """The norm of the gradients of this rank's parameters, each with its own, of those of the other
    stages, and of the other parts of those that are cut; all of whose ranks come here: each counts
    once. `model`: the DistributedModel."""
    norm_type = float(norm_type)
    stages, sharding = getattr(model, "stages", None), getattr(model, "sharding", None)
    if stages is not None:
        names = {id(one): name for name, one in stages.module.named_parameters()}
        found = [pair for pair in found if stages.speaks_for(names.get(id(pair[0]), ""))]
    dtype = torch.promote_types(torch.float32, torch.get_default_dtype())
    zero = torch.zeros((), device=session.mesh.device, dtype=dtype)
    gradients = [grad for _, grad in found]
    is_max = norm_type == float("inf")

    def together(some: Iterable[Any]) -> torch.Tensor:
        held = [one for one in map(part, some) if one.numel()]
        norms = [torch.linalg.vector_norm(one, norm_type).to(zero) for one in held]
        stacked = torch.stack(norms or [zero])
        return stacked.max() if is_max else (stacked**norm_type).sum()

    def over(group: Any, total: torch.Tensor) -> torch.Tensor:
        op = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM
        dist.all_reduce(total, op=op, group=group)
        return total

    total = together(grad for grad in gradients if not is_cut(grad))
    if sharding is not None:
        cut = together(grad for grad in gradients if is_cut(grad))
        cut = over(sharding.group, cut)
        total = torch.maximum(total, cut) if is_max else total + cut
    if stages is not None:
        total = over(session.mesh.group(GroupKind.PP), total)
    return total if is_max else total ** (1.0 / norm_type)

"""Replicas of a model: the same parameters and buffers on every rank of a group."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from muster_modelparallel.errors import StepError

_BROADCAST_BYTES = 25 * 1024 * 1024


def require_same_model(named: Iterable[tuple[str, Any]], group: Any) -> None:
    """Raises StepError on all ranks of `group`, one for tensors on the CPU, whose models differ in
    names, shapes or types: their collectives would not fit together."""
    lines = [f"{name} {tuple(one.shape)} {one.dtype} {one.requires_grad}" for name, one in named]
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    words = [*len(lines).to_bytes(8, "big"), *digest]
    mine = torch.tensor(words, dtype=torch.uint8, device="cpu")
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    for place, other in enumerate(found):
        if not torch.equal(other, found[0]):
            counts = [int.from_bytes(bytes(each[:8].tolist()), "big") for each in found]
            ranks = [dist.get_global_rank(group, each) for each in (place, 0)]
            raise StepError(
                f"the model of rank {ranks[0]} ({counts[place]} parameters and buffers) is not "
                f"that of rank {ranks[1]} ({counts[0]}): names, shapes, types or requires_grad "
                "differ",
                "build the same model on all ranks before DistributedModel",
            )


@torch.no_grad()  # type: ignore[untyped-decorator]
def broadcast_tensors(tensors: Sequence[Any], group: Any, place: int = 0) -> None:
    """Gives `tensors` the values of those of the rank at that place of the group. Collective."""
    source = dist.get_global_rank(group, place)
    is_source = dist.get_rank(group) == place
    for chunk in _chunks([each for each in tensors if each.numel()]):
        flat = torch.cat([each.detach().reshape(-1) for each in chunk])
        # as bytes: not every backend knows every type
        dist.broadcast(flat.view(torch.uint8), source, group=group)
        if is_source:
            continue
        pieces = flat.split([each.numel() for each in chunk])
        for each, piece in zip(chunk, pieces, strict=True):
            each.copy_(piece.view(each.shape))


def _chunks(tensors: Sequence[Any]) -> Iterator[list[Any]]:
    """Tensors of one type and device that travel together."""
    kinds: dict[Any, list[Any]] = {}
    for each in tensors:
        kinds.setdefault((each.dtype, each.device), []).append(each)
    for alike in kinds.values():
        chunk: list[Any] = []
        for each in alike:
            if chunk and sum(one.nbytes for one in chunk) + each.nbytes > _BROADCAST_BYTES:
                yield chunk
                chunk = []
            chunk.append(each)
        yield chunk

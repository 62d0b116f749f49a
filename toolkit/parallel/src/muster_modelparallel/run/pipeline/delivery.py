"""Values that one rank of a pipeline has and the others need: a step's arguments, the outputs.

Tensors travel as one block of bytes, and what they are like as JSON, once for each new likeness.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from muster_modelparallel.errors import StepError
from muster_modelparallel.model.nests import filled, leaves
from muster_modelparallel.run.pipeline.waits import Waits

_ALIGNED = 16  # bytes
_MOST = 64  # likenesses that are remembered
_BASIC = (type(None), bool, int, float, str)


class Header(NamedTuple):
    """What goes before the arguments of a step. `seed`: of the first rank's generator."""

    seed: int


class Delivery:
    """From the first rank of a process group to all others. Collective."""

    def __init__(self, group: Any, device: torch.device, waits: Waits) -> None:
        self._group = group
        self._device = device
        self._waits = waits
        self._ranks: list[int] = dist.get_process_group_ranks(group)
        self._is_first = dist.get_rank() == self._ranks[0]
        self._known: dict[bytes, int] = {}

    def arguments(
        self,
        values: Any,
        name: str,
        modes: tuple[bool, bool] = (True, True),
        needing: bytes = b"",
    ) -> tuple[Any, Header]:
        """The first rank's tensors and plain values in the containers of `values`; other objects,
        and tensors that are not dense, stay this rank's own. Raises StepError where this rank's
        values have another structure than the first one's, or it is in other modes: whether the
        model trains, whether gradients are on; or other parameters need gradients (`needing`).
        """
        mine = _apart(leaves(values)) if self._is_first else leaves(values)
        likeness = json.dumps([_like(leaf) for leaf in mine]).encode() if self._is_first else b""
        others = self._ranks[1:] if self._is_first else self._ranks[:1]
        way = "to go to" if self._is_first else "from"
        with self._waits.waiting(
            f"rank {dist.get_rank()} waits for the arguments of {name} {way} rank "
            f"{', '.join(map(str, others))}"
        ):
            likeness, header = self._header(likeness, modes, needing)
            likes = json.loads(likeness)
            if len(likes) != len(mine):
                raise StepError(
                    f"{name} got {len(mine)} values on rank {dist.get_rank()} and {len(likes)} on "
                    f"rank {self._ranks[0]}, the first of the pipeline",
                    "call it with the same structure on all ranks; values are the first one's",
                )
            tensors = [
                _made(like, self._device) if not self._is_first else leaf
                for like, leaf in zip(likes, mine, strict=True)
                if isinstance(like, list)
            ]
            self.tensors(tensors, 0)
        if self._is_first:
            return filled(values, iter(mine)), header
        came = iter(tensors)
        new = [_leaf(like, leaf, came) for like, leaf in zip(likes, mine, strict=True)]
        return filled(values, iter(new)), header

    def tensors(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        """Fills them with the values of the group's rank `source`."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        starts, total = [], 0
        for size in sizes:
            starts.append(total)
            total += -(-size // _ALIGNED) * _ALIGNED
        if not total:
            return
        block = torch.empty(total, dtype=torch.uint8, device=self._device)
        places = list(zip(tensors, starts, sizes, strict=True))
        mine = self._ranks[source] == dist.get_rank()
        if mine:
            for tensor, start, size in places:
                block[start : start + size] = _bytes(tensor)
        dist.broadcast(block, self._ranks[source], group=self._group)
        if not mine:
            for tensor, start, size in places:
                data = block[start : start + size].view(tensor.dtype).view(tensor.shape)
                with torch.no_grad():
                    tensor.copy_(data)

    def _header(
        self, likeness: bytes, modes: tuple[bool, bool], needing: bytes
    ) -> tuple[bytes, Header]:
        """What the arguments are like, and the seed. A likeness that was sent before is named by
        its number alone."""
        known = self._known.get(likeness, -1)
        seed = torch.initial_seed() & ((1 << 63) - 1)
        mine = zlib.crc32(needing)
        head = torch.tensor([known, len(likeness), seed, mine, *modes], device=self._device)
        dist.broadcast(head, self._ranks[0], group=self._group)
        known, length, seed, firsts, *first = head.tolist()
        if first != [*modes]:
            raise StepError(
                f"rank {dist.get_rank()} is in other modes than rank {self._ranks[0]}, the first "
                f"of the pipeline: training {modes[0]} and {bool(first[0])}, gradients {modes[1]} "
                f"and {bool(first[1])}",
                "call model.train(), model.eval() and torch.no_grad() alike on all ranks",
            )
        if firsts != mine:
            raise StepError(
                f"on rank {dist.get_rank()} other parameters have requires_grad than on rank "
                f"{self._ranks[0]}, the first of the pipeline",
                "set it alike on all ranks, also of parameters that lie on others",
            )
        if known >= 0:
            return list(self._known)[known], Header(seed)
        text = torch.empty(length, dtype=torch.uint8, device=self._device)
        if self._is_first:
            text.copy_(torch.frombuffer(bytearray(likeness), dtype=torch.uint8))
        dist.broadcast(text, self._ranks[0], group=self._group)
        likeness = bytes(text.cpu().numpy())
        if len(self._known) == _MOST:
            self._known.clear()
        self._known[likeness] = len(self._known)
        return likeness, Header(seed)


def _like(leaf: Any) -> Any:
    """A list for a tensor, a dictionary for a plain value, null for what is each rank's own."""
    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_quantized:
        name = str(leaf.dtype).removeprefix("torch.")
        return [name, list(leaf.shape), leaf.requires_grad, leaf.device.type]
    return {"value": leaf} if type(leaf) in _BASIC else None


# What arrives is written into tensors made by these descriptions, so no code of others is run.


def _made(like: Any, device: torch.device) -> torch.Tensor:
    """Room for a tensor. One that was on the CPU stays there; one on a GPU comes to this rank's."""
    dtype, shape, grad, kind = like
    place = device if kind == device.type else torch.device(kind)
    return torch.empty(shape, dtype=getattr(torch, dtype), device=place).requires_grad_(grad)


def _leaf(like: Any, own: Any, came: Any) -> Any:
    """The first rank's value where it came, else this rank's own object."""
    if isinstance(like, list):
        return next(came)
    return own if like is None else like["value"]


def _apart(found: list[Any]) -> list[Any]:
    """Tensors that share memory get their own, as they have on the other ranks."""
    seen: set[int] = set()
    made = list(found)
    for at, leaf in enumerate(found):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel():
            place = leaf.untyped_storage().data_ptr()
            if place in seen:
                made[at] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
            seen.add(place)
    return made


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its values in order, whatever its strides and its type: not every backend knows every one."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)

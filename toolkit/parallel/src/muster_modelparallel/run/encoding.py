"""Objects as bytes, between ranks of one job.

What torch.load reads with weights_only=True is read so, and runs no code. Everything else that can
be pickled is unpickled, as documented for the library: ranks of a job trust each other. The first
byte says which of the two it is.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import torch

_PLAIN = b"\0"
_PICKLED = b"\1"
_LEAVES = frozenset((type(None), bool, int, float, str, torch.Size, torch.dtype, torch.device))
_MAPS = (dict, OrderedDict)
_ROWS = (list, tuple, set)
_DEEPEST = 100


def encode(value: object) -> bytearray:
    """Raises what pickling raises for an object that cannot be pickled."""
    file = io.BytesIO()
    file.write(_PLAIN if _is_plain(value, 0) else _PICKLED)
    torch.save(value, file)
    return bytearray(file.getbuffer())


def decode(data: bytes | bytearray | memoryview, device: torch.device) -> Any:
    """The object. Tensors that were on a GPU come to `device`."""
    place = str(device)
    return torch.load(
        io.BytesIO(memoryview(data)[1:]),
        map_location=lambda storage, where: storage if where == "cpu" else storage.to(device=place),
        weights_only=bytes(data[:1]) == _PLAIN,
    )


def _is_plain(value: object, depth: int) -> bool:
    """Whether weights_only reads it: exact types only, for a subclass may come with code."""
    kind = type(value)
    if kind in _LEAVES or (kind in (bytes, bytearray) and value):
        return True  # empty bytes are pickled in a way that it refuses
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        assert isinstance(value, torch.Tensor)
        return value.layout is torch.strided and not value.is_quantized and not value.__dict__
    if depth > _DEEPEST:  # or a list that holds itself
        return False
    if kind in _MAPS:
        assert isinstance(value, dict)
        # a state dictionary of torch has attributes
        pairs = [*value.items(), *getattr(value, "__dict__", {}).items()]
        return all(_is_plain(each, depth + 1) for pair in pairs for each in pair)
    if kind in _ROWS:
        assert isinstance(value, list | tuple | set)
        return all(_is_plain(each, depth + 1) for each in value)
    return False

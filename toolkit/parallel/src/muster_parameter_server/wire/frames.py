"""Frames: a header of fixed size, then JSON text or the raw bytes of one tensor. Never pickle.

| Bytes | Field | Rule |
| 4 | magic | `mups` |
| 1 | version | 1 |
| 1 | kind | one of `Kind` |
| 1 | dtype | 0 without a tensor, else one of `DTYPES` |
| 1 | ndim | 0 without a tensor, else 1 to 4 |
| 8 | sequence | one more than that of the frame before, on this connection and in this direction |
| 4 | text_bytes | 0 with a tensor, else at most `TEXT_LIMIT_BYTES` |
| 8 | payload_bytes | exactly elements x item size |
| 4 x 8 | shape | the first ndim sizes; the rest 0 |

All of it big-endian; tensor bytes are the machine's own order (little-endian, checked at import of
`memory`). A header is checked whole before anything behind it is read, and a tensor is read only
into memory that is there already: no number of a peer decides how much is allocated.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from math import prod
from typing import NamedTuple

from muster_parameter_server.errors import ProtocolError

MAGIC = b"mups"
VERSION = 1
HEADER = struct.Struct("!4sBBBBQIQ4Q")
HEADER_BYTES = HEADER.size
TEXT_LIMIT_BYTES = 16 << 20  # a registration of 100,000 tensors; only peers with the key send text
PAYLOAD_LIMIT_BYTES = 1 << 44
MAX_DIMS = 4


class Kind(IntEnum):
    """The kinds of frames."""

    REGISTER = 1  # worker: text, options and tensors
    READY = 2  # server: text, all workers have come
    LOAD = 3  # worker: text, a load is to come; READY when all workers have come to it
    PUSH = 4  # worker: text, then gradients
    PULL = 5  # worker: text, what is wanted
    GOODBYE = 6  # worker: text
    TENSOR = 7  # both: one tensor
    VALUES = 8  # server: text, then tensors; worker: text, after LOAD, then of rank 0 its tensors
    ERROR = 9  # server: text, then nothing more
    WAIT = 10  # server: text, the answer is late because another worker's bytes still come


class Dtype(NamedTuple):
    """The element types on the wire."""

    code: int
    name: str  # as torch spells it
    item_bytes: int


DTYPES: Mapping[str, Dtype] = {
    name: Dtype(code, name, size)
    for code, name, size in (
        (1, "float32", 4), (2, "float64", 8), (3, "bfloat16", 2), (4, "float16", 2),
    )
}  # fmt: skip
_BY_CODE = {dtype.code: dtype for dtype in DTYPES.values()}


class Header(NamedTuple):
    """A header that was checked; `dtype` None: text of `text_bytes` follows."""

    kind: Kind
    sequence: int
    dtype: Dtype | None
    shape: tuple[int, ...]
    text_bytes: int
    payload_bytes: int


def text_frame(kind: Kind, sequence: int, message: Mapping[str, object]) -> bytes:
    """Header and text. Raises ProtocolError when the text is too long."""
    text = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > TEXT_LIMIT_BYTES:
        raise ProtocolError(
            f"{kind.name} has {len(text)} bytes of text, the limit is {TEXT_LIMIT_BYTES}",
            "register fewer tensors",
        )
    return HEADER.pack(MAGIC, VERSION, kind, 0, 0, sequence, len(text), 0, 0, 0, 0, 0) + text


def tensor_header(sequence: int, dtype: Dtype, shape: tuple[int, ...]) -> bytes:
    """The header of a tensor; its raw bytes go behind it."""
    sizes = (*shape, 0, 0, 0, 0)[:MAX_DIMS]
    size = prod(shape) * dtype.item_bytes
    return HEADER.pack(
        MAGIC, VERSION, Kind.TENSOR, dtype.code, len(shape), sequence, 0, size, *sizes
    )


def decode(data: bytes | bytearray | memoryview, sequence: int) -> Header:
    """The header in `HEADER_BYTES` of data. Raises ProtocolError unless every field is right."""
    magic, version, kind, code, ndim, number, text_bytes, payload, *sizes = HEADER.unpack(data)
    if magic != MAGIC:
        raise ProtocolError(f"no frame: it begins with {bytes(magic)!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(
            f"version {version} of the frames, but {VERSION} is spoken here",
            "install the same muster-parallel everywhere",
        )
    if kind not in Kind._value2member_map_:
        raise ProtocolError(f"frame of unknown kind {kind}")
    if number != sequence:
        raise ProtocolError(f"frame {number} came where frame {sequence} was due")
    if kind != Kind.TENSOR:
        return _text(Kind(kind), number, code, ndim, text_bytes, payload, sizes)
    return _tensor(number, code, ndim, text_bytes, payload, sizes)


def _text(
    kind: Kind, number: int, code: int, ndim: int, text_bytes: int, payload: int, sizes: list[int]
) -> Header:
    if code or ndim or payload or any(sizes):
        raise ProtocolError(f"{kind.name} claims to hold a tensor")
    if text_bytes > TEXT_LIMIT_BYTES:
        raise ProtocolError(f"{kind.name} claims {text_bytes} bytes of text")
    return Header(kind, number, None, (), text_bytes, 0)


def _tensor(
    number: int, code: int, ndim: int, text_bytes: int, payload: int, sizes: list[int]
) -> Header:
    dtype = _BY_CODE.get(code)
    if dtype is None:
        raise ProtocolError(f"tensor of unknown dtype {code}")
    if not 1 <= ndim <= MAX_DIMS or any(sizes[ndim:]):
        raise ProtocolError(f"tensor of {ndim} dimensions with sizes {sizes}")
    shape = tuple(sizes[:ndim])
    # prod of Python's own integers: no size is so large that it wraps around
    if text_bytes or payload > PAYLOAD_LIMIT_BYTES or payload != prod(shape) * dtype.item_bytes:
        raise ProtocolError(f"tensor {dtype.name} {shape} claims {payload} bytes")
    return Header(Kind.TENSOR, number, dtype, shape, 0, payload)


def require_tensor(header: Header, dtype: Dtype, elements: int) -> None:
    """Raises ProtocolError unless the header is of the one tensor that is due."""
    if header.dtype != dtype or header.shape != (elements,):
        got = f"{header.dtype.name} {header.shape}" if header.dtype else header.kind.name
        raise ProtocolError(f"{got} came where a tensor {dtype.name} ({elements},) was due")


def read_text(data: bytes | bytearray | memoryview) -> dict[str, object]:
    """The text of a frame. Raises ProtocolError unless it is a JSON object of finite numbers."""
    try:
        message = json.loads(bytes(data), parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("text that is not JSON") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"text that is a {type(message).__name__}, not an object")
    return message


def _refused(name: str) -> object:
    raise ValueError(name)

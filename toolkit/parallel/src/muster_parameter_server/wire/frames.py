"""Frames of the parameter server: each is JSON text or the raw bytes of one tensor. Never pickle.

muster_collectives.wire has the header and the handshake. No frame has a head; the body is the text,
or the tensor, whose element type is the tag. Tensor bytes are the machine's own order
(little-endian, checked at import of `memory`). A tensor is read only into memory that is there
already: no number of a peer decides how much is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from muster_collectives.wire import FrameError, Protocol
from muster_parameter_server.errors import ProtocolError

PROTOCOL = Protocol(b"mups", 2)
TEXT_LIMIT_BYTES = 16 << 20  # a registration of 100,000 tensors; only peers with the key send text
PAYLOAD_LIMIT_BYTES = 1 << 44


class Kind(IntEnum):
    """The kinds of frames."""

    REGISTER = 16  # worker: text, options and tensors
    READY = 17  # server: text, all workers have come
    LOAD = 18  # worker: text, a load is to come; READY when all workers have come to it
    PUSH = 19  # worker: text, then gradients
    PULL = 20  # worker: text, what is wanted
    GOODBYE = 21  # worker: text
    TENSOR = 22  # both: one tensor
    VALUES = 23  # server: text, then tensors; worker: text, after LOAD, then of rank 0 its tensors
    ERROR = 24  # server: text, then nothing more
    WAIT = 25  # server: text, the answer is late because another worker's bytes still come


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


class Run(NamedTuple):
    """One flat tensor on its way: `parts` are its bytes, wherever they lie."""

    dtype: Dtype
    elements: int
    parts: list[memoryview]


class Header(NamedTuple):
    """A header that was checked; `dtype` None: text of `size_bytes` follows, else that tensor."""

    kind: Kind
    dtype: Dtype | None
    size_bytes: int


def text_frame(kind: Kind, sequence: int, message: Mapping[str, object]) -> bytes:
    """Header and text. Raises ProtocolError when the text is too long."""
    text = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > TEXT_LIMIT_BYTES:
        raise ProtocolError(
            f"{kind.name} has {len(text)} bytes of text, the limit is {TEXT_LIMIT_BYTES}",
            "register fewer tensors",
        )
    return PROTOCOL.header(sequence, kind, len(text)) + text


def tensor_header(sequence: int, dtype: Dtype, elements: int) -> bytes:
    """The header of a tensor; its raw bytes go behind it."""
    return PROTOCOL.header(sequence, Kind.TENSOR, elements * dtype.item_bytes, tag=dtype.code)


def parts_of(
    numbers: Iterator[int], kind: Kind, message: Mapping[str, object], tensors: Iterable[Run]
) -> list[memoryview]:
    """A text and the tensors behind it as what is to be sent, without a copy. Raises as
    `text_frame`. `numbers`: those of the next frames."""
    parts = [memoryview(text_frame(kind, next(numbers), message))]
    for run in tensors:
        parts += [memoryview(tensor_header(next(numbers), run.dtype, run.elements)), *run.parts]
    return [part for part in parts if len(part)]


def decode(data: bytes | bytearray | memoryview, sequence: int) -> Header:
    """The header in `HEADER_BYTES` of data. Raises ProtocolError unless every field is right."""
    try:
        kind, tag, _, size = PROTOCOL.read_header(data, sequence, PAYLOAD_LIMIT_BYTES)
    except FrameError as error:
        raise ProtocolError(error.message, error.fix) from error
    if kind not in Kind._value2member_map_:
        raise ProtocolError(f"frame of unknown kind {kind}")
    found = Header(Kind(kind), _BY_CODE.get(tag), size)
    if found.kind is Kind.TENSOR:
        if found.dtype is None:
            raise ProtocolError(f"tensor of unknown dtype {tag}")
        if size % found.dtype.item_bytes:
            raise ProtocolError(f"tensor of {size} bytes, which are no {found.dtype.name}")
    elif tag:
        raise ProtocolError(f"{found.kind.name} claims to hold a tensor")
    elif size > TEXT_LIMIT_BYTES:
        raise ProtocolError(f"{found.kind.name} claims {size} bytes of text")
    return found


def require_tensor(header: Header, dtype: Dtype, elements: int) -> None:
    """Raises ProtocolError unless the header is of the one tensor that is due."""
    if (header.dtype, header.size_bytes) != (dtype, elements * dtype.item_bytes):
        what = header.dtype.name if header.dtype else header.kind.name
        raise ProtocolError(
            f"{what} of {header.size_bytes} bytes came where a tensor of {elements} {dtype.name} "
            "was due"
        )


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

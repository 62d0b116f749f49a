"""What ranks without a core and their hub say to each other: heads of frames, both ways (pure)."""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

from muster_collectives.bootstrap.frames import FIRST_KIND, FrameError
from muster_collectives.runtime.types import Code, Description, DType, Failure, Op, RankStatus, Verb

CALL, RESULT, FAILED, ABORT, BYE, MESSAGE = range(FIRST_KIND, FIRST_KIND + 6)
_CALL = struct.Struct("!QQIIIId?")
_RESULT = struct.Struct("!Q")
_MESSAGE = struct.Struct("!III")


class Call(NamedTuple):
    """`is_uneven`: the body begins with the counts of what goes out and what comes in."""

    what: Description
    timeout_s: float
    is_uneven: bool


class Message(NamedTuple):
    source: int
    target: int
    tag: int


def call_head(call: Call) -> bytes:
    what = call.what
    return _CALL.pack(
        what.seq, what.count, what.verb, what.dtype, what.op, what.root, call.timeout_s,
        call.is_uneven,
    )  # fmt: skip


def read_call(head: bytes) -> Call:
    """Raises FrameError."""
    try:
        seq, count, verb, dtype, op, root, timeout_s, is_uneven = _CALL.unpack(head)
        what = Description(seq, count, Verb(verb), DType(dtype), Op(op), root)
    except (struct.error, ValueError) as error:
        raise FrameError(f"no call: {error}") from error
    return Call(what, timeout_s, is_uneven)


def result_head(seq: int) -> bytes:
    return _RESULT.pack(seq)


def read_result(head: bytes) -> int:
    """Raises FrameError."""
    if len(head) != _RESULT.size:
        raise FrameError("no result")
    return int(_RESULT.unpack(head)[0])


def message_head(message: Message) -> bytes:
    return _MESSAGE.pack(*message)


def read_message(head: bytes) -> Message:
    """Raises FrameError."""
    if len(head) != _MESSAGE.size:
        raise FrameError("no message")
    return Message(*_MESSAGE.unpack(head))


def failure_body(failure: Failure) -> bytes:
    return json.dumps({
        "code": int(failure.code), "rank": failure.rank, "told_by": failure.reported_by,
        "waited_s": failure.waited_s, "other": _words(failure.other),
        "marks": {rank: int(mark) for rank, mark in enumerate(failure.rank_status) if mark},
    }).encode()  # fmt: skip


def read_failure(body: bytes, size: int, mine: Description | None) -> Failure:
    """Raises FrameError."""
    try:
        said: dict[str, Any] = json.loads(body)
        rank_status = [RankStatus.HERE] * size
        for rank, mark in said["marks"].items():
            rank_status[int(rank)] = RankStatus(mark)
        other = said["other"]
        return Failure(
            code=Code(said["code"]), rank=said["rank"], reported_by=said["told_by"],
            waited_s=said["waited_s"], mine=mine, other=_description(other) if other else None,
            rank_status=tuple(rank_status),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FrameError(f"no failure: {error}") from error


def _words(what: Description | None) -> list[int] | None:
    if what is None:
        return None
    return [what.seq, what.count, int(what.verb), int(what.dtype), int(what.op), what.root]


def _description(words: list[int]) -> Description:
    seq, count, verb, dtype, op, root = words
    return Description(seq, count, Verb(verb), DType(dtype), Op(op), root)

"""The values that a collective is made of; numbers are those of csrc/muster_core.h.

Bool tensors travel as `DType.U8`. Sizes are in bytes, times in seconds, counts in elements.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


class Verb(enum.IntEnum):
    """What a call does; muster_core.h says what `count` means for each."""

    BARRIER = 0
    ALL_REDUCE = 1
    REDUCE = 2
    BROADCAST = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8


class DType(enum.IntEnum):
    """The element types of the core."""

    U8 = 0
    I8 = 1
    I32 = 2
    I64 = 3
    F16 = 4
    BF16 = 5
    F32 = 6
    F64 = 7


class Op(enum.IntEnum):
    """AVG divides after the sum and is for floats; BAND, BOR and BXOR are for integers."""

    SUM = 0
    AVG = 1
    MIN = 2
    MAX = 3
    PROD = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class ReduceOp(enum.Enum):
    """What the older API of smdistributed.dataparallel makes of the values of all ranks."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


class Wire(enum.IntEnum):
    """How fp32 sums travel between nodes."""

    SAME = 0
    F16 = 1
    BF16 = 2
    I8 = 3


class Code(enum.IntEnum):
    """How a call of the core ended."""

    OK = 0
    EINVAL = 1
    ETIMEOUT = 2
    EPEER = 3
    EMISMATCH = 4
    EABORT = 5
    ENET = 6
    ECHECK = 7
    EMEM = 8
    ESYS = 9
    EFORK = 10
    ECLOSED = 11


class RankStatus(enum.IntEnum):
    """What a failure knows of one rank."""

    HERE = 0
    MISSING = 1
    DEAD = 2
    LEFT = 3
    DIFFERENT = 4


class Path(enum.IntEnum):
    """Which way a call took; counted in `Stats.paths`."""

    ALONE = 0
    ONE_SHOT = 1
    STAGED = 2
    DIRECT = 3
    LEADERS = 4
    RAILS = 5


DTYPE_BYTES: Mapping[DType, int] = {
    DType.U8: 1, DType.I8: 1, DType.I32: 4, DType.I64: 8,
    DType.F16: 2, DType.BF16: 2, DType.F32: 4, DType.F64: 8,
}  # fmt: skip
DTYPE_NAMES: Mapping[DType, str] = {
    DType.U8: "uint8", DType.I8: "int8", DType.I32: "int32", DType.I64: "int64",
    DType.F16: "float16", DType.BF16: "bfloat16", DType.F32: "float32", DType.F64: "float64",
}  # fmt: skip
FLOATS = frozenset((DType.F16, DType.BF16, DType.F32, DType.F64))
REDUCING = frozenset((Verb.ALL_REDUCE, Verb.REDUCE, Verb.REDUCE_SCATTER))
ROOTED = frozenset((Verb.REDUCE, Verb.BROADCAST, Verb.GATHER, Verb.SCATTER))
_BITWISE = frozenset((Op.BAND, Op.BOR, Op.BXOR))


def is_defined(dtype: DType, op: Op) -> bool:
    """Whether `op` exists for `dtype`: no average of integers, no bits of floats."""
    if op is Op.AVG:
        return dtype in FLOATS
    return op not in _BITWISE or dtype not in FLOATS


@dataclass(frozen=True, slots=True)
class Description:
    """What a rank called; `seq` numbers the calls of a group from 1."""

    seq: int
    count: int
    verb: Verb
    dtype: DType
    op: Op
    root: int

    def numbered(self, last: Description | None) -> Description:
        """This call, which failed, with its number. `last` is the core's word on its last call: a
        group that broke before this rank came has the call before it."""
        if last is None:
            return replace(self, seq=1)
        same = (last.verb, last.dtype) == (self.verb, self.dtype) and last.count in (self.count, 0)
        return replace(self, seq=last.seq if same else last.seq + 1)

    def __str__(self) -> str:
        name = self.verb.name.lower()
        if self.verb is Verb.BARRIER:
            return name
        size = self.count * DTYPE_BYTES[self.dtype]
        what = f"{self.count} {DTYPE_NAMES[self.dtype]} ({size} bytes)"
        if self.verb in REDUCING:
            name = f"{name} {self.op.name.lower()}"
        if self.verb in ROOTED:
            return f"{name} of {what}, root {self.root}"
        return f"{name} of {what}"


@dataclass(frozen=True)
class CoreCall:
    """One call of the core. `source` and `target` are addresses, 0 where there is none."""

    verb: Verb
    source: int
    target: int
    count: int
    dtype: DType
    op: Op = Op.SUM
    root: int = 0
    in_counts: tuple[int, ...] | None = None
    out_counts: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None

    @property
    def description(self) -> Description:
        return Description(0, self.count, self.verb, self.dtype, self.op, self.root)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call failed. `rank` is named first, -1: none; `reported_by` is the rank that found
    it, -1: this rank. `other` is what another rank called where `code` is EMISMATCH."""

    code: Code
    sys_errno: int = 0
    rank: int = -1
    reported_by: int = -1
    waited_s: float = 0.0
    mine: Description | None = None
    other: Description | None = None
    rank_status: tuple[RankStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """An ended send or receive: the peer, its tag, and how many bytes came or went."""

    peer: int
    tag: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the group was made. `sent_bytes` and `received_bytes` count what went between
    nodes, frames included; `sends` and `receives` what was posted, and their `_bytes` what of it
    has ended well, within nodes and between; `messages_*` the large ones of the node that this rank
    took where they lay, in registered memory and in the sender's, and those it had to ask for;
    `sleeps` the waits that gave the processor away;
    `time_s` the time in calls, by verb in `times_s`, and `wait_s` how much of it was waiting."""

    calls: Mapping[Verb, int]
    bytes: Mapping[Verb, int]
    paths: Mapping[Path, int]
    sent_bytes: int = 0
    received_bytes: int = 0
    sends: int = 0
    receives: int = 0
    sends_bytes: int = 0
    receives_bytes: int = 0
    messages_mapped: int = 0
    messages_read: int = 0
    messages_asked: int = 0
    sleeps: int = 0
    time_s: float = 0.0
    wait_s: float = 0.0
    times_s: Mapping[Verb, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Now:
    """The call that runs, or the last one. `since_s`: on the monotonic clock, when it began or, if
    it does not run, ended. `absent`: ranks of the group that are known not to have come."""

    what: Description
    since_s: float
    running: bool
    absent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the flight log; `began_s` is on the monotonic clock."""

    what: Description
    began_s: float
    took_s: float
    code: Code
    path: Path | None

    def __str__(self) -> str:
        end = "" if self.code is Code.OK else f", {self.code.name}"
        return f"{self.what.seq} {self.what} ({self.took_s * 1e3:.2f} ms{end})"

"""csrc/muster_core.h as ctypes sees it: structures, functions, and back to our own values."""

from __future__ import annotations

import ctypes
from typing import Any

from muster_collectives.runtime.types import (
    Code,
    Description,
    DType,
    Failure,
    Op,
    Path,
    RankStatus,
    Record,
    Stats,
    Verb,
)

ABI = 16
UNDER_WAY = -1
_VERBS = len(Verb)
_PATHS = len(Path)

u8, u16, u32, u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
i32, f64, ptr = ctypes.c_int32, ctypes.c_double, ctypes.c_void_p


class McDesc(ctypes.Structure):
    """mc_desc: what a rank called."""

    _fields_ = (
        ("seq", u64), ("count", u64),
        ("verb", u32), ("dtype", u32), ("op", u32), ("root", u32),
    )  # fmt: skip


class McFailure(ctypes.Structure):
    """mc_failure: why a call failed."""

    _fields_ = (
        ("code", i32), ("sys_errno", i32), ("rank", i32), ("reported_by", i32), ("waited_s", f64),
        ("mine", McDesc), ("other", McDesc), ("rank_status", ptr),
    )  # fmt: skip


class McTuning(ctypes.Structure):
    """mc_tuning: the sizes of a group."""

    _fields_ = (
        ("slot_bytes", u64), ("one_shot_bytes", u64), ("chunk_bytes", u64), ("direct_bytes", u64),
        ("adopt_bytes", u64), ("leader_bytes", u64), ("segment_bytes", u64), ("eager_bytes", u64),
        ("streams", u32), ("wire", u32), ("checked", u32), ("spin_s", f64),
    )  # fmt: skip


class McLayout(ctypes.Structure):
    """mc_layout: what a group is made of."""

    _fields_ = (
        ("abi", u32), ("rank", u32), ("size", u32), ("node_of", ptr),
        ("segment_fd", i32), ("addresses", ptr),
        ("key", u8 * 32), ("tuning", McTuning), ("records", u32),
    )  # fmt: skip


class McStatus(ctypes.Structure):
    """mc_status: how a send or a receive ended."""

    _fields_ = (("code", i32), ("peer", i32), ("tag", u32), ("done", u32), ("bytes", u64))


class McTransfer(ctypes.Structure):
    """What the core writes of a request: its number, and once its status."""

    _fields_ = (("number", u64), ("status", McStatus))


class McStats(ctypes.Structure):
    """mc_stats: counters since the group was made."""

    _fields_ = (
        ("calls", u64 * _VERBS), ("bytes", u64 * _VERBS), ("paths", u64 * _PATHS),
        ("sent_bytes", u64), ("received_bytes", u64), ("sends", u64), ("receives", u64),
        ("sends_bytes", u64), ("receives_bytes", u64), ("messages_mapped", u64),
        ("messages_read", u64), ("messages_asked", u64), ("sleeps", u64), ("time_s", f64),
        ("wait_s", f64), ("times_s", f64 * _VERBS),
    )  # fmt: skip


class McRecord(ctypes.Structure):
    """mc_record: one line of the flight log."""

    _fields_ = (("what", McDesc), ("began_s", f64), ("took_s", f64), ("code", i32), ("path", u32))


class McNow(ctypes.Structure):
    """mc_now: the call that runs, or the last one."""

    _fields_ = (("what", McDesc), ("since_s", f64), ("running", u32))


class McCall(ctypes.Structure):
    """mc_call: the arguments of one collective."""

    _fields_ = (
        ("verb", u32), ("dtype", u32), ("op", u32), ("root", u32), ("source", ptr),
        ("target", ptr), ("count", u64), ("in_counts", ptr), ("out_counts", ptr),
        ("blocks", ptr), ("timeout_s", f64),
    )  # fmt: skip


class McAsync(ctypes.Structure):
    """mc_async: calls for the core's own thread."""

    _fields_ = (
        ("next", ptr), ("calls", ptr), ("due_ns", u64), ("count", u32), ("ended", u32),
        ("code", i32), ("done", u32),
    )  # fmt: skip


class McSignalCheck(ctypes.Structure):
    """mc_signal_check: CPython's functions for signal handlers."""

    _fields_ = (
        ("thread", u64), ("ensure_gil", ptr), ("check_signals", ptr), ("fetch", ptr),
        ("release", ptr), ("kept", ptr * 3),
    )  # fmt: skip


class McPython(ctypes.Structure):
    """mc_python: CPython's functions for the core's builtin functions."""

    _fields_ = tuple(
        (name, ptr) for name in ("number", "real", "error", "save_thread", "restore_thread", "code")
    )  # fmt: skip


class McEntry(ctypes.Structure):
    """mc_entry: the group that a builtin function works on."""

    _fields_ = (("comm", ptr), ("failure", ptr), ("inside", u64))


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mc_abi": (u32, ()),
    "mc_isa": (ctypes.c_char_p, ()),
    "mc_segment_bytes": (u64, (u32, ptr)),
    "mc_endpoint_open": (ctypes.c_int, (ctypes.c_char_p, i32, ptr, ptr)),
    "mc_endpoint_close": (None, (u64,)),
    "mc_create": (ctypes.c_int, (ptr, f64, ptr, ptr)),
    "mc_async_post": (ctypes.c_int, (ptr, ptr, f64)),
    "mc_async_wait": (ctypes.c_int, (ptr, ptr, f64, ptr)),
    "mc_abort": (None, (ptr,)),
    "mc_set_signal_check": (None, (ptr, ptr)),
    "mc_python": (None, (ptr,)),
    "mc_close": (None, (ptr,)),
    "mc_region_add": (ctypes.c_int, (ptr, ptr, u64, ptr)),
    "mc_region_drop": (ctypes.c_int, (ptr, u32)),
    "mc_adopt": (ctypes.c_int, (ptr, u64, u64, u32, ptr)),
    "mc_adopted_end": (None, (ptr, u32)),
    "mc_follow": (ctypes.c_int, (ptr, u64)),
    "mc_next_ended": (ctypes.c_int, (ptr, ptr)),
    "mc_follow_no_more": (None, (ptr,)),
    "mc_stats_read": (None, (ptr, ptr)),
    "mc_waits_read": (None, (ptr, ptr)),
    "mc_records_read": (u32, (ptr, ptr, u32)),
    "mc_now_read": (ctypes.c_int, (ptr, ptr, ptr)),
    "mc_kernel_pack_i8": (None, (ptr, ptr, u64, ptr)),
    "mc_kernel_unpack_i8": (None, (ptr, ptr, u64)),
    "mc_kernel_unpack_add_i8": (None, (ptr, ptr, u64)),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Gives every function its types. Raises AttributeError for one that is not there."""
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def at(structure: ctypes.Structure) -> ctypes.c_void_p:
    """Where it lies, for a function that takes a pointer."""
    return ptr(ctypes.addressof(structure))


class FailurePlace:
    """Where the core writes a failure, with room for one mark per rank; used again and again."""

    def __init__(self, size: int) -> None:
        self.raw = McFailure()
        self._rank_status = (u8 * max(size, 1))()
        self.address = at(self.raw)
        self.clear()

    def read(self, code: int) -> Failure:
        """What is there now; `code` is what the function returned."""
        raw = self.raw
        return Failure(
            code=code_of(code),
            sys_errno=raw.sys_errno,
            rank=raw.rank,
            reported_by=raw.reported_by,
            waited_s=raw.waited_s,
            mine=description(raw.mine),
            other=description(raw.other),
            rank_status=tuple(_mark(value) for value in self._rank_status),
        )

    def clear(self) -> None:
        """So that what an earlier call left is never read as a later one's."""
        for each in (self.raw, self._rank_status):
            ctypes.memset(ctypes.addressof(each), 0, ctypes.sizeof(each))
        self.raw.rank = self.raw.reported_by = -1
        self.raw.rank_status = ctypes.addressof(self._rank_status)


def description(raw: McDesc) -> Description | None:
    """None for numbers that are nobody's: another rank may have sent anything."""
    try:
        verb, dtype, op = Verb(raw.verb), DType(raw.dtype), Op(raw.op)
    except ValueError:
        return None
    return Description(int(raw.seq), int(raw.count), verb, dtype, op, int(raw.root))


def record(raw: McRecord) -> Record | None:
    what = description(raw.what)
    if what is None:
        return None
    path = Path(raw.path) if raw.path < _PATHS else None
    return Record(what, float(raw.began_s), float(raw.took_s), code_of(raw.code), path)


def stats(raw: McStats) -> Stats:
    return Stats(
        calls={verb: int(raw.calls[verb]) for verb in Verb},
        bytes={verb: int(raw.bytes[verb]) for verb in Verb},
        paths={path: int(raw.paths[path]) for path in Path},
        times_s={verb: float(raw.times_s[verb]) for verb in Verb},
        **{name: getattr(raw, name) for name, kind in McStats._fields_ if kind in (u64, f64)},
    )


def code_of(value: int) -> Code:
    return Code(value) if 0 <= value < len(Code) else Code.ESYS


def _mark(value: int) -> RankStatus:
    return RankStatus(value) if value < len(RankStatus) else RankStatus.HERE

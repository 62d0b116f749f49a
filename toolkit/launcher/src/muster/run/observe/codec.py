"""Looks as text between hosts: what ranks have in common is written once. Strictly read, since a
broken peer may send anything: no more memory or time than the ranks that were asked for are worth.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

from muster.run.channel.messages import MOST_PARTS, REPLY_BYTES, WireError
from muster.run.observe.looks import (
    Answer,
    Arrivals,
    Call,
    ProcessState,
    RankLook,
    StackFrame,
    ThreadStack,
    Usage,
)
from muster.run.observe.wording import main_thread
from muster.types.names import runs

TEXT_CHARACTERS = 1024  # of one name or path
MOST_FRAMES = 200  # of one stack: the outermost and innermost halves
MOST_THREADS = 256
MOST_CALLS = 32  # of one rank: its groups
MOST_KINDS = 4096
MOST_ARRIVALS = 64  # of one rank
_FIELDS = 8  # of the row of a rank, without what `_pace` adds
TICKS = 10_000  # in which times of arrivals are written, a second
ANSWER_BYTES = 16 << 20  # unpacked; of one host, or of the leader's to a host
_HOW = ("agent", "signal", "silent", "none")


def pack(value: object) -> list[str]:
    """The JSON value in parts that each fit a frame. Raises ValueError for one that is too
    large."""
    data = json.dumps(value, separators=(",", ":")).encode()
    text = base64.b64encode(zlib.compress(data, 1)).decode()
    parts = [text[at : at + REPLY_BYTES] for at in range(0, len(text), REPLY_BYTES)]
    if len(parts) > MOST_PARTS or len(data) > ANSWER_BYTES:
        raise ValueError(f"an answer of {len(data)} bytes")
    return parts


def unpack(parts: Iterable[str]) -> Any:
    """The inverse of `pack`. Raises WireError."""
    unpacker = zlib.decompressobj()
    try:
        packed = base64.b64decode("".join(parts), validate=True)
        data = unpacker.decompress(packed, ANSWER_BYTES)
        if not unpacker.eof:
            _refuse("an answer that is cut or too large")
        return json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError, zlib.error, binascii.Error) as error:
        raise WireError("an answer that cannot be read") from error


def looks_to_json(looks: Sequence[RankLook], all_threads: bool) -> object:
    """A table of kinds (`how`, threads), one of groups, and a row for each rank. `all_threads`:
    else the main one alone."""
    kinds: dict[tuple[str, tuple[ThreadStack, ...]], int] = {}
    groups: dict[tuple[object, ...], int] = {}
    group_of: dict[tuple[object, ...], int] = {}  # by identity of the members, which are many
    rows = []
    for look in looks:
        answer = look.answer
        threads = answer.threads[:MOST_THREADS]
        if not all_threads:
            main = main_thread(look)
            threads = () if main is None else (main,)
        kind = kinds.setdefault((answer.how, threads), len(kinds))
        calls = []
        for call in answer.calls[:MOST_CALLS]:
            known = (call.library, call.group, id(call.ranks))
            if known not in group_of:
                spelled = (call.library, call.group, _ranges(call.ranks))
                group_of[known] = groups.setdefault(spelled, len(groups))
            calls.append(
                [
                    group_of[known], call.op, call.number, call.shape, call.running,
                    round(call.age_s, 3), list(call.absent[:64]),
                ]
            )  # fmt: skip
        rows.append(
            [
                look.rank, list(look.process), round(look.silent_s, 2), look.ended, kind, calls,
                answer.step, answer.rate, *_pace(look),
            ]
        )  # fmt: skip
    return [[_kind(*kind) for kind in kinds], [list(group) for group in groups], rows]


def looks_from_json(
    value: Any, host: str, ranks: Collection[int], members: dict[str, tuple[int, ...]], world: int
) -> list[RankLook]:
    """The looks at those of `ranks` that are in it, once each. `members`: of groups by their
    spelling, shared by the answers to one question. Raises WireError."""
    try:
        kinds, groups, rows = value
        made_kinds = [_kind_from(*kind) for kind in _items(kinds, min(len(ranks), MOST_KINDS))]
        made_groups = [
            (_text(library), _text(group), _members(_text(spelled, 1 << 16), members, world))
            for library, group, spelled in _items(groups, MOST_CALLS * len(ranks))
        ]
        left, looks = set(ranks), []
        for row in _items(rows, len(ranks)):
            look = _look(row[:_FIELDS], host, made_kinds, made_groups)
            for pace in _items(row[_FIELDS:], 1):
                look = _paced(look, pace, members, world)
            if look.rank in left:
                left.discard(look.rank)
                looks.append(look)
        return looks
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise WireError("looks at ranks that cannot be read") from error


def numbers_from_json(value: Any, ranks: Collection[int]) -> dict[int, float]:
    """Rank -> number, of those of `ranks` that are in it. Raises WireError."""
    try:
        # a host knows more of its ranks than it is asked about
        pairs = [(_whole(rank), _number(number)) for rank, number in _items(value, 1 << 14)]
    except (TypeError, ValueError) as error:
        raise WireError("numbers of ranks that cannot be read") from error
    return {rank: number for rank, number in pairs if rank in ranks}


def _kind(how: str, threads: Sequence[ThreadStack]) -> list[object]:
    return [
        how,
        [[t.name, t.is_main, [list(frame) for frame in _fitting(t.frames)]] for t in threads],
    ]


def _pace(look: RankLook) -> list[object]:
    """Usage and arrivals of a rank, if there are any; calls as what each is beyond the one before
    it. A host of an older version neither writes nor reads it."""
    came, usage = look.answer.arrivals, look.usage
    if came is None and usage is None:
        return []
    used = None if usage is None else list(usage._replace(over_s=round(usage.over_s, 3)))
    if came is None:
        return [[used, None]]
    pairs, before = [], (0, 0)
    for number, at_s in came.calls[-MOST_ARRIVALS:]:
        call = number, round(at_s * TICKS)
        pairs.append([call[0] - before[0], call[1] - before[1]])
        before = call
    spelled = _ranges(came.ranks)
    return [[used, [came.library, came.group, spelled, pairs, round(came.unsure_s, 4)]]]


def _fitting(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    if len(frames) <= MOST_FRAMES:
        return frames
    half = MOST_FRAMES // 2
    left_out = StackFrame(f"... {len(frames) - MOST_FRAMES} frames ...", 0, "")
    return [*frames[: half - 1], left_out, *frames[-half:]]


def _kind_from(how: Any, threads: Any) -> tuple[str, tuple[ThreadStack, ...]]:
    made = tuple(
        ThreadStack(
            _text(name),
            _exact(is_main, bool),
            tuple(
                StackFrame(_text(file), _whole(line), _text(function))
                for file, line, function in _items(frames, MOST_FRAMES)
            ),
        )
        for name, is_main, frames in _items(threads, MOST_THREADS)
    )
    return _HOW[_HOW.index(how)], made


def _look(
    row: Any,
    host: str,
    kinds: Sequence[tuple[str, tuple[ThreadStack, ...]]],
    groups: Sequence[tuple[str, str, tuple[int, ...]]],
) -> RankLook:
    """One look from JSON. Raises ValueError for anything else."""
    rank, process, silent_s, ended, kind, calls, step, rate = row
    how, threads = kinds[_whole(kind)]
    pid, state, wchan, cpu_share, waits_for = process
    made = []
    for place, op, number, shape, running, age_s, absent in _items(calls, MOST_CALLS):
        library, group, ranks = groups[_whole(place)]
        away = tuple(_whole(one) for one in _items(absent, 64))
        made.append(
            Call(
                library, group, ranks, _text(op), _whole(number), _text(shape),
                _exact(running, bool), _number(age_s), away,
            )
        )  # fmt: skip
    return RankLook(
        _whole(rank),
        host,
        ProcessState(_whole(pid), _text(state), _text(wchan), _number(cpu_share), _text(waits_for)),
        _number(silent_s),
        Answer(
            how,
            threads,
            tuple(made),
            None if step is None else _whole(step),
            None if rate is None else _number(rate),
        ),
        None if ended is None else _exact(ended, int),
    )


def _paced(look: RankLook, pace: Any, members: dict[str, tuple[int, ...]], world: int) -> RankLook:
    """The look with what `_pace` wrote. Raises ValueError for anything else."""
    used, came = pace
    if used is not None:
        over_s, throttled_s, run_delay_s, faults = used
        throttled = None if throttled_s is None else _number(throttled_s)
        usage = Usage(_number(over_s), throttled, _number(run_delay_s), _whole(faults))
        look = look._replace(usage=usage)
    if came is None:
        return look
    library, group, spelled, pairs, unsure_s = came
    calls, number, ticks = [], 0, 0
    for more, later in _items(pairs, MOST_ARRIVALS):
        number, ticks = number + _whole(more), ticks + _exact(later, int)
        calls.append((number, _number(ticks / TICKS)))
    ranks = _members(_text(spelled, 1 << 16), members, world)
    arrivals = Arrivals(_text(library), _text(group), ranks, tuple(calls), _number(unsure_s))
    return look._replace(answer=look.answer._replace(arrivals=arrivals))


def _ranges(ranks: Sequence[int]) -> str:
    """`0-3,6`, in their order."""
    return ",".join(f"{low}-{high}" for low, high in runs(ranks))


def _members(spelled: str, known: dict[str, tuple[int, ...]], world: int) -> tuple[int, ...]:
    found = known.get(spelled)
    if found is None:
        ranks: list[int] = []
        for part in spelled.split(",") if spelled else ():
            low, _, high = part.partition("-")
            first, last = int(low), int(high)
            if not 0 <= first <= last < world or len(ranks) + last - first >= world:
                raise ValueError("a group of ranks that there are not")
            ranks.extend(range(first, last + 1))
        found = known[spelled] = tuple(ranks)
    return found


def _items(value: Any, most: int) -> list[Any]:
    if type(value) is not list or len(value) > most:
        raise TypeError("not a list of so many")
    return value


def _text(value: Any, most: int = TEXT_CHARACTERS) -> str:
    return str(_exact(value, str))[:most]


def _whole(value: Any) -> int:
    number: int = _exact(value, int)
    if not 0 <= number < 1 << 53:
        raise ValueError("an impossible number")
    return number


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -1e15 < value < 1e15:
        raise TypeError("not a number")
    return float(value)


def _exact(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return value


def _refuse(what: str) -> NoReturn:
    """Raises ValueError: no host of this job sends that."""
    raise ValueError(what)

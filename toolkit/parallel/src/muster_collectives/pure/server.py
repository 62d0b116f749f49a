"""The hub of a group without a core, in rank 0's process: all calls meet here.

It compares what the ranks call, computes, answers, carries messages, and names who is missing, dead
or different. The first failure is the group's end: all ranks hear the same.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from muster_collectives.bootstrap.frames import Frame, FrameError
from muster_collectives.bootstrap.service import Handler, Peer
from muster_collectives.pure import wire
from muster_collectives.pure.verbs import UnevenError, results
from muster_collectives.runtime.types import Code, Description, Failure, RankStatus

_JUDGING_S = 0.2  # ranks differ: for the others to come, so that the odd one is named


class Hub(Handler):
    def __init__(self, size: int) -> None:
        self._size = size
        self._peers: dict[int, Peer] = {}
        self._left: set[int] = set()
        self._dead: set[int] = set()
        self._calls: dict[int, wire.Call] = {}  # of the operation in which the ranks are
        self._given: dict[int, memoryview] = {}
        self._began = 0.0
        self._broken: Failure | None = None
        self.all_left = threading.Event()  # but rank 0

    # --- of the service

    def joined(self, peer: Peer) -> None:
        self._peers[peer.rank] = peer
        if self._broken is not None:
            self._tell(peer, self._broken)

    def frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == wire.CALL:
            self._call(peer, wire.read_call(frame.head), memoryview(frame.body))
        elif frame.kind == wire.MESSAGE:
            self._carry(peer, wire.read_message(frame.head), frame.body)
        elif frame.kind == wire.ABORT:
            self._fail(Failure(Code.EABORT, rank=peer.rank, reported_by=peer.rank))
        elif frame.kind == wire.BYE:
            self._left.add(peer.rank)
            self._count_left()
            self._who_is_gone()
        else:
            raise FrameError(f"frame {frame.kind} is none of a rank's")

    def gone(self, peer: Peer) -> None:
        self._peers.pop(peer.rank, None)
        if peer.rank not in self._left:
            self._dead.add(peer.rank)
            self._fail(self._without(Code.EPEER, {peer.rank: RankStatus.DEAD}))
        self._count_left()

    def tick(self, now: float) -> None:
        if not self._calls or self._broken is not None:
            return
        if self._differs() and now - self._began >= _JUDGING_S:
            self._judge()
            return
        limit_s = min(call.timeout_s for call in self._calls.values())
        if now - self._began >= limit_s:
            missing = {
                rank: RankStatus.MISSING for rank in range(self._size) if rank not in self._calls
            }
            self._fail(self._without(Code.ETIMEOUT, missing))

    # --- calls

    def _call(self, peer: Peer, call: wire.Call, data: memoryview) -> None:
        if self._broken is not None:
            return  # it has been told
        if not self._calls:
            self._began = time.monotonic()
        self._calls[peer.rank] = call
        self._given[peer.rank] = data
        if self._differs():
            if len(self._calls) == self._size:
                self._judge()
            return
        self._who_is_gone()
        if self._broken is None and len(self._calls) == self._size:
            self._answer(call)

    def _answer(self, call: wire.Call) -> None:
        given = [self._given[rank] for rank in range(self._size)]
        try:
            pieces = results(call.what, given, call.is_uneven)
        except UnevenError as error:
            self._mismatch({error.sender, error.receiver}, call.what)
            return
        except (ValueError, IndexError, OverflowError, MemoryError):
            self._fail(Failure(Code.EMEM, reported_by=0))
            return
        self._calls.clear()
        self._given.clear()
        head = wire.result_head(call.what.seq)
        for rank, parts in enumerate(pieces):
            if rank in self._peers:
                self._peers[rank].queue(wire.RESULT, head, *parts)

    def _differs(self) -> bool:
        """Whether what is here cannot go together."""
        return len({(call.what, call.is_uneven) for call in self._calls.values()}) > 1

    def _judge(self) -> None:
        """Who differs is who is not with the most; of two halves the one with the lowest rank."""
        sides: dict[tuple[Description, bool], list[int]] = {}
        for rank in sorted(self._calls):
            call = self._calls[rank]
            sides.setdefault((call.what, call.is_uneven), []).append(rank)
        right = max(sides, key=lambda side: len(sides[side]))
        different = {rank for side, ranks in sides.items() if side != right for rank in ranks}
        self._mismatch(different, right[0])

    def _mismatch(self, different: set[int], reference: Description) -> None:
        other = self._calls[min(different)].what
        rank_status = tuple(RankStatus.DIFFERENT if rank in different else RankStatus.HERE
                      for rank in range(self._size))  # fmt: skip
        first = min(set(self._calls) - different, default=0)
        failure = Failure(
            Code.EMISMATCH,
            rank=min(different),
            reported_by=first,
            other=other,
            rank_status=rank_status,
        )
        self._fail(failure, dict.fromkeys(different, reference))

    def _who_is_gone(self) -> None:
        """A call that needs a rank which has left will never be whole."""
        gone = {rank: RankStatus.LEFT for rank in self._left if rank not in self._calls}
        gone.update((rank, RankStatus.DEAD) for rank in self._dead)
        if self._calls and gone:
            self._fail(self._without(Code.EPEER, gone))

    def _carry(self, peer: Peer, message: wire.Message, body: bytearray) -> None:
        if message.source != peer.rank or message.target >= self._size:
            raise FrameError("a message in another's name")
        target = self._peers.get(message.target)
        if target is not None:
            target.queue(wire.MESSAGE, wire.message_head(message), body)

    # --- failures

    def _without(self, code: Code, rank_status: dict[int, RankStatus]) -> Failure:
        waited_s = time.monotonic() - self._began if self._calls else 0.0
        every = tuple(rank_status.get(rank, RankStatus.HERE) for rank in range(self._size))
        return Failure(code, rank=min(rank_status), waited_s=waited_s, rank_status=every)

    def _fail(self, failure: Failure, others: dict[int, Description] | None = None) -> None:
        if self._broken is not None:
            return
        self._broken = failure
        self._calls.clear()
        self._given.clear()
        for rank, peer in self._peers.items():
            other = (others or {}).get(rank)
            self._tell(peer, replace(failure, other=other) if other else failure)

    def _tell(self, peer: Peer, failure: Failure) -> None:
        peer.queue(wire.FAILED, b"", wire.failure_body(failure))

    def _count_left(self) -> None:
        if all(rank in self._left or rank in self._dead for rank in range(1, self._size)):
            self.all_left.set()

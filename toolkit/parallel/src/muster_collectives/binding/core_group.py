"""A group over the C core, by addresses. One call costs a lock and a call of a builtin function.

Threads: `run` takes a lock, for the core wants one collective at a time; `abort`, statistics and
sends may come from any thread meanwhile. `close` waits until no thread is inside any more.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from muster_collectives.binding import abi, library, live
from muster_collectives.binding.entry import Entry, SignalCheck
from muster_collectives.binding.requests import Ends, Request, Ways
from muster_collectives.runtime import reentrancy
from muster_collectives.runtime.errors import ClosedError, CollectiveError, UsageError
from muster_collectives.runtime.flight import Flight
from muster_collectives.runtime.layout import GroupLayout
from muster_collectives.runtime.messages import error_of
from muster_collectives.runtime.settings import Settings
from muster_collectives.runtime.store import Store
from muster_collectives.runtime.stragglers import Stragglers
from muster_collectives.runtime.summary import GroupStats, Summary
from muster_collectives.runtime.types import (
    Code,
    Description,
    DType,
    Failure,
    Now,
    Op,
    Record,
    Stats,
    Verb,
)

if TYPE_CHECKING:
    from muster_collectives.binding.memory import Region

_LOOK_EVERY = 16  # calls between two looks at the clock for the log line on stragglers
_CLOSING_S = 5.0
_ANY = 0xFFFFFFFF  # what a peer of -1 is to the core


class Tables(NamedTuple):
    """What a call points to: `arrays` live as long as it does, `at` is where they lie, 0: none."""

    arrays: tuple[object, ...]
    at: tuple[int, int, int]


_NO_TABLES = Tables((), (0, 0, 0))


def _address(array: Any) -> int:
    return ctypes.addressof(array) if array else 0


class CoreGroup:
    """What the core does for one rank of a group. `nodes[r]` is the number of rank r's node,
    `timeout_s` the deadline of calls that give none; `regions` are unmapped when it is closed. The
    layout's descriptors are the core's."""

    transport = "native"
    global_ranks: tuple[int, ...] = ()  # of its ranks in the world
    world_ranks: tuple[int, ...] = ()  # the same, () where its maker did not say
    # of groups that `init` and `new_group` made: where their children meet, and what ends with them
    store: Store | None = None
    children: int = 0
    on_close: Callable[[], None] | None = None
    # of groups whose summary is theirs to write
    summary: Summary | None = None

    def __init__(
        self, layout: GroupLayout, settings: Settings, name: str, timeout_s: float, create_s: float
    ) -> None:
        """Within `create_s`. Raises CollectiveError: a rank of the node did not come, no memory."""
        self.rank = layout.rank
        self.size = layout.size
        self.name = name
        self.nodes = layout.nodes
        self.timeout_s = timeout_s
        self.shm_method = layout.shm_method
        self.huge_pages = settings.huge_pages
        self._why = layout.why
        self.tuning = layout.tuning
        self.library = library.load(settings.core)
        self._pid = os.getpid()
        folder = settings.flight_dir
        self._flight = Flight(folder, name, layout.rank, layout.size) if folder else None
        self._keeps_flight = settings.keeps_flight
        self._stragglers = Stragglers(name, layout.rank, layout.locals, settings.straggler_s)
        self._failure = abi.FailurePlace(layout.size)
        self._signals = SignalCheck()
        # held during a collective; reentrant, so that what an interrupt leaves locked is this
        # thread's own, and a signal handler can be told instead of waiting for itself
        self._lock = threading.RLock()
        self._is_busy = False
        self._entry_lock = threading.RLock()  # a signal handler may come in between and abort
        self._gate = threading.Condition(self._entry_lock)
        self._inside = 0  # threads in functions that may run beside a collective
        self._countdown = _LOOK_EVERY
        self.ends = Ends(self)
        self.regions: set[Region] = set()
        self._is_kept = False  # a thread did not leave the core, which is not freed then
        self._broken: CollectiveError | None = None  # how the first collective failed
        self._handle: ctypes.c_void_p | None = None
        handle = ctypes.c_void_p()
        self._records = settings.records
        code = library.create(self.library, layout, create_s, handle, self._failure, self._records)
        if code:
            failure = self._failure.read(code)
            raise error_of(failure, name, self.rank, self.size, call="making the group")
        self._handle = handle
        self.library.mc_set_signal_check(handle, self._signals.address)
        self._entry = Entry(self.library, handle.value, self._failure.address.value)
        self._run_core, self._post_core = self._entry.run, self._entry.post
        self.wait_core = self._entry.wait
        live.groups.add(self)

    @functools.cached_property
    def why(self) -> tuple[str, ...]:
        """By rank, in words: how it is reached."""
        return self._why()

    # --- collectives

    def run(
        self,
        verb: Verb,
        *,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: Op = Op.SUM,
        root: int = 0,
        in_counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        blocks: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """One collective; returns when `target` is complete. `source` and `target` are addresses,
        `count` is in elements as csrc/muster_core.h says for each verb; `in_counts`/`out_counts`
        [size] are for an all-to-all with uneven parts, `blocks` [size] for an all-gather, and for
        the root of a gather or a scatter: addresses, by rank, in place of the row. The memory is
        the caller's and must live."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        tables = _NO_TABLES
        if in_counts is not None or out_counts is not None or blocks is not None:
            tables = self.tables(in_counts, out_counts, blocks)
        self.perform(verb, dtype, op, root, source, target, count, *tables.at, limit_s)

    def perform(
        self, verb: Verb, dtype: DType, op: Op, root: int, source: int, target: int, count: int,
        in_counts: int, out_counts: int, blocks: int, limit_s: float,
    ) -> None:  # fmt: skip
        """The same, where microseconds count: by position, and the tables by where they lie."""
        if not self._lock.acquire(False):
            self._wait_for_turn()
        try:
            if self._is_busy or self._handle is None:
                raise self._not_now()
            try:
                self._is_busy = True
                code = self._run_core(
                    verb, dtype, op, root, source, target, count, in_counts, out_counts, blocks,
                    limit_s,
                )  # fmt: skip
            finally:
                self._is_busy = False
            if code:
                self._signals.raise_pending()
                self._raise(code, Description(0, count, verb, dtype, op, root))
            self._countdown -= 1
            if not self._countdown:
                self._look_for_stragglers()
        finally:
            self._lock.release()

    def _look_for_stragglers(self) -> None:
        self._countdown = _LOOK_EVERY
        self._stragglers.look(self.waits_s)

    def _not_now(self) -> CollectiveError:
        if self._is_busy:
            return self.usage_error(reentrancy.BETWEEN, reentrancy.FLAG)
        return self._unusable(Code.ECLOSED)

    def end_async(self, address: ctypes.c_void_p, code: int, called: Description | None) -> None:
        """Of one that is done; raises for the one that was `called` and failed with `code`."""
        with self.alone() as handle:
            if called is not None:
                self.library.mc_async_wait(handle, address, 0.0, self._failure.address)
                self._signals.raise_pending()
                self._raise(code, called)
            self._countdown -= 1
            if not self._countdown:
                self._look_for_stragglers()

    @contextmanager
    def alone(self) -> Iterator[ctypes.c_void_p]:
        """This thread is in a collective, as others and its signal handlers shall see."""
        if not self._lock.acquire(False):
            self._wait_for_turn()
        try:
            if self._is_busy or self._handle is None:
                raise self._not_now()
            try:
                self._is_busy = True
                yield self._handle
            finally:
                self._is_busy = False
        finally:
            self._lock.release()

    def abort(self) -> None:
        """Ends the call in progress on every rank, from any thread: they raise AbortedError."""
        with self._gate:
            if self._handle is not None and os.getpid() == self._pid:
                self.library.mc_abort(self._handle)

    # --- sends and receives

    def post_send(
        self, address: int, bytes_: int, peer: int, tag: int, timeout_s: float | None = None
    ) -> Request:
        """Begins a send; the memory must stay as it is until the request is done."""
        return self._post(Ways.SEND, address, bytes_, peer, tag, timeout_s)

    def post_recv(
        self, address: int, bytes_: int, peer: int | None, tag: int, timeout_s: float | None = None
    ) -> Request:
        """Begins a receive of at most `bytes_`; `peer` None: from any rank. A longer message is a
        MismatchError for this receive alone."""
        return self._post(Ways.RECV, address, bytes_, -1 if peer is None else peer, tag, timeout_s)

    def _post(
        self, way: Ways, address: int, bytes_: int, peer: int, tag: int, timeout_s: float | None
    ) -> Request:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        peer, tag = operator.index(peer), operator.index(tag)  # the core's entry takes no other
        if peer >= self.size or peer < -1 or (way is Ways.SEND and peer < 0):
            raise self.usage_error(f"there is no rank {peer}", f"a peer from 0 to {self.size - 1}")
        if not 0 <= tag < 1 << 32:
            raise self.usage_error(f"tag {tag} is out of bounds", "a tag from 0 to 4294967295")
        if bytes_ < 0:
            raise self.usage_error(f"{bytes_} bytes cannot be sent", "0 or more")
        request = Request(self, way, peer, tag, bytes_, limit_s)
        code = self._post_core(way, peer & _ANY, tag, address, bytes_, request.place, limit_s)
        if code == Code.OK:
            request.end()
        elif code != abi.UNDER_WAY:
            raise self.refused(code) or self.error(Failure(abi.code_of(code)), request.text)
        return request

    def refused(self, code: int) -> CollectiveError | None:
        """What is no failure of a call: the group is closed, or another process's."""
        known = code in (Code.ECLOSED, Code.EFORK)
        return self._unusable(Code(code)) if known else None

    @contextmanager
    def inside(self) -> Iterator[ctypes.c_void_p]:
        """The core's handle, which lives until this is left. Raises ClosedError, ForkError."""
        with self._entry_lock:
            if self._handle is None:
                raise self._unusable(Code.ECLOSED)
            if os.getpid() != self._pid:
                raise self._unusable(Code.EFORK)
            self._inside += 1
            handle = self._handle
        try:
            yield handle
        finally:
            with self._entry_lock:
                self._inside -= 1
                if self._handle is None:  # a close waits for it
                    self._gate.notify_all()

    def region_drop(self, number: int) -> bool:
        """False: threads that a close has left in the core may read it still. Nothing where the
        group is closed, or another process's."""
        with suppress(ClosedError), self.alone() as handle:
            if os.getpid() == self._pid:
                self.library.mc_region_drop(handle, number)
        return not self._is_kept

    # --- what it can tell

    def stats(self) -> Stats:
        """Counters since it was made."""
        raw = abi.McStats()
        with self.inside() as handle:
            self.library.mc_stats_read(handle, ctypes.byref(raw))
        return abi.stats(raw)

    def waits_s(self) -> tuple[float, ...]:
        """[size]: for how long this rank has waited for each rank of its node last of all."""
        raw = (ctypes.c_double * self.size)()
        with self.inside() as handle:
            self.library.mc_waits_read(handle, ctypes.addressof(raw))
        return tuple(raw)

    def records(self, most: int = 1 << 16) -> tuple[Record, ...]:
        """The last operations, oldest first, `most` of them at most."""
        room = min(most, self._records)
        raw = (abi.McRecord * room)()
        with self.inside() as handle:
            count = self.library.mc_records_read(handle, ctypes.addressof(raw), room)
        found = (abi.record(raw[index]) for index in range(count))
        return tuple(record for record in found if record is not None)

    def now(self) -> Now | None:
        """The call that runs, else the last one; None where there is none, the core could not tell,
        or another thread closes the group. Never waits, so that any thread may ask at any time."""
        raw, absent = abi.McNow(), (abi.u8 * self.size)()
        if not self._entry_lock.acquire(False):
            return None
        try:  # a close waits for the lock, if only for a moment
            if self._handle is None or os.getpid() != self._pid:
                return None
            at = ctypes.addressof(absent)
            known = self.library.mc_now_read(self._handle, ctypes.addressof(raw), at)
        finally:
            self._entry_lock.release()
        what = abi.description(raw.what) if known else None
        if what is None:
            return None
        missing = tuple(rank for rank, value in enumerate(absent) if value)
        return Now(what, float(raw.since_s), bool(raw.running), missing)

    # --- the end

    def write_summary(self) -> None:
        """What the group did, once, where COLLECTIVES_SUMMARY_DIR says, and its last operations
        where COLLECTIVES_RECORDS is set. Never raises; `close` and the end of the interpreter do
        it."""
        if self._flight is not None and self._keeps_flight:
            with suppress(CollectiveError):
                self._flight.write(None, self.records(), self.waits_s)
        summary, self.summary = self.summary, None
        if summary is not None:
            summary.write(
                lambda: GroupStats(self.transport, self.nodes, self.stats(), self.waits_s())
            )

    def close(self) -> None:
        """Says good-bye and gives everything back. Never raises, may be called twice."""
        if self._handle is None:
            return
        if os.getpid() != self._pid:
            self._handle = None  # the parent's: its flags and sockets are not the child's to touch
            self._entry.close()
            return
        self.write_summary()
        self._end_core()
        end, self.on_close = self.on_close, None
        if end is not None:
            end()

    def _end_core(self) -> None:
        if not self._lock.acquire(False):  # another thread is in a call: it shall end
            self.abort()
            if not self._lock.acquire(timeout=_CLOSING_S):
                return  # the core is still in use, so it cannot be freed
        try:
            if self._is_busy:  # of this thread: a signal handler closes
                self.abort()
                return
            with self._gate:
                self.ends.close()
                handle, self._handle = self._handle, None
                if handle is not None:
                    self.library.mc_follow_no_more(handle)
                self._entry.close()
                free = self._gate.wait_for(lambda: not self._inside, _CLOSING_S)
            free = self._entry.left(_CLOSING_S) and free
            if handle is not None and not free:
                self._is_kept = True
            elif handle is not None:
                self.library.mc_close(handle)
                for region in list(self.regions):
                    region.unmap()
                self.regions.clear()
        finally:
            self._lock.release()

    def __del__(self) -> None:
        try:
            if self.__dict__.get("_handle") is not None:
                self.close()
        except Exception:  # an interpreter that ends has taken modules away already
            pass

    # --- failures

    def error(self, failure: Failure, call: str = "") -> CollectiveError:
        """The exception for a failure; the first one of a group writes the flight log."""
        try:
            records = self.records()
        except CollectiveError:
            records = ()
        found = error_of(failure, self.name, self.rank, self.size, records, call)
        if self._flight is not None and failure.code not in (Code.EINVAL, Code.EFORK):
            self._flight.write(found, records, self.waits_s)
        return found

    def _raise(self, code: int, called: Description) -> NoReturn:
        failure = self._failure.read(code)
        self._failure.clear()
        if failure.code in (Code.EINVAL, Code.EFORK, Code.ECLOSED):
            # the call was never numbered: what the core says of "mine" is the call before it
            raise self.error(replace(failure, mine=called))
        if self._broken is None:
            self._broken = self.error(replace(failure, mine=called.numbered(failure.mine)))
        raise self._broken.again()  # the kept one holds no frames, which hold a store of torch's

    def _wait_for_turn(self) -> None:
        """Another thread is in a call, whose own deadline bounds this wait."""
        while not self._lock.acquire(timeout=1.0):
            if os.getpid() != self._pid:
                raise self._unusable(Code.EFORK)

    def tables(
        self,
        in_counts: Sequence[int] | None,
        out_counts: Sequence[int] | None,
        blocks: Sequence[int] | None,
    ) -> Tables:
        """Raises UsageError."""
        given = (in_counts, out_counts, blocks)
        wrong = (in_counts is None) != (out_counts is None) or any(
            each is not None and (len(each) != self.size or min(each) < 0) for each in given
        )
        if wrong:
            raise self.usage_error(
                "in_counts and out_counts do not say what goes to and comes from each rank, or "
                "blocks where each rank's lies",
                f"give {self.size} numbers of 0 or more in each",
            )
        ins, outs, places = (each and (ctypes.c_uint64 * self.size)(*each) for each in given)
        return Tables((ins, outs, places), (_address(ins), _address(outs), _address(places)))

    def _unusable(self, code: Code) -> CollectiveError:
        return error_of(Failure(code), self.name, self.rank, self.size)

    def usage_error(self, what: str, fix: str) -> UsageError:
        """Of a call that is wrong by itself: nothing has been sent."""
        return UsageError(
            f"group {self.name!r}, rank {self.rank} of {self.size}: {what}", fix,
            group=self.name, rank=self.rank,
        )  # fmt: skip


summed: weakref.WeakSet[CoreGroup] = weakref.WeakSet()  # those with a summary


@atexit.register
def _write_all() -> None:
    """For programs that end without closing their groups."""
    for group in list(summed):
        group.write_summary()

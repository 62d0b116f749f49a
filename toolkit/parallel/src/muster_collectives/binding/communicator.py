"""One group as one rank sees it: what every part above the core may use.

Calls at the pointer level (core_group.py) take addresses, for callers that own the memory; calls at
the buffer level, here, take any object with the buffer protocol (bytearray, array, numpy).

All ranks of a group make the same calls in the same order. Sums have the same bits on all ranks.
Every call raises a subclass of CollectiveError: CollectiveTimeout after its deadline, PeerError
when a rank died, MismatchError when ranks called different things, AbortedError, WireError,
UsageError for a call that is wrong by itself. After any but UsageError the group is broken: each
later call raises the same again, at once, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster_collectives.binding import memory
from muster_collectives.binding.core_group import CoreGroup
from muster_collectives.binding.memory import Region
from muster_collectives.runtime.buffers import Buffer, Span, span_of
from muster_collectives.runtime.types import DTYPE_NAMES, DType, Op, Verb, is_defined


class Communicator(CoreGroup):
    """A group, made by `connect`, `init` or `new_group`."""

    def allocate(self, bytes_: int) -> Region:
        """Registered memory, zeroed; all ranks of the group call it together with the same size.
        Raises ResourceError on every rank if one of them cannot."""
        return memory.allocate(self, bytes_)

    def adopt(
        self, address: int, bytes_: int, *, sends: bool = False
    ) -> Callable[[bool], None] | None:
        """Private memory that this rank sums in place again and again, 1 MiB at least: in the next
        sum of all of it for which every rank has said so it is registered where it lies, and keeps
        its address. `sends`: that it sends; it is registered now, without other ranks. Returns what
        must be called before it is freed (True: it has been already); None where it stays as it is
        (sums over several nodes, ranks that reach each other through /dev/shm, or
        COLLECTIVES_ADOPT_BYTES)."""
        return memory.adopt(self, address, bytes_, sends)

    def barrier(self, timeout_s: float | None = None) -> None:
        self.run(Verb.BARRIER, source=0, target=0, count=0, dtype=DType.U8, timeout_s=timeout_s)

    def all_reduce(
        self,
        buffer: Buffer,
        op: Op | str = Op.SUM,
        dtype: DType | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """In place. The element type is that of the buffer unless `dtype` says it (bfloat16)."""
        span = self._span(buffer, dtype, True)
        which = self._op(op, span.dtype)
        self.run(
            Verb.ALL_REDUCE, source=span.address, target=span.address, count=span.count,
            dtype=span.dtype, op=which, timeout_s=timeout_s,
        )  # fmt: skip

    def reduce(
        self,
        buffer: Buffer,
        root: int = 0,
        op: Op | str = Op.SUM,
        dtype: DType | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """In place on the root; the other ranks' buffers stay as they are."""
        span = self._span(buffer, dtype, True)
        which = self._op(op, span.dtype)
        self.run(
            Verb.REDUCE, source=span.address, target=span.address if self.rank == root else 0,
            count=span.count, dtype=span.dtype, op=which, root=self._root(root),
            timeout_s=timeout_s,
        )  # fmt: skip

    def broadcast(self, buffer: Buffer, root: int = 0, timeout_s: float | None = None) -> None:
        """In place: every rank ends with the root's bytes."""
        span = self._span(buffer, None, True, only_moved=True)
        self.run(
            Verb.BROADCAST, source=0, target=span.address, count=span.count, dtype=span.dtype,
            root=self._root(root), timeout_s=timeout_s,
        )  # fmt: skip

    def all_gather(self, out: Buffer, buffer: Buffer, timeout_s: float | None = None) -> None:
        """`out` holds `size` times `buffer`, in the order of the ranks."""
        source = self._span(buffer, None, False, only_moved=True)
        target = self._span(out, source.dtype, True)
        self._fits("out", target.count, source.count * self.size)
        self.run(
            Verb.ALL_GATHER, source=source.address, target=target.address, count=source.count,
            dtype=source.dtype, timeout_s=timeout_s,
        )  # fmt: skip

    def reduce_scatter(
        self,
        out: Buffer,
        buffer: Buffer,
        op: Op | str = Op.SUM,
        dtype: DType | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """`buffer` holds `size` parts; `out` ends with the sum of this rank's part."""
        source = self._span(buffer, dtype, False)
        target = self._span(out, source.dtype, True)
        self._fits("buffer", source.count, target.count * self.size)
        which = self._op(op, source.dtype)
        self.run(
            Verb.REDUCE_SCATTER, source=source.address, target=target.address, count=target.count,
            dtype=source.dtype, op=which, timeout_s=timeout_s,
        )  # fmt: skip

    def gather(
        self,
        out: Buffer | None,
        buffer: Buffer,
        root: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """On the root `out` holds `size` times `buffer`; elsewhere it is not looked at."""
        source = self._span(buffer, None, False, only_moved=True)
        address = 0
        if self.rank == self._root(root):
            target = self._span(self._present("out", out), source.dtype, True)
            self._fits("out", target.count, source.count * self.size)
            address = target.address
        self.run(
            Verb.GATHER, source=source.address, target=address, count=source.count,
            dtype=source.dtype, root=root, timeout_s=timeout_s,
        )  # fmt: skip

    def scatter(
        self,
        out: Buffer,
        buffer: Buffer | None,
        root: int = 0,
        timeout_s: float | None = None,
    ) -> None:
        """The root's `buffer` holds `size` parts; `out` ends with this rank's part."""
        target = self._span(out, None, True, only_moved=True)
        address = 0
        if self.rank == self._root(root):
            source = self._span(self._present("buffer", buffer), target.dtype, False)
            self._fits("buffer", source.count, target.count * self.size)
            address = source.address
        self.run(
            Verb.SCATTER, source=address, target=target.address, count=target.count,
            dtype=target.dtype, root=root, timeout_s=timeout_s,
        )  # fmt: skip

    def all_to_all(
        self,
        out: Buffer,
        buffer: Buffer,
        in_counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Part i of `buffer` goes to rank i, part i of `out` came from rank i. Parts are equal, or
        as long as `in_counts` and `out_counts` [size] say, in elements."""
        source = self._span(buffer, None, False, only_moved=True)
        target = self._span(out, source.dtype, True)
        if (in_counts is None) != (out_counts is None):
            raise self.usage_error(
                "all_to_all has in_counts or out_counts alone", "give both or none"
            )
        if in_counts is not None and out_counts is not None:
            self._fits("buffer", source.count, sum(in_counts))
            self._fits("out", target.count, sum(out_counts))
            count = 0
        else:
            self._fits("out", target.count, source.count)
            count, rest = divmod(source.count, self.size)
            if rest:
                raise self.usage_error(
                    f"all_to_all of {source.count} elements over {self.size} ranks",
                    "give a multiple of the ranks, or in_counts and out_counts",
                )
        self.run(
            Verb.ALL_TO_ALL, source=source.address, target=target.address, count=count,
            dtype=source.dtype, in_counts=in_counts, out_counts=out_counts, timeout_s=timeout_s,
        )  # fmt: skip

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what is wrong with a call before anything is sent

    def _span(
        self, buffer: Buffer, dtype: DType | None, writable: bool, only_moved: bool = False
    ) -> Span:
        try:
            return span_of(buffer, dtype, writable, only_moved)
        except (TypeError, ValueError, BufferError) as error:
            raise self.usage_error(
                f"a buffer cannot be used: {error}",
                "give a C-contiguous buffer of numbers (array, bytearray, numpy); what receives "
                "must be writable",
            ) from error

    def _op(self, op: Op | str, dtype: DType) -> Op:
        if isinstance(op, str):
            try:
                op = Op[op.upper()]
            except KeyError:
                names = ", ".join(each.name.lower() for each in Op)
                raise self.usage_error(f"no operation {op!r}", f"one of {names}") from None
        if not is_defined(dtype, op):
            raise self.usage_error(
                f"{op.name.lower()} is not defined for {DTYPE_NAMES[dtype]}",
                "avg is for floats; band, bor and bxor are for integers",
            )
        return op

    def _root(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise self.usage_error(f"there is no rank {root}", f"a root from 0 to {self.size - 1}")
        return root

    def _present(self, what: str, buffer: Buffer | None) -> Buffer:
        if buffer is None:
            raise self.usage_error(f"the root gave no {what}", f"give {what} on the root")
        return buffer

    def _fits(self, what: str, count: int, expected: int) -> None:
        if count != expected:
            raise self.usage_error(
                f"{what} holds {count} elements, and {expected} are due", f"make {what} that long"
            )

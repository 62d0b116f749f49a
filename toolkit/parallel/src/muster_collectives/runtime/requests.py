"""Protocols of what is under way in a group: calls, sends and receives, registered memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from muster_collectives.runtime.types import DType, Op, Status, Verb


class Call(Protocol):
    """The arguments of one `Communicator.run`."""

    @property
    def verb(self) -> Verb: ...
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def op(self) -> Op: ...
    @property
    def root(self) -> int: ...
    @property
    def in_counts(self) -> Sequence[int] | None: ...
    @property
    def out_counts(self) -> Sequence[int] | None: ...


class Async(Protocol):
    """Calls that are to be posted, or have been. One thread at a time uses it."""

    @property
    def is_posted(self) -> int:
        """True from the moment on from which their memory is the core's."""

    def post(self, grace_s: float) -> None:
        """They begin `grace_s` later at the earliest. Raises CollectiveError: the group is closed,
        in a child of the process or has no thread."""

    def done(self) -> bool:
        """Whether they have ended: their memory is the caller's again."""

    def wait(self) -> None:
        """Until `done`. Raises only what a signal handler raises, and the calls go on then."""

    def end(self) -> None:
        """Once `done`: raises what the first that failed ended with."""


class Request(Protocol):
    """A send or a receive under way."""

    def wait(self, timeout_s: float | None = None) -> Status:
        """Until it is done. `timeout_s` (none: that of the post) bounds this wait alone: after it
        CollectiveTimeout, and the request goes on. Raises what the transfer ended with."""

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""


class Ends(Protocol):
    """Tells threads which of many requests of a group have ended, in the order of their ends."""

    def follow(self, request: Any) -> bool:
        """`next` shall tell its end. False: its end is known already, and `next` will not tell
        it. Raises CollectiveError: the group is closed, in a child of the process, no memory."""

    def next(self) -> Request | None:
        """Waits for the next end of one that is followed, which it tells one thread; None once the
        group is closed."""


class Region(Protocol):
    """Memory that the ranks of the node have in common: collectives on it copy less.

    `view` is this rank's own part, writable; `release` ends it, called by all ranks together.
    """

    address: int
    bytes: int

    @property
    def view(self) -> memoryview: ...

    def release(self) -> None: ...

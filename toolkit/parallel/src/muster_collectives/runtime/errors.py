"""What can go wrong, as one tree.

CollectiveError
 |- CollectiveTimeout  a deadline passed; `ranks` are those that have not come
 |- PeerError          a rank died or left; `ranks` says which
 |- MismatchError      ranks called different things; the text names both
 |- AbortedError       `abort()` here or on another rank
 |- WireError          a connection between nodes failed or carried what is not ours
 |   `- ChecksumError  checked mode: what came is not what was sent
 |- UsageError         this rank's own call is wrong; nothing was sent, the group still works
 |- ResourceError      memory or a system call failed
 |- ForkError          called in a child of the process that made the group
 |- ClosedError        the group is closed
 |- CoreError          this process cannot use the compiled core
 |- SettingsError      a variable or an argument cannot be used: the user fixes it
 `- RendezvousError    the ranks did not find each other
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from muster_collectives.runtime.types import Code


class CollectiveError(RuntimeError):
    """An error that a person reads: who, in which operation, what happened; `fix`: what to do.

    `group` is the group's name, `rank` this rank in it, `ranks` the ranks that are named as the
    cause, `code` how the core ended the call, `operation` its number in the group (0: none).
    """

    def __init__(
        self,
        message: str,
        fix: str = "",
        *,
        group: str = "",
        rank: int = -1,
        ranks: Sequence[int] = (),
        code: Code = Code.EINVAL,
        operation: int = 0,
        last: str = "",
    ) -> None:
        text = message
        if fix:
            text += f"\n  Fix: {fix}"
        if last:
            text += f"\n  Last operations: {last}"
        super().__init__(text)
        self.message = message
        self.fix = fix
        self.last = last
        self.group = group
        self.rank = rank
        self.ranks = tuple(ranks)
        self.code = code
        self.operation = operation

    def again(self) -> CollectiveError:
        """The same error as a new object, for each later call of a broken group."""
        found = copy.copy(self)
        found.__dict__.pop("__notes__", None)  # of that call
        return found


class CollectiveTimeout(CollectiveError, TimeoutError):  # noqa: N818
    """A deadline passed; `ranks` are those that have not come."""


class PeerError(CollectiveError, ConnectionError):
    """A rank died or left the group; `ranks` says which."""


class MismatchError(CollectiveError):
    """Ranks called different operations, types, sizes or roots; the text names both sides."""


class AbortedError(CollectiveError):
    """`abort()` was called, here or on another rank."""


class WireError(CollectiveError, ConnectionError):
    """A connection between nodes failed, or carried what is not ours."""


class ChecksumError(WireError):
    """Checked mode: the bytes that came are not those that were sent."""


class UsageError(CollectiveError, ValueError):
    """This rank's own call is wrong; nothing was sent and the group still works."""


class ResourceError(CollectiveError):
    """Memory or a system call failed; the text has the system's reason."""


class ForkError(CollectiveError):
    """Called in a child of the process that made the group."""


class ClosedError(CollectiveError):
    """The group is closed."""


class CoreError(CollectiveError, ImportError):
    """The compiled core is missing, cannot be loaded or has another interface; the text says why.
    Without it there are no collectives of ours: torch's CPU tensors go to gloo."""


class SettingsError(CollectiveError, ValueError):
    """A variable or an argument cannot be used."""


class RendezvousError(CollectiveError, ConnectionError):
    """The ranks did not find each other; the text names who is missing."""


OF_CODE: Mapping[Code, type[CollectiveError]] = {
    Code.EINVAL: UsageError,
    Code.ETIMEOUT: CollectiveTimeout,
    Code.EPEER: PeerError,
    Code.EMISMATCH: MismatchError,
    Code.EABORT: AbortedError,
    Code.ENET: WireError,
    Code.ECHECK: ChecksumError,
    Code.EMEM: ResourceError,
    Code.ESYS: ResourceError,
    Code.EFORK: ForkError,
    Code.ECLOSED: ClosedError,
}

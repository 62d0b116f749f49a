"""How the ranks of a group that is being made settle a question: all say, rank 0 decides, all hear.

One question costs a rank two operations of the store, and rank 0 one for each rank. Nobody decides
by itself, so all ranks have the same answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from muster_collectives.runtime.errors import (
    CollectiveError,
    CollectiveTimeout,
    CoreError,
    RendezvousError,
    ResourceError,
    SettingsError,
)
from muster_collectives.runtime.messages import ranks_text
from muster_collectives.runtime.store import Store
from muster_collectives.runtime.types import Code

Said = dict[str, Any]
Decide = Callable[[Sequence[Said]], Said]
_GRACE_S = 2.0  # for rank 0 to say who is missing, after its own deadline, and for all to hear it
_LAST_LOOK_S = 0.01
_KINDS: dict[str, type[CollectiveError]] = {
    each.__name__: each for each in (CollectiveTimeout, CoreError, ResourceError, SettingsError)
}


class Agreement:
    """The agreement of a group's ranks while it is made: every rank says something, rank 0 decides,
    every rank reads that."""

    def __init__(self, store: Store, rank: int, size: int, group: str, timeout_s: float) -> None:
        self._store = store
        self.rank = rank
        self.size = size
        self.group = group
        self.timeout_s = timeout_s
        self._making = f"group {group!r}, rank {rank} of {size}, making the group"
        self._deadline = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Until the deadline; a little where it has passed, so that what is there is still read."""
        return max(_LAST_LOOK_S, self._deadline - time.monotonic())

    def decide(self, question: str, mine: Said, decide: Decide) -> Said:
        """What `decide`, called on rank 0 alone, made of what all ranks said.

        Raises CollectiveTimeout that names who has not come, what a rank refused with or rank 0's
        decision failed with, the same on all ranks, and RendezvousError if the store fails.
        """
        if self.rank:
            self.leave(f"{question}/{self.rank}", mine)
            answer = self.read(question, f"rank 0's word on {question!r}", _GRACE_S)
            if "failed" in answer:
                with suppress(RendezvousError):  # rank 0 has gone without waiting for it
                    self.leave(f"{question}/heard/{self.rank}", {})
                raise self._told(answer)
            return answer
        said = {0: mine}
        try:
            self._gather(question, said)
            answer = decide([said[rank] for rank in range(self.size)])
        except CollectiveError as error:
            self.leave(question, _words_of(error))
            self._until_heard(question, said)
            raise
        self.leave(question, answer)
        return answer

    def fail(self, question: str, error: CollectiveError) -> NoReturn:
        """Instead of `settle` on a rank that has no answer: `error` is raised on all ranks."""
        self.decide(question, _words_of(error), lambda said: {})
        raise error

    def barrier(self) -> None:
        """All say that they are here; rank 0 alone waits for them. Raises as `settle`."""
        if self.rank:
            self.leave(f"here/{self.rank}", {})
        else:
            self._gather("here", {0: {}})

    def leave(self, key: str, words: Said) -> None:
        """Raises RendezvousError."""
        try:
            self._store.set(key, json.dumps(words).encode())
        except (OSError, RuntimeError) as error:
            raise self._lost(error) from error

    def read(self, key: str, what: str, grace_s: float = 0.0) -> Said:
        """Waits for the words. Raises CollectiveTimeout, RendezvousError."""
        words = self._read_until(key, self._deadline, grace_s)
        if words is None:
            raise self._late((0,), what)
        return words

    def _gather(self, question: str, said: dict[int, Said]) -> None:
        """Adds the words of all ranks. One that refuses is reason not to wait for late ones."""
        missing = []
        end = self._deadline
        for rank in range(self.size):
            if rank not in said:
                words = self._read_until(f"{question}/{rank}", end)
                if words is None:
                    missing.append(rank)  # and now the short look at the others
                    continue
                said[rank] = words
            if "failed" in said[rank]:
                end = min(end, time.monotonic() + _GRACE_S)
        refused = [rank for rank in sorted(said) if "failed" in said[rank]]
        if refused:
            raise self._refused(refused, said[refused[0]])
        if missing:
            raise self._late(missing, "")

    def _until_heard(self, question: str, came: Collection[int]) -> None:
        """Rank 0 may close the store when this ends with an error: who came shall have read it."""
        end = time.monotonic() + _GRACE_S
        for rank in sorted(came):
            if rank:
                with suppress(OSError, RuntimeError):
                    left_s = max(_LAST_LOOK_S, end - time.monotonic())
                    self._store.get(f"{question}/heard/{rank}", left_s)

    def _read_until(self, key: str, end: float, grace_s: float = 0.0) -> Said | None:
        """The words of a key; None where they have not come by `end` (monotonic)."""
        left_s = max(_LAST_LOOK_S, end - time.monotonic())
        try:
            data = self._store.get(key, left_s + grace_s)
        except (OSError, RuntimeError) as error:
            # stores round their waits: what ends a little before the deadline has waited for it
            if isinstance(error, CollectiveError) or time.monotonic() < end - 0.5:
                raise self._lost(error) from error
            return None
        try:
            words = json.loads(bytes(data))
        except ValueError:
            words = None
        if not isinstance(words, dict):
            raise RendezvousError(
                f"group {self.group!r}: what the store holds is not ours",
                "give each job a store (MASTER_PORT) of its own",
            )
        return words

    def _late(self, ranks: Sequence[int], what: str) -> CollectiveTimeout:
        verb = "has" if len(ranks) == 1 else "have"
        return CollectiveTimeout(
            f"{self._making}: {ranks_text(ranks)} {verb} not come{f' ({what})' if what else ''}, "
            f"after {self.timeout_s:.2f} s",
            "see that all ranks run and make the same groups in the same order",
            group=self.group, rank=self.rank, ranks=ranks, code=Code.ETIMEOUT,
        )  # fmt: skip

    def _refused(self, ranks: Sequence[int], words: Said) -> CollectiveError:
        others = f" ({ranks_text(ranks)} cannot)" if len(ranks) > 1 else ""
        text = f"rank {ranks[0]} cannot take part{others}: {words['failed']}"
        return self._told({**words, "failed": f"group {self.group!r}: {text}", "ranks": ranks})

    def _told(self, answer: Said) -> CollectiveError:
        kind = _KINDS.get(str(answer.get("kind")), RendezvousError)
        return kind(
            str(answer["failed"]), str(answer.get("fix", "")), group=self.group, rank=self.rank,
            ranks=[int(rank) for rank in answer.get("ranks", ())],
            code=Code.ENET if kind is RendezvousError else Code(answer.get("code", Code.EINVAL)),
        )  # fmt: skip

    def _lost(self, error: Exception) -> RendezvousError:
        return RendezvousError(
            f"{self._making}: the store fails: {error}",
            "look at the output of rank 0 first: it holds the store",
            group=self.group, rank=self.rank, code=Code.ENET,
        )  # fmt: skip


def _words_of(error: CollectiveError) -> Said:
    return {
        "failed": error.message, "fix": error.fix, "ranks": error.ranks, "code": int(error.code),
        "kind": type(error).__name__,
    }  # fmt: skip

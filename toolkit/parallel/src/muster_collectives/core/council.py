"""How the ranks of a group that is being made settle a question: all say, rank 0 decides, all hear.

One question costs a rank two operations of the store, and rank 0 one for each rank. Nobody decides
by itself, so all ranks have the same answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from muster_collectives.core.errors import CollectiveError, CollectiveTimeout, RendezvousError
from muster_collectives.core.messages import ranks_text
from muster_collectives.core.store import Store
from muster_collectives.core.types import Code

Said = dict[str, Any]
Decide = Callable[[Sequence[Said]], Said]
_GRACE_S = 2.0  # for rank 0 to say who is missing, after its own deadline
_LAST_LOOK_S = 0.01


class Council:
    def __init__(self, store: Store, rank: int, size: int, group: str, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._group = group
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Until the deadline; a little where it has passed, so that what is there is still read."""
        return max(_LAST_LOOK_S, self._deadline - time.monotonic())

    def settle(self, question: str, mine: Said, decide: Decide) -> Said:
        """What `decide`, called on rank 0 alone, made of what all ranks said.

        Raises CollectiveTimeout that names who has not come, RendezvousError if the store fails or
        rank 0 could not decide.
        """
        if self._rank:
            self.leave(f"{question}/{self._rank}", mine)
            answer = self.read(question, f"rank 0's word on {question!r}", _GRACE_S)
            if "failed" in answer:
                raise self._told(answer)
            return answer
        try:
            answer = decide(self._gather(question, mine))
        except CollectiveError as error:
            self.leave(question, {"failed": error.message, "fix": error.fix,
                                  "ranks": error.ranks, "code": int(error.code)})  # fmt: skip
            raise
        self.leave(question, answer)
        return answer

    def hear(self) -> None:
        """All say that they are here; rank 0 alone waits for them. Raises as `settle`."""
        if self._rank:
            self.leave(f"here/{self._rank}", {})
        else:
            self._gather("here", {})

    def leave(self, key: str, words: Said) -> None:
        """Raises RendezvousError."""
        try:
            self._store.set(key, json.dumps(words).encode())
        except (OSError, RuntimeError) as error:
            raise self._lost(error) from error

    def read(self, key: str, what: str, grace_s: float = 0.0) -> Said:
        """Waits for the words. Raises CollectiveTimeout, RendezvousError."""
        try:
            return self._words(self._store.get(key, self.left_s + grace_s))
        except (OSError, RuntimeError) as error:
            if isinstance(error, CollectiveError) or not self._is_late():
                raise self._lost(error) from error
            raise self._late((0,), what) from error

    def _gather(self, question: str, mine: Said) -> list[Said]:
        said = [mine]
        missing = []
        for rank in range(1, self._size):
            try:
                said.append(self._words(self._store.get(f"{question}/{rank}", self.left_s)))
            except (OSError, RuntimeError) as error:
                if isinstance(error, CollectiveError) or not self._is_late():
                    raise self._lost(error) from error
                missing.append(rank)  # and now the short look at the others
        if missing:
            raise self._late(missing, "")
        return said

    def _is_late(self) -> bool:
        # the store rounds its waits: what ends a little before the deadline has waited for it
        return time.monotonic() >= self._deadline - 0.5

    def _words(self, data: bytes) -> Said:
        try:
            words = json.loads(bytes(data))
        except ValueError:
            words = None
        if not isinstance(words, dict):
            raise RendezvousError(
                f"group {self._group!r}: what the store holds is not ours",
                "give each job a store (MASTER_PORT) of its own",
            )
        return words

    def _late(self, ranks: Sequence[int], what: str) -> CollectiveTimeout:
        waited = f"after {self._timeout_s:.2f} s"
        verb = "has" if len(ranks) == 1 else "have"
        return CollectiveTimeout(
            f"group {self._group!r}, rank {self._rank} of {self._size}, making the group: "
            f"{ranks_text(ranks)} {verb} not come{f' ({what})' if what else ''}, {waited}",
            "see that all ranks run and make the same groups in the same order",
            group=self._group, rank=self._rank, ranks=ranks, code=Code.ETIMEOUT,
        )  # fmt: skip

    def _told(self, answer: Said) -> CollectiveError:
        kind = CollectiveTimeout if answer.get("code") == Code.ETIMEOUT else RendezvousError
        return kind(
            str(answer["failed"]), str(answer.get("fix", "")), group=self._group, rank=self._rank,
            ranks=[int(rank) for rank in answer.get("ranks", ())],
            code=Code.ETIMEOUT if kind is CollectiveTimeout else Code.ENET,
        )  # fmt: skip

    def _lost(self, error: Exception) -> RendezvousError:
        return RendezvousError(
            f"group {self._group!r}, rank {self._rank} of {self._size}, making the group: "
            f"the store fails: {error}",
            "look at the output of rank 0 first: it holds the store",
            group=self._group, rank=self._rank, code=Code.ENET,
        )  # fmt: skip

"""How the ranks of a group that is being made settle a question: all say, rank 0 decides, all hear.

A question is one round: a rank leaves its word and waits for the answer, rank 0 asks the store once
for the words of all. Nobody decides by itself, so all ranks have the same answer.

The store may be older than the group: a job that was begun again makes the same names, perhaps with
other members, and what an earlier making has left there must not be taken for a word of this one.
So each making has a generation, a name that was never used, which begins its keys; the first round
(`meet`) makes it. In it a rank says hello with a number of its own and waits for the answer to that
number, so an old answer misleads nobody. An old hello misleads rank 0, until it misses that rank's
word in the next round, and finds another hello of it: then all of them start over. A rank that has
its answer takes its hello back, by one without a number: a key is never deleted that another rank
may be about to read, for torch's store waits for it then.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from muster_collectives.runtime.errors import (
    CollectiveError,
    CollectiveTimeout,
    CoreError,
    RendezvousError,
    ResourceError,
    SettingsError,
)
from muster_collectives.runtime.messages import ranks_text
from muster_collectives.runtime.store import LAST_LOOK_S, Store, get_all, set_all
from muster_collectives.runtime.types import Code
from muster_collectives.version import __version__

Said = dict[str, Any]
Decide = Callable[[Sequence[Said]], Said]
T = TypeVar("T")
_GRACE_S = 2.0  # for rank 0 to say who is missing, after its own deadline, and for all to hear it
_VOTE_S = 10.0  # after the deadline, for the slowest rank to say how it ended
_LOOK_S, _LOOK_MOST_S = 0.25, 0.5  # between two looks at who is missing, for which rank 0 asks much
_WHO, _REFUSED = "who", "refused"
_OTHER_WAY = (CoreError.__name__, ResourceError.__name__)  # of the ranks, where they have one
_KINDS: dict[str, type[CollectiveError]] = {
    each.__name__: each for each in (CollectiveTimeout, CoreError, ResourceError, SettingsError)
}


class _StartOverError(Exception):
    """Rank 0 had taken a hello of an earlier making for one of this."""


class Agreement:
    """The agreement of a group's ranks while it is made: every rank says something, rank 0 decides,
    every rank reads that. `generation`: "" until they have met; `is_settled`: they know all that
    they settle together, so what fails now fails on this rank alone. `falls_back`: the ranks go
    another way together where one of them cannot use the core; so who is late is waited for."""

    def __init__(
        self, store: Store, rank: int, size: int, group: str, timeout_s: float,
        falls_back: bool = False,
    ) -> None:  # fmt: skip
        self._store = store
        self._falls_back = falls_back
        self.rank = rank
        self.size = size
        self.group = group
        self.timeout_s = timeout_s
        self.generation = ""
        self.is_settled = False
        self._making = f"group {group!r}, rank {rank} of {size}, making the group"
        self._deadline = time.monotonic() + timeout_s
        self._taken: set[str] = set()  # numbers of hellos
        self._unproved: dict[int, str] = {}  # by rank: the number, until its next word has come
        self._to_leave: dict[str, Said] = {}  # with the next words

    @property
    def left_s(self) -> float:
        """Until the deadline; a little where it has passed, so that what is there is still read."""
        return max(LAST_LOOK_S, self._deadline - time.monotonic())

    def meet(self, mine: Said, decide: Decide, follow: Callable[[Said], T]) -> T:
        """The first question: what `follow`, which asks at least one more, makes of the answer.

        It is called again where the ranks start over. Raises as `decide`.
        """
        while True:
            try:
                answer = self._lead(mine, decide) if self.rank == 0 else self._join(mine)
                if "failed" in answer:
                    self._refuse(answer)
                followed = follow(answer)
                self.is_settled = True
                return followed
            except _StartOverError:
                continue

    def fail(self, error: CollectiveError) -> NoReturn:
        """Instead of `meet` on a rank that cannot take part: an error is raised on all ranks."""
        self.meet(_words_of(error), lambda said: {}, lambda answer: None)
        raise error

    def decide(self, question: str, mine: Said, decide: Decide, more_s: float = 0.0) -> Said:
        """What `decide`, called on rank 0 alone, made of what all ranks said, which has `more_s`
        after the deadline.

        Raises CollectiveTimeout that names who has not come, what a rank refused with or rank 0's
        decision failed with, the same on all ranks, and RendezvousError if the store fails.
        """
        end = self._deadline + more_s
        if self.rank:
            self.leave(f"{question}/{self.rank}", mine)
            answer = self._read(self._key(question), end + _GRACE_S)
            if answer is None:
                raise self._late((0,), f"rank 0's word on {question!r}")
            self._check(question, answer)
            return answer
        said = {0: mine}
        try:
            self._gather(question, said, end)
            answer = decide([said[rank] for rank in range(self.size)])
        except CollectiveError as error:
            self._tell_failure(question, _words_of(error), said)
            raise
        self.leave(question, answer)
        return answer

    def _check(self, question: str, answer: Said) -> None:
        """Raises what rank 0 has answered in place of a decision."""
        if "start over" in answer:
            raise _StartOverError
        if "failed" in answer:
            self._heard(question)
            raise self._told(answer)

    def vote(self, word: str) -> dict[int, str]:
        """By rank, the words of those that had one to say. Raises as `decide`, after more than the
        deadline: a rank whose part failed at once votes long before one that has waited."""

        def spoke(said: Sequence[Said]) -> Said:
            return {"words": {rank: each["word"] for rank, each in enumerate(said) if each["word"]}}

        answer = self.decide("vote", {"word": word}, spoke, _VOTE_S)
        return {int(rank): str(each) for rank, each in answer["words"].items()}

    def barrier(self) -> None:
        """All say that they are here; rank 0 alone waits for them. Raises as `decide`."""
        if self.rank:
            self.leave(f"here/{self.rank}", {})
        else:
            self._gather("here", {0: {}}, self._deadline)

    def leave(self, key: str, words: Said) -> None:
        """Of this generation. Raises RendezvousError."""
        self._leave({self._key(key): words})

    def read(self, key: str, question: str) -> Said | None:
        """Waits for words of this generation that another rank leaves before it answers `question`.
        None where they do not come in time for this rank's own answer. Raises as `decide`."""
        end = self._deadline - min(1.0, self.timeout_s / 10)
        pause_s = _LOOK_S
        while True:
            words = self._read(self._key(key), min(end, time.monotonic() + pause_s))
            if words is not None or time.monotonic() >= end:
                return words
            ended = self._read(self._key(question), time.monotonic() + LAST_LOOK_S)
            if ended is not None:
                self._check(question, ended)
            pause_s = min(_LOOK_MOST_S, pause_s * 1.5)

    # --- the first round

    def _join(self, mine: Said) -> Said:
        """On other ranks than 0."""
        number = secrets.token_hex(8)
        hello, mark = f"hello/{self.rank}", f"answer/{self.rank}/{number}"
        whose = {"number": number, "size": self.size, "version": __version__}
        self._leave({hello: {**whose, "words": mine}})
        found = self._look([mark, _WHO], self._deadline + _GRACE_S)
        answer = found.get(_WHO, {})
        if mark not in found:
            if answer.get("size", self.size) != self.size:
                raise self._refused(
                    (0,), 0, _unlike("size", 0, answer["size"], self.rank, self.size)
                )
            last, own = answer.get("failed", ""), mine.get("failed", "")
            what = "rank 0's word on who takes part"
            what += f"; the last one here was: {last}" if last else ""
            raise self._late((0,), f"{what}; this rank cannot: {own}" if own else what)
        if answer.get("generation") != found[mark].get("generation"):
            raise _StartOverError  # rank 0 has been started again meanwhile
        self._to_leave = {hello: {}}
        self.generation = str(answer["generation"])
        return answer

    def _lead(self, mine: Said, decide: Decide) -> Said:
        """On rank 0: answers all hellos at once."""
        said, numbers = {0: mine}, dict[int, str]()
        try:
            self._gather_hellos(said, numbers)
            answer = decide([said[rank] for rank in range(self.size)])
        except CollectiveError as error:
            answer = _words_of(error)
        self.generation = secrets.token_hex(8)
        mark = {"generation": self.generation}
        marks = {f"answer/{rank}/{number}": mark for rank, number in numbers.items()}
        self._leave({_WHO: {**answer, **mark, "size": self.size}, **marks})
        self._unproved = numbers
        self._taken.update(numbers.values())
        return answer

    def _gather_hellos(self, said: dict[int, Said], numbers: dict[int, str]) -> None:
        """Adds those that have not been answered, and their numbers. One that cannot take part is
        reason not to wait for late ones."""
        end, pause_s = self._deadline, _LOOK_S
        while len(said) < self.size:
            missing = [rank for rank in range(self.size) if rank not in said]
            began = time.monotonic()
            hellos = self._look([f"hello/{rank}" for rank in missing], min(end, began + pause_s))
            for rank in missing:
                number = hellos.get(f"hello/{rank}", {}).get("number")
                if number is not None and str(number) not in self._taken:
                    said[rank] = self._like(rank, hellos[f"hello/{rank}"])
                    numbers[rank] = str(number)
            if any(map(self._ends_it, said.values())):
                end = min(end, time.monotonic() + _GRACE_S)
            if time.monotonic() >= end:
                break
            # old hellos are there at once, and are not waited for
            rest_s = began + pause_s - time.monotonic()
            if len(said) < self.size and rest_s > 0:
                time.sleep(min(rest_s, pause_s / 10))
            pause_s = min(_LOOK_MOST_S, pause_s * 1.5)
        self._require(said)

    def _like(self, rank: int, hello: Said) -> Said:
        """The words of a hello; why its rank cannot take part where it is of another version or
        size than rank 0."""
        for what, mine in (("version", __version__), ("size", self.size)):
            if hello.get(what) != mine:
                return _unlike(what, rank, hello.get(what), 0, mine)
        words: Said = hello["words"]
        return words

    def _refuse(self, answer: Said) -> NoReturn:
        """Somebody cannot take part, or has not come. That counts once all who came have heard it:
        an old hello may have a refusal in it, or hide who is missing."""
        if self.rank:
            self.leave(f"{_REFUSED}/{self.rank}", {})
            final = self._read(self._key(_REFUSED), time.monotonic() + 3 * _GRACE_S)
            if final is not None and "start over" in final:
                raise _StartOverError
            self._heard(_REFUSED)
            raise self._told(final or answer)
        came, here = (0, *self._unproved), dict[int, Said]({0: {}})
        self._collect(_REFUSED, here, came, time.monotonic() + _GRACE_S)
        silent = [rank for rank in came if rank not in here]
        if silent and time.monotonic() >= self._deadline:
            is_late = answer.get("kind") == CollectiveTimeout.__name__
            late = answer["ranks"] if is_late else ()
            why = "" if is_late else f"to hear that {answer['failed']}"
            answer = _words_of(self._late(sorted({*late, *silent}), why))
        elif silent:
            self.leave(_REFUSED, {"start over": True})
            raise _StartOverError
        self._tell_failure(_REFUSED, answer, here)
        raise self._told(answer)

    # --- any round

    def _gather(self, question: str, said: dict[int, Said], end: float) -> None:
        """Adds the words of all ranks."""
        self._collect(question, said, range(self.size), end)
        self._require(said)

    def _collect(
        self, question: str, said: dict[int, Said], ranks: Collection[int], end: float
    ) -> None:
        """Adds the words of `ranks` that come by `end`. One that refuses is reason not to wait for
        late ones. Raises _StartOverError, and RendezvousError if the store fails."""
        pause_s = _LOOK_S
        while missing := [rank for rank in ranks if rank not in said]:
            keys = {self._key(f"{question}/{rank}"): rank for rank in missing}
            found = self._look(list(keys), min(end, time.monotonic() + pause_s))
            said.update({keys[key]: words for key, words in found.items()})
            for rank in [rank for rank in said if rank in self._unproved]:
                del self._unproved[rank]
            if any(map(self._ends_it, said.values())):
                end = min(end, time.monotonic() + _GRACE_S)
            if len(found) < len(keys):
                self._look_for_newcomers(question)
                if time.monotonic() >= end:
                    break
            pause_s = min(_LOOK_MOST_S, pause_s * 1.5)

    def _look_for_newcomers(self, question: str) -> None:
        """Raises _StartOverError where a rank without a word has said hello again."""
        keys = {f"hello/{rank}": number for rank, number in self._unproved.items()}
        if not keys:
            return
        hellos = self._look(list(keys), time.monotonic() + LAST_LOOK_S)
        if any(words.get("number") not in (None, keys[key]) for key, words in hellos.items()):
            self.leave(question, {"start over": True})
            raise _StartOverError

    def _ends_it(self, words: Said) -> bool:
        """Whether a rank's word ends the making: late ones are not waited for."""
        return "failed" in words and not (self._falls_back and words.get("kind") in _OTHER_WAY)

    def _require(self, said: Mapping[int, Said]) -> None:
        """Raises what a rank refused with, or CollectiveTimeout for those that are not there."""
        refused = [rank for rank in sorted(said) if "failed" in said[rank]]
        is_over = len(said) == self.size or any(map(self._ends_it, said.values()))
        if refused and (is_over or not self._falls_back):
            # a setting is for a person to correct; without a core there is another way (gloo)
            first = min(refused, key=lambda rank: said[rank].get("kind") == CoreError.__name__)
            raise self._refused(refused, first, said[first])
        missing = [rank for rank in range(self.size) if rank not in said]
        if missing:
            why = said[refused[0]]["failed"] if refused else ""
            raise self._late(
                missing, f"and rank {refused[0]} cannot take part: {why}" if why else ""
            )

    def _tell_failure(self, question: str, words: Said, came: Collection[int]) -> None:
        """Rank 0 may close the store when this ends with an error: who came shall have read it."""
        self.leave(question, words)
        keys = [self._key(f"{question}/heard/{rank}") for rank in came if rank]
        with suppress(OSError, RuntimeError):
            get_all(self._store, keys, _GRACE_S)

    def _heard(self, question: str) -> None:
        with suppress(RendezvousError):  # rank 0 has gone without waiting for it
            self.leave(f"{question}/heard/{self.rank}", {})

    # --- the store

    def _key(self, key: str) -> str:
        return f"{self.generation}/{key}" if self.generation else key

    def _leave(self, words: Mapping[str, Said]) -> None:
        """Raises RendezvousError."""
        told, self._to_leave = {**self._to_leave, **words}, {}
        texts = {id(each): json.dumps(each).encode() for each in told.values()}
        try:
            set_all(self._store, {key: texts[id(each)] for key, each in told.items()})
        except (OSError, RuntimeError, ValueError) as error:
            raise self._lost(error) from error

    def _read(self, key: str, end: float) -> Said | None:
        """The words of a key; None where they have not come by `end` (monotonic)."""
        return self._look([key], end).get(key)

    def _look(self, keys: Sequence[str], end: float) -> dict[str, Said]:
        """The words of those keys that are there by `end` (monotonic). Raises RendezvousError."""
        try:
            found = get_all(self._store, keys, max(LAST_LOOK_S, end - time.monotonic()))
        except (OSError, RuntimeError) as error:
            raise self._lost(error) from error
        # rank 0 reads those of all ranks, most of which say the same
        words = {data: self._words(data) for data in set(found.values())}
        return {key: words[data] for key, data in found.items()}

    def _words(self, data: bytes) -> Said:
        try:
            words = json.loads(data.decode())  # of bytes it would guess how they are encoded
        except ValueError:
            words = None
        if not isinstance(words, dict):
            raise RendezvousError(
                f"group {self.group!r}: what the store holds is not ours",
                "give each job a store (MASTER_PORT) of its own",
            )
        return words

    # --- errors

    def _late(self, ranks: Sequence[int], what: str) -> CollectiveTimeout:
        verb = "has" if len(ranks) == 1 else "have"
        return CollectiveTimeout(
            f"{self._making}: {ranks_text(ranks)} {verb} not come{f' ({what})' if what else ''}, "
            f"after {self.timeout_s:.2f} s",
            "see that all ranks run and make the same groups in the same order",
            group=self.group, rank=self.rank, ranks=ranks, code=Code.ETIMEOUT,
        )  # fmt: skip

    def _refused(self, ranks: Sequence[int], first: int, words: Said) -> CollectiveError:
        others = f" ({ranks_text(ranks)} cannot)" if len(ranks) > 1 else ""
        text = f"rank {first} cannot take part{others}: {words['failed']}"
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


def _unlike(what: str, rank: int, value: object, other: int, due: object) -> Said:
    """The words of a rank whose `what` is not that of rank `other`."""
    text, fix = {
        "size": (f"it makes a group of {value} ranks, and rank {other} one of {due}",
                 "see that WORLD_SIZE and the ranks of this group are the same everywhere"),
        "version": (f"it has version {value} of this library, and rank {other} has {due}",
                    "install the same muster-parallel everywhere"),
    }[what]  # fmt: skip
    return {"failed": text, "fix": fix, "ranks": [rank]}

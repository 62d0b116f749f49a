"""How the ranks of a group agree while it is made, over stores that may hold words of an earlier
making: who is missing is named, nobody takes an old word for a new one, and who makes another group
is refused with both values."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from muster_collectives.bootstrap import addresses, agreement
from muster_collectives.bootstrap.agreement import Agreement
from muster_collectives.bootstrap.service import Service
from muster_collectives.core import (
    CollectiveError,
    CollectiveTimeout,
    CoreError,
    RendezvousError,
    ResourceError,
    Settings,
    SettingsError,
    Store,
)
from muster_collectives.runtime.types import Code
from muster_collectives.version import __version__
from tests.collectives.core.test_meetings import SECRET, come
from tests.support.waiting import wait_until

RANKS = 4
LONG_S = 60.0  # the deadline where nobody is missing
SHORT_S = 1.0  # and where somebody is
GENERATIONS = 100


class PlainStore:
    """A store of a person's own: it can set and get, one key at a time."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(key)
            return self._values[key]


class Counted:
    """A store that counts the questions to it."""

    def __init__(self, store: Store) -> None:
        self.questions = 0
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def asked(*given: Any) -> Any:
            self.questions += 1
            return getattr(self._store, name)(*given)

        return asked


@contextmanager
def plain() -> Iterator[Sequence[Store]]:
    yield [PlainStore()] * RANKS


@contextmanager
def served() -> Iterator[Sequence[Store]]:
    """Rank 0's store over sockets, as `init` has it."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    serving = Service(listener, RANKS, SECRET)
    ranks = [come(port, rank) for rank in range(RANKS)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.close()
        serving.close()


@pytest.fixture(params=[plain, served])
def stores(request: pytest.FixtureRequest) -> Iterator[Sequence[Store]]:
    with request.param() as made:
        yield made


def shared(mine: Any, of: Agreement) -> list[Any]:
    """What all ranks said when they met, and that they said something once more."""
    met: list[Any] = of.meet(
        {"mine": mine},
        lambda said: {"all": [each["mine"] for each in said]},
        lambda answer: [answer["all"], of.decide("more", {}, lambda said: {})][0],
    )
    return met


def begin(
    pool: ThreadPoolExecutor, stores: Sequence[Store], mine: Any, ranks: Sequence[int],
    limit_s: float = LONG_S, size: int = RANKS,
) -> list[Future[list[Any]]]:  # fmt: skip
    return [
        pool.submit(shared, mine, Agreement(stores[rank], rank, size, "g", limit_s))
        for rank in ranks
    ]


def hello(store: Store, rank: int, **words: Any) -> None:
    """What a rank that has died has left in the store."""
    whose = {"number": f"old{rank}", "size": RANKS, "version": __version__}
    store.set(f"hello/{rank}", json.dumps({**whose, "words": words}).encode())


def errors(found: Sequence[Future[list[Any]]]) -> list[BaseException]:
    ended = [each.exception(LONG_S) for each in found]
    assert all(ended), [
        each.result() for each, error in zip(found, ended, strict=True) if not error
    ]
    return [error for error in ended if error is not None]


def test_a_group_is_made_a_hundred_times_and_no_word_of_an_earlier_making_is_taken(
    stores: Sequence[Store],
) -> None:
    """At last one of them does not come: the others name it, in time."""
    with ThreadPoolExecutor(RANKS) as pool:
        for number in range(GENERATIONS):
            found = begin(pool, stores, number, range(RANKS))
            assert [each.result(LONG_S) for each in found] == [[number] * RANKS] * RANKS
        began = time.monotonic()
        for error in errors(begin(pool, stores, "last", (0, 1, 3), SHORT_S)):
            assert isinstance(error, CollectiveTimeout), error
            assert error.ranks == (2,), error
            assert "rank 2 has not come" in str(error), error
        assert time.monotonic() - began < SHORT_S + LONG_S / 2


OLD = pytest.mark.parametrize(
    "words", [{"mine": "old"}, {"failed": "old", "kind": "SettingsError"}], ids=["words", "refusal"]
)


@OLD
def test_a_rank_whose_old_hello_is_there_is_missing_all_the_same(
    words: dict[str, Any], stores: Sequence[Store]
) -> None:
    hello(stores[0], 2, **words)
    with ThreadPoolExecutor(RANKS) as pool:
        for error in errors(begin(pool, stores, "new", (0, 1, 3), SHORT_S)):
            assert isinstance(error, CollectiveTimeout), error
            assert error.ranks == (2,), error


@OLD
def test_ranks_whose_old_hellos_are_there_come_late_and_their_new_words_count(
    words: dict[str, Any], stores: Sequence[Store]
) -> None:
    for rank in (1, 2):
        hello(stores[0], rank, **words)
    with ThreadPoolExecutor(RANKS) as pool:
        first = begin(pool, stores, "new", (0, 3))
        answered = [f"answer/{rank}/old{rank}" for rank in (1, 2)]
        wait_until(lambda: all(is_there(stores[0], key) for key in answered), LONG_S)
        late = begin(pool, stores, "new", (1, 2))
        assert [each.result(LONG_S) for each in (*first, *late)] == [["new"] * RANKS] * RANKS


def is_there(store: Store, key: str) -> bool:
    with suppress(TimeoutError):
        return bool(store.get(key, 0.001))
    return False


def test_a_rank_that_makes_a_group_of_another_size_is_refused_with_both_sizes(
    stores: Sequence[Store],
) -> None:
    """All hear it, at once."""
    began = time.monotonic()
    with ThreadPoolExecutor(RANKS) as pool:
        found = begin(pool, stores, "", (0, 1, 2))
        found += begin(pool, stores, "", (3,), size=RANKS + 1)
        for error in errors(found):
            assert isinstance(error, RendezvousError), error
            assert error.ranks == (3,), error
            assert "rank 3 cannot take part: it makes a group of 5 ranks" in str(error), error
            assert "rank 0 one of 4" in str(error), error
    assert time.monotonic() - began < LONG_S / 2


def test_a_rank_that_rank_0_does_not_count_is_told_both_sizes_at_its_deadline(
    stores: Sequence[Store],
) -> None:
    with ThreadPoolExecutor(RANKS) as pool:
        found = begin(pool, stores, "", range(RANKS - 1), size=RANKS - 1)
        for each in found:
            each.result(LONG_S)
        [error] = errors(begin(pool, stores, "", (RANKS - 1,), SHORT_S))
        assert "rank 0 cannot take part: it makes a group of 3 ranks" in str(error), error
        assert "rank 3 one of 4" in str(error), error


def test_a_rank_of_another_version_is_refused_with_both_versions(
    stores: Sequence[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(RANKS) as pool:
        monkeypatch.setattr(agreement, "__version__", "9.9")
        found = begin(pool, stores, "", (3,))
        wait_until(lambda: is_there(stores[0], "hello/3"), LONG_S)
        monkeypatch.undo()
        for error in errors([*found, *begin(pool, stores, "", (0, 1, 2))]):
            assert error.args, error
            assert f"rank 3 cannot take part: it has version 9.9 of this library, and rank 0 has " \
                   f"{__version__}" in str(error), error  # fmt: skip


def test_a_setting_that_cannot_be_used_counts_before_a_core_that_cannot(
    stores: Sequence[Store],
) -> None:
    """The one is for a person to correct, for the other there is another way (torch: gloo)."""
    kinds: dict[int, CollectiveError] = {1: CoreError("no core"), 2: SettingsError("no number")}

    def each(rank: int) -> Any:
        of = Agreement(stores[rank], rank, RANKS, "g", LONG_S)
        return of.fail(kinds[rank]) if rank in kinds else shared("", of)

    with ThreadPoolExecutor(RANKS) as pool:
        for error in errors([pool.submit(each, rank) for rank in range(RANKS)]):
            assert isinstance(error, SettingsError), error
            assert "rank 2 cannot take part" in str(error) and error.ranks == (1, 2), error


def test_a_store_is_asked_once_for_the_words_of_all_ranks() -> None:
    """A round costs rank 0 as many questions for four ranks as for two."""

    assert [asked_by_rank_0(size) for size in (2, RANKS)] == [4, 4]  # hellos, answer; words, answer


def asked_by_rank_0(size: int) -> int:
    with served() as stores, ThreadPoolExecutor(RANKS) as pool:
        counted = Counted(stores[0])
        ranks: Any = [counted, *stores[1:]]
        others = begin(pool, ranks, "", range(1, size), size=size)
        hellos = [f"hello/{rank}" for rank in range(1, size)]
        wait_until(lambda: all(is_there(stores[0], key) for key in hellos), LONG_S)
        for each in (*begin(pool, ranks, "", (0,), size=size), *others):
            each.result(LONG_S)
        return counted.questions


def offered(of: Agreement, leader: int) -> Any:
    """What a rank heard whose leader offers something before all decide."""

    def follow(answer: Any) -> Any:
        words = {}
        if of.rank == leader:
            of.leave("offer", {"from": leader})
        elif of.rank:
            words = of.read("offer", "share")
        return of.decide("share", {"offer": words}, lambda said: {"all": list(said)})

    return of.meet({}, lambda said: {}, follow)


def test_who_waits_for_another_ranks_offer_starts_over_with_the_others(
    stores: Sequence[Store],
) -> None:
    """Rank 2, whose old hello is there, is to offer something, and comes late."""
    hello(stores[2], 2, mine=0)
    of = [Agreement(stores[rank], rank, RANKS, "g", LONG_S) for rank in range(RANKS)]
    began = time.monotonic()
    with ThreadPoolExecutor(RANKS) as pool:
        early = [pool.submit(offered, of[rank], 2) for rank in (0, 1, 3)]
        wait_until(lambda: of[3].generation, LONG_S)  # it has its answer, and waits for rank 2
        late = pool.submit(offered, of[2], 2)
        found = [each.result(LONG_S) for each in (*early, late)]
    assert time.monotonic() - began < LONG_S / 2
    assert all(each["all"] == found[0]["all"] for each in found)
    assert [each["offer"] for each in found[0]["all"]] == [{}, {"from": 2}, {}, {"from": 2}]


def test_a_rank_that_dies_before_its_offer_is_named_alone(stores: Sequence[Store]) -> None:
    of = [Agreement(stores[rank], rank, RANKS, "g", 6 * SHORT_S) for rank in range(RANKS)]
    with ThreadPoolExecutor(RANKS) as pool:
        found = [pool.submit(offered, of[rank], 2) for rank in (0, 1, 3)]
        gone = pool.submit(of[2].meet, {}, lambda said: {}, lambda answer: answer)
        assert gone.result(LONG_S)
        for error in errors(found):
            assert isinstance(error, CollectiveTimeout) and error.ranks == (2,), error


def without_a_core(of: Agreement) -> None:
    of.fail(CoreError("there is none", "install it", code=Code.EINVAL))


@pytest.mark.parametrize("which", [0, 1])
def test_ranks_that_can_do_without_the_core_wait_for_who_is_late(
    stores: Sequence[Store], which: int
) -> None:
    """One of them lacks it; the last one comes after the time in which others would give up."""
    of = [Agreement(stores[rank], rank, RANKS, "g", LONG_S, falls_back=True)
          for rank in range(RANKS)]  # fmt: skip
    acts = [without_a_core if rank == which else shared_alone for rank in range(RANKS)]
    with ThreadPoolExecutor(RANKS) as pool:
        found = [pool.submit(acts[rank], of[rank]) for rank in range(RANKS - 1)]
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 2.5, LONG_S)
        assert not any(each.done() for each in found)
        found.append(pool.submit(acts[-1], of[-1]))
        for error in errors(found):
            assert isinstance(error, CoreError), error
            assert "there is none" in str(error)


def shared_alone(of: Agreement) -> None:
    shared(None, of)


def test_who_does_not_come_is_named_beside_a_core_that_is_missing(stores: Sequence[Store]) -> None:
    of = [Agreement(stores[rank], rank, RANKS, "g", SHORT_S, falls_back=True)
          for rank in range(RANKS - 1)]  # fmt: skip
    with ThreadPoolExecutor(RANKS) as pool:
        found = [pool.submit(without_a_core if each.rank == 1 else shared_alone, each)
                 for each in of]  # fmt: skip
        for error in errors(found):
            assert isinstance(error, CollectiveTimeout) and error.ranks == (RANKS - 1,), error
            assert "rank 1 cannot take part: there is none" in str(error)


def test_a_hello_that_was_answered_is_taken_back_and_not_deleted(stores: Sequence[Store]) -> None:
    """A store may wait without end for a key that goes while it is read."""
    with ThreadPoolExecutor(RANKS) as pool:
        for each in begin(pool, stores, 1, range(RANKS)):
            each.result(LONG_S)
    for rank in range(1, RANKS):
        assert json.loads(bytes(stores[0].get(f"hello/{rank}", LONG_S))) == {}


def test_without_a_descriptor_to_listen_with_that_is_said_with_the_limit_to_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(hosts: tuple[str, ...], backlog: int) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(addresses, "listen", none_left)
    with pytest.raises(
        ResourceError, match=r"no descriptor left .*Too many open files\n.*ulimit -n"
    ):
        addresses.open_endpoint(Settings(), {})

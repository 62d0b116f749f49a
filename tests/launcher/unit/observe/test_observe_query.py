"""Questions to hosts and their answers: what travels, how much, and what a broken host can do."""

from __future__ import annotations

import base64
import json
import random
import time
import tracemalloc
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

from muster.run.channel import wire
from muster.run.channel.messages import MOST_PARTS, REPLY_BYTES, Reply, WireError, to_wire
from muster.run.observe import codec
from muster.run.observe.looks import Arrivals, RankLook, ThreadStack, Usage
from muster.run.observe.query import PACE, ROLL, THREADS, Collector, one_of_each_kind, to_json
from muster.run.observe.rollcall import call_roll
from tests.launcher.support.looks import call, look, stack


def replies(number: int, looks: Sequence[RankLook], what: str = ROLL) -> list[Reply]:
    parts = codec.pack(to_json(list(looks), {one.rank: 1.5 for one in looks}, what))
    return [Reply(number, place, len(parts), text) for place, text in enumerate(parts)]


def collector(hosts: int = 1, ranks: int = 2) -> Collector:
    of_host = {
        host: (f"algo-{host + 1}", range(host * ranks, host * ranks + ranks))
        for host in range(hosts)
    }
    return Collector(7, of_host, hosts * ranks, 10.0)


def test_looks_survive_the_wire() -> None:
    first = look(0, call(ranks=(0, 1), absent=(1,)), waits_for="reading /x", wchan="pipe_read")
    second = look(1, at=(), how="none", ended=-9)
    asked = collector()
    for reply in replies(7, [first, second]):
        asked.take(0, reply)
    assert asked.done
    assert asked.looks == [first, second]
    assert asked.idle_s == {0: 1.5, 1: 1.5}
    assert not asked.silent()


def test_arrivals_and_usage_survive_the_wire() -> None:
    came = Arrivals("torch", "0", (0, 1), tuple((3 + n, 100.0 + n / 8) for n in range(64)), 0.002)
    one = look(0)._replace(usage=Usage(60.0, None, 1.5, 7))
    one = one._replace(answer=one.answer._replace(arrivals=came, rate=8.0))
    asked = collector()
    sent = replies(7, [one, look(1)], PACE)
    assert sum(len(reply.text) for reply in sent) < 1500
    for reply in sent:
        asked.take(0, reply)
    assert asked.looks == [one, look(1)]


@pytest.mark.parametrize(
    "pace",
    [
        [None, ["torch", "0", "0-1", [[1, 1]] * 65, 0]],
        [None, ["torch", "0", "0-9", [], 0]],
        [None, ["torch", "0", "0-1", [[1, 1.5]], 0]],
        [None, ["torch", "0", "0-1", [[1, 10**400]], 0]],
        [None, ["torch", "0", "0-1", [[1, 1]]]],
        [[60, 0, "x", 1], None],
        [1, 2, 3],
        7,
    ],
)
def test_a_pace_that_cannot_be_is_refused(pace: object) -> None:
    looks: Any = codec.looks_to_json([look(0)], all_threads=False)
    looks[2][0].append(pace)
    with pytest.raises(WireError):
        codec.looks_from_json(looks, "algo-1", [0, 1], {}, 2)


def test_signatures_have_the_main_thread_alone_and_full_stacks_have_all() -> None:
    threads = tuple(ThreadStack(n, n == "main", stack("a.py:1 f")) for n in ("main", "loader"))
    one = look(0)
    one = one._replace(answer=one.answer._replace(threads=threads))
    for what, count in ((ROLL, 1), (THREADS, 2)):
        asked = collector(ranks=1)
        for reply in replies(7, [one], what):
            asked.take(0, reply)
        assert len(asked.looks[0].answer.threads) == count


def test_hosts_that_do_not_answer_in_time_are_named() -> None:
    asked = collector(hosts=3)
    for reply in replies(7, [look(2), look(3)]):
        asked.take(1, reply)
    asked.expire(9.9)
    assert not asked.done
    asked.expire(10.0)
    assert asked.done
    assert asked.silent() == {0: "algo-1", 1: "algo-1", 4: "algo-3", 5: "algo-3"}
    assert {one.host for one in asked.looks} == {"algo-2"}


def test_what_was_not_asked_for_is_dropped() -> None:
    asked = collector()
    (reply,) = replies(7, [look(0), look(1), look(5)])
    asked.take(3, reply)  # a host that is not asked
    asked.take(0, reply._replace(number=8))
    assert not asked.done
    asked.take(0, reply)
    assert [one.rank for one in asked.looks] == []  # of more rows than ranks: refused as a whole
    assert asked.done
    asked.take(0, reply)
    assert set(asked.silent()) == {0, 1}


def test_a_host_speaks_for_its_own_ranks_once() -> None:
    asked = collector(hosts=2)
    for reply in replies(7, [look(0), look(0, how="none")]):
        asked.take(1, reply)  # whose ranks are 2 and 3
    assert asked.looks == []


@pytest.mark.promise("S21")
@pytest.mark.parametrize(
    "texts",
    [
        ["!"],
        ["eJw="],
        [base64.b64encode(zlib.compress(b"[" * 100_000)).decode()],
        [base64.b64encode(zlib.compress(b"[1e999,[[],[],[]]]")).decode()],
        [base64.b64encode(zlib.compress(b"[NaN,[[],[],[]]]")).decode()],
        [base64.b64encode(zlib.compress(b" " * (1 << 25))).decode()],  # a bomb
    ],
    ids=["no base64", "cut", "deep", "infinite", "nan", "bomb"],
)
def test_a_broken_answer_costs_little_and_counts_as_none(texts: list[str]) -> None:
    asked = collector()
    tracemalloc.start()
    for place, text in enumerate(texts):
        asked.take(0, Reply(7, place, len(texts), text[:REPLY_BYTES]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not asked.looks
    assert asked.done
    assert peak < 3 * codec.ANSWER_BYTES


def test_parts_out_of_their_order_end_the_answer() -> None:
    asked = collector()
    asked.take(0, Reply(7, 1, 2, "x"))
    assert asked.done
    assert set(asked.silent()) == {0, 1}


def test_the_largest_part_fits_a_frame() -> None:
    wire.encode(to_wire(Reply(1 << 40, MOST_PARTS - 1, MOST_PARTS, "x" * REPLY_BYTES)))


def test_no_change_of_an_answer_breaks_the_reader() -> None:
    """Every value of a true answer in turn replaced by what does not belong there."""
    looks = [look(0, call(ranks=(0, 1))), look(1, at=("a.py:1 f",))]
    value = json.loads(json.dumps(codec.looks_to_json(looks, True)))
    source = random.Random(1)
    wrong: list[Any] = [None, -1, 1 << 70, 1e300, "x", [], {}, True, [[]], "0-99999999999"]
    for _ in range(3000):
        broken = json.loads(json.dumps(value))
        place: Any = broken
        while isinstance(place, list) and place:
            index = source.randrange(len(place))
            if not isinstance(place[index], list) or source.random() < 0.2:
                place[index] = source.choice(wrong)
                break
            place = place[index]
        try:
            made = codec.looks_from_json(broken, "algo-1", {0, 1}, {}, 2)
        except WireError:
            continue
        call_roll(made)
        codec.looks_to_json(made, True)


def test_one_rank_of_each_kind_the_rarest_first() -> None:
    looks = [look(rank, at=("a.py:1 f",) if rank == 5 else ("b.py:1 f",)) for rank in range(8)]
    assert one_of_each_kind(looks) == [0, 5]


@pytest.mark.promise("H02")
def test_a_thousand_hosts_cost_the_leader_seconds_and_megabytes() -> None:
    """1,000 hosts of 8 ranks, from their packed answers to the verdict."""
    hosts, each = 1000, 8
    world = tuple(range(hosts * each))
    lines = tuple(f"/usr/lib/python3/site-packages/p/m{n}.py:{n} f{n}" for n in range(30))
    sent = {}
    for host in range(hosts):
        looks = [
            look(
                rank,
                call(5 if rank == 4321 else 6, running=rank != 4321, ranks=world),
                at=("data.py:12 load",) if rank == 4321 else ("train.py:41 main", *lines),
            )
            for rank in range(host * each, host * each + each)
        ]
        sent[host] = replies(7, looks)
    size = sum(len(reply.text) for parts in sent.values() for reply in parts)
    tracemalloc.start()
    began = time.process_time()
    asked = collector(hosts, each)
    for host, parts in sent.items():
        for reply in parts:
            asked.take(host, reply)
    verdict = call_roll(asked.looks, asked.silent())
    took_s, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"1,000 hosts x 8 ranks: {took_s:.2f} s traced, {size >> 10} KiB sent, {peak >> 20} MiB")
    assert verdict.guilty == (4321,)
    assert took_s < 15
    assert size < 256 * hosts * each
    assert peak < 256 << 20

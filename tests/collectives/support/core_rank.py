"""One rank of tests/collectives/process/test_collectives_core.py: `core_rank.py SOURCES SCENARIO`.

Runs under `python -I -S`: nothing but the standard library and the sources it is given.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import os
import random
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

sys.path.insert(0, sys.argv[1])
logging.basicConfig(format="%(message)s")

if TYPE_CHECKING:
    from collections.abc import Iterator

from muster_collectives.core import (  # noqa: E402
    AbortedError,
    CollectiveError,
    CollectiveTimeout,
    Communicator,
    DType,
    ForkError,
    MismatchError,
    Op,
    PeerError,
    UsageError,
    Verb,
    init,
    new_group,
)
from muster_collectives.runtime.types import DTYPE_BYTES, is_defined  # noqa: E402

RANK = int(os.environ["RANK"])
LIMIT_S = 40.0
SIZES = (0, 1, 3, 17, 1000)


def say(**words: Any) -> None:
    print(json.dumps({"rank": RANK, **words}), flush=True)


def numbers(rank: int, count: int, dtype: DType) -> bytearray:
    """The same in every run; floats stay small, for sums of fp16."""
    chance = random.Random(rank * 1000 + count * 10 + dtype)
    if dtype in (DType.U8, DType.I8, DType.I32, DType.I64):
        return bytearray(chance.randbytes(count * DTYPE_BYTES[dtype]))
    values = [chance.uniform(-8, 8) for _ in range(count)]
    if dtype is DType.F16:
        return bytearray(struct.pack(f"={count}e", *values))
    if dtype is DType.BF16:
        words = array("I", array("f", values).tobytes())
        return bytearray(array("H", (word >> 16 for word in words)).tobytes())
    return bytearray(array("f" if dtype is DType.F32 else "d", values).tobytes())


def agree(world: Communicator) -> None:
    """A digest over what every verb made of every type, operation and size."""
    digest = hashlib.sha256()
    checks = 0
    for dtype in DType:
        for op in Op:
            for count in SIZES if is_defined(dtype, op) else ():
                own = numbers(world.rank, count, dtype)
                world.all_reduce(own, op, dtype)
                digest.update(own)
                parts = numbers(world.rank, count * world.size, dtype)
                out = bytearray(count * DTYPE_BYTES[dtype])
                world.reduce_scatter(out, parts, op, dtype)
                whole = bytearray(len(parts))
                world.all_gather(whole, out)
                digest.update(whole)
                kept = numbers(world.rank, count, dtype)
                world.reduce(kept, world.size - 1, op, dtype)
                world.broadcast(kept, world.size - 1)
                digest.update(kept)
                checks += 1
    for count in SIZES:
        moved(world, count)
    world.barrier()
    say(digest=digest.hexdigest(), checks=checks,
        modules=sorted({"torch", "numpy"} & set(sys.modules)))  # fmt: skip


def moved(world: Communicator, count: int) -> None:
    """Verbs that only move have one right answer, which is known here."""
    size, rank = world.size, world.rank
    each = [numbers(who, count, DType.F32) for who in range(size)]
    rows = [numbers(who, count * size, DType.I64) for who in range(size)]
    width = count * 8
    out = bytearray(count * 4 * size)
    world.gather(out if rank == 1 else None, bytes(each[rank]), 1)
    assert out == (b"".join(each) if rank == 1 else bytearray(len(out)))
    part = bytearray(width)
    world.scatter(part, rows[0] if rank == 0 else None, 0)
    assert part == rows[0][rank * width : (rank + 1) * width]
    out = bytearray(len(rows[0]))
    world.all_to_all(out, rows[rank])
    assert out == b"".join(row[rank * width : (rank + 1) * width] for row in rows)
    counts = [(rank + other) % 3 * count for other in range(size)]
    given = numbers(rank, sum(counts), DType.F32)
    out = bytearray(4 * sum(counts))  # symmetric: what comes is as long as what goes
    world.all_to_all(out, memoryview(given).cast("f"), counts, counts) if count else None
    begin = 0
    for other in range(size) if count else ():
        theirs = [(other + who) % 3 * count for who in range(size)]
        source = numbers(other, sum(theirs), DType.F32)
        first = sum(theirs[:rank]) * 4
        assert out[begin : begin + counts[other] * 4] == source[first : first + theirs[rank] * 4]
        begin += counts[other] * 4


def groups(world: Communicator) -> None:
    """Sub-groups in an order of their own; registered memory; messages; statistics."""
    turned = new_group(world, list(range(world.size))[::-1])
    assert turned is not None and turned.rank == world.size - 1 - world.rank
    told = array("q", [world.rank])
    turned.broadcast(told, 0)
    assert told[0] == world.size - 1
    some = new_group(world, [0, 1])
    assert (some is None) == (world.rank > 1)
    if some is not None:
        total = array("d", [1.5])
        some.all_reduce(total)
        assert total[0] == 3.0
        some.close()
    turned.close()
    region = world.allocate(100_000)
    with memoryview(region.view).cast("B") as view:
        assert not any(view[:1000])
    values = array("f", [float(world.rank + 1)] * 25_000)
    memoryview(region.view)[:] = memoryview(values).cast("B")
    world.run(Verb.ALL_REDUCE, source=region.address, target=region.address, count=25_000,
              dtype=DType.F32)  # fmt: skip
    expected = world.size * (world.size + 1) / 2
    assert memoryview(region.view).cast("f")[24_999] == expected
    region.release()
    try:
        world.allocate(-1 if world.rank == 1 else 4096)
        say(error="none")
    except CollectiveError as error:
        say(refused=type(error).__name__)
    messages(world)
    world.barrier()
    assert sum(world.stats().calls.values()) > 3 and world.records()
    say(done=True)


def messages(world: Communicator) -> None:
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    sent = [bytearray([world.rank, number]) * 5000 for number in range(4)]
    rooms = [bytearray(10_000) for _ in range(4)]
    got = [world.post_recv(_at(room), 10_000, left if number else None, number)
           for number, room in enumerate(rooms)]  # fmt: skip
    went = [world.post_send(_at(data), 10_000, right, number) for number, data in enumerate(sent)]
    for number in (3, 1, 0, 2):
        status = got[number].wait(LIMIT_S)
        assert (status.peer, status.tag, status.bytes) == (left, number, 10_000)
        assert rooms[number] == bytearray([left, number]) * 5000
        assert got[number].done()
    for each in went:
        each.wait(LIMIT_S)
    room = bytearray(8)
    pending = world.post_recv(_at(room), 8, left, 77, LIMIT_S)
    try:
        pending.wait(0.05)
        raise AssertionError("nothing was sent")
    except CollectiveTimeout as error:
        assert f"rank {left}" in str(error) and "tag 77" in str(error), error
    world.barrier()
    data = bytearray(16)
    went = [world.post_send(_at(data), 16, right, 77)]
    try:
        pending.wait(LIMIT_S)
        raise AssertionError("it was too long")
    except MismatchError as error:
        assert "8 bytes" in str(error), error
    went[0].wait(LIMIT_S)


def _at(data: bytearray) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(data))


@contextlib.contextmanager
def fails(kind: type[CollectiveError], *words: str) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    except kind as error:
        text = str(error)
        assert all(word in text for word in words), text
        assert "Fix: " in text, text
        say(error=type(error).__name__, ranks=error.ranks, took_s=time.monotonic() - began)
        return
    raise AssertionError(f"no {kind.__name__}")


def faults(world: Communicator) -> None:
    """One fault after another, each in a world of its own, which all ranks make again."""
    with fails(UsageError, "there is no rank 9"):
        world.broadcast(bytearray(4), 9)
    with fails(UsageError, "read-only"):
        world.all_reduce(b"abcd")
    world.barrier()  # the group works on

    length = 100 if world.rank != 1 else 101
    with fails(MismatchError, f"{length} float32", "operation 2", "rank 1"):
        world.all_reduce(array("f", [0.0] * length))
    with fails(MismatchError):
        world.barrier()
    world.close()

    with init(timeout_s=LIMIT_S) as fresh:
        fresh.barrier()
        if fresh.rank == 2:
            # it comes when the others have gone: what they heard it hears as well
            while not os.path.exists(os.environ["MARK"]):
                time.sleep(0.01)
            with fails(CollectiveTimeout, "rank 2 has not come"):
                fresh.all_reduce(array("d", [1.0]))
        else:
            with fails(CollectiveTimeout, "rank 2 has not come", "operation 2", "all_reduce sum"):
                fresh.all_reduce(array("d", [1.0]), timeout_s=0.6)
            with open(os.environ["MARK"], "w", encoding="utf-8"):
                pass

    with init(timeout_s=LIMIT_S) as fresh:
        fresh.barrier()
        if fresh.rank == 1:
            threading.Timer(0.1, fresh.abort).start()
        with fails(AbortedError):
            for _ in range(10**9):
                fresh.barrier()

    with init(timeout_s=LIMIT_S) as fresh:
        fresh.barrier()
        if fresh.rank:
            with fails(PeerError, "rank 0"):
                for _ in range(10**9):
                    fresh.barrier()
    say(done=True)


def forked(world: Communicator) -> None:
    """A child is told, and neither its call nor its end harms the parent's group."""
    world.barrier()
    pid = os.fork()
    if not pid:
        code = 1
        with contextlib.suppress(CollectiveError):
            try:
                world.barrier()
            except ForkError as error:
                code = 7 if "child" in str(error) else 8
        world.close()
        gc.collect()
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    world.barrier()
    say(child=os.waitstatus_to_exitcode(status))


def odd(world: Communicator) -> None:
    """Arguments that are no numbers, or none that the core can take, end that call only."""
    given: dict[str, Any] = {"source": 0, "target": 0, "count": 0, "dtype": DType.U8}
    wrong: tuple[dict[str, Any], ...] = (
        {"count": "many"}, {"source": None}, {"timeout_s": "long"}, {"target": -1},
        {"root": 1 << 64}, {"root": 1 << 32}, {"dtype": 99}, {"timeout_s": float("nan")},
    )  # fmt: skip
    told = []
    for each in wrong:
        try:
            world.run(Verb.BARRIER, **{**given, **each})
        except Exception as error:
            told.append(type(error).__name__)
    world.barrier(timeout_s=5)  # a whole number will do
    say(told=told)


def alone(world: Communicator) -> None:
    """What a rank sends itself must fit: there is nobody to compare with."""
    out, given = bytearray(4), bytearray(b"12345678")
    try:
        world.all_to_all(out, given, in_counts=[8], out_counts=[4])
    except UsageError:
        world.all_to_all(out, given[:4], in_counts=[4], out_counts=[4])
    say(out=out.decode(), bytes=world.stats().bytes[Verb.ALL_TO_ALL])


def blocks(world: Communicator) -> None:
    """What `blocks` cannot say is refused before anything is sent, and the group goes on."""
    row, told = bytearray(world.size), []
    at = _at(row)
    calls: dict[str, dict[str, Any]] = {
        "not a row's verb": {"verb": Verb.BROADCAST, "blocks": [at] * world.size},
        "not the root": {"verb": Verb.GATHER, "root": 1 - world.rank, "blocks": [at] * world.size},
        "none for a rank": {"verb": Verb.ALL_GATHER, "blocks": [at, 0]},
        "too few": {"verb": Verb.ALL_GATHER, "blocks": [at]},
    }
    for name, call in calls.items():
        try:
            world.run(**call, source=at, target=at, count=1, dtype=DType.U8)
        except UsageError:
            told.append(name)
    world.all_gather(row, bytes([world.rank]))
    say(told=told, row=list(row))


def again(world: Communicator) -> None:
    """Descriptors, threads, mappings and files after many worlds, with and without sub-groups."""
    world.close()
    before = after = _held()
    for turn in range(22):
        with init(timeout_s=LIMIT_S) as fresh:
            fresh.all_reduce(array("f", [1.0] * 100))
            if turn % 5 == 0:
                part = new_group(fresh, [1, 0])
                assert part is not None
                region = part.allocate(10_000)
                region.release()
                part.close()
        if turn == 1:
            before = _held()  # the first ones load what stays
    after = _held()
    say(before=before, after=after)


def _held() -> list[int]:
    gc.collect()
    with open("/proc/self/maps", encoding="utf-8") as file:
        shared = sum("muster" in line for line in file)
    return [len(os.listdir("/proc/self/fd")), threading.active_count(), shared]


def dies(world: Communicator) -> None:
    """Until another rank is killed."""
    world.barrier()
    print("ready", flush=True)
    data = array("f", [1.0] * 50_000)
    with fails(PeerError, "rank 1"):
        while True:
            world.all_reduce(data)


SCENARIOS: dict[str, Callable[[Communicator], None]] = {
    each.__name__: each for each in (agree, groups, faults, forked, odd, alone, blocks, again, dies)
}

if __name__ == "__main__":
    group = init(timeout_s=LIMIT_S)
    try:
        SCENARIOS[sys.argv[2]](group)
    finally:
        group.close()

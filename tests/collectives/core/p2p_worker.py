"""A rank that sends and receives: `p2p_worker SCENARIO`."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from muster_collectives.core import CollectiveError, Communicator, MismatchError
from muster_collectives.runtime.types import Code
from tests.collectives.faults.fault_worker import described, reduced
from tests.collectives.support.meeting import Meeting
from tests.collectives.support.unreadable import forbid_reading
from tests.support.waiting import wait_until

LIMIT_S = 60.0
SIZES = (0, 1, 3, 63, 64, 65, 4095, 4096, 4097, 100_000, 3_000_001)


def pattern(size: int, source: int, tag: int) -> Any:
    return ((np.arange(size) * 7 + source * 31 + tag) % 251).astype(np.uint8)


def send(comm: Communicator, data: Any, peer: int, tag: int) -> Any:
    return comm.post_send(int(data.ctypes.data), data.nbytes, peer, tag, LIMIT_S)


def receive(
    comm: Communicator, room: Any, peer: int | None, tag: int, limit_s: float = LIMIT_S
) -> Any:
    return comm.post_recv(int(room.ctypes.data), room.nbytes, peer, tag, limit_s)


def sizes(comm: Communicator) -> dict[str, Any]:
    """All pairs exchange every size at once: nobody may wait for the other to receive first."""
    posted = []
    for tag, size in enumerate(SIZES):
        for peer in range(comm.size):
            if peer == comm.rank:
                continue
            room, data = np.zeros(size, np.uint8), pattern(size, comm.rank, tag)
            posted.append(
                (room, data, peer, tag, receive(comm, room, peer, tag), send(comm, data, peer, tag))
            )
    for room, data, peer, tag, incoming, outgoing in posted:
        status = incoming.wait(LIMIT_S)
        assert (status.peer, status.tag, status.bytes) == (peer, tag, len(data)), status
        assert (room == pattern(len(room), peer, tag)).all(), (peer, tag)
        outgoing.wait(LIMIT_S)
        assert incoming.done() and outgoing.done()
    stats = comm.stats()
    return {"sends": stats.sends, "receives": stats.receives}


def order(comm: Communicator) -> dict[str, Any]:
    """Messages of a pair and tag keep their order; tags are apart; sends come before receives."""
    count, (left, right) = 50, ((comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size)
    data = [np.array([number, tag], np.int64) for number in range(count) for tag in (1, 2)]
    sent = [send(comm, each, right, int(each[1])) for each in data]
    for tag in (2, 1):  # the later tag first
        for number in range(count):
            room = np.zeros(2, np.int64)
            receive(comm, room, left, tag).wait(LIMIT_S)
            assert tuple(room) == (number, tag), (tuple(room), number, tag)
    for request in sent:
        request.wait(LIMIT_S)
    return {}


def any_source(comm: Communicator) -> dict[str, Any]:
    """Rank 0 takes from whoever comes; the status says who it was."""
    count = 20
    if comm.rank:
        for number in range(count):
            send(comm, pattern(100 + number, comm.rank, 5), 0, 5).wait(LIMIT_S)
        return {}
    next_of = dict.fromkeys(range(1, comm.size), 0)
    for _ in range(count * (comm.size - 1)):
        room = np.zeros(200, np.uint8)
        status = receive(comm, room, None, 5).wait(LIMIT_S)
        number = next_of[status.peer]
        next_of[status.peer] += 1
        assert status.bytes == 100 + number, "messages of a rank overtook each other"
        assert (room[: status.bytes] == pattern(status.bytes, status.peer, 5)).all()
    return {"from": [next_of[rank] for rank in sorted(next_of)]}


def lengths(comm: Communicator) -> dict[str, Any]:
    """A shorter message is fine; a longer one is this receive's error alone."""
    if comm.rank == 0:
        for size in (10, 100, 30):
            send(comm, pattern(size, 0, size), 1, 9).wait(LIMIT_S)
        return {}
    if comm.rank > 1:
        return {}
    room = np.full(60, 255, np.uint8)
    status = receive(comm, room, 0, 9).wait(LIMIT_S)
    assert status.bytes == 10
    assert (room[:10] == pattern(10, 0, 10)).all()
    assert (room[10:] == 255).all(), "written beyond the message"
    try:
        receive(comm, room, 0, 9).wait(LIMIT_S)
    except MismatchError as error:
        words = described(error)
    else:
        words = {"kind": ""}
    status = receive(comm, room, 0, 9).wait(LIMIT_S)
    assert status.bytes == 30
    assert (room[:30] == pattern(30, 0, 30)).all()
    return words


LARGE = 3_000_001  # above the eager size: it is offered


def around(comm: Communicator) -> dict[str, Any]:
    """Both ways at once, of sizes around the eager one and of many pieces; a shorter message, one
    that its receive has no room for, and one to oneself."""
    eager = 1 << 17
    peer, posted = comm.rank ^ 1, []
    for tag, size in enumerate((0, eager - 1, eager, eager + 1, 2 * eager, LARGE, 5 << 20)):
        data, room = pattern(size, comm.rank, tag), np.full(size + 9, 255, np.uint8)
        posted.append(
            (room, data, tag, receive(comm, room, peer, tag), send(comm, data, peer, tag))
        )
    for room, data, tag, incoming, outgoing in posted:
        assert incoming.wait(LIMIT_S).bytes == len(data)
        assert (room[: len(data)] == pattern(len(data), peer, tag)).all(), tag
        assert (room[len(data) :] == 255).all(), "written beyond the message"
        outgoing.wait(LIMIT_S)
    data, room = pattern(LARGE, comm.rank, 1), np.zeros(LARGE, np.uint8)
    small = np.zeros(9, np.uint8)
    for tag in (1, 2):
        send(comm, data, comm.rank, tag).wait(LIMIT_S)  # a copy is kept
    assert receive(comm, room, None, 2).wait(LIMIT_S).peer == comm.rank
    assert (room == data).all()
    receive(comm, room, comm.rank, 1).wait(LIMIT_S)
    kinds = []
    sent = [send(comm, data, peer, 9), send(comm, data, peer, 9)]
    for place in (small, room):
        try:
            receive(comm, place, peer, 9).wait(LIMIT_S)
            kinds.append("")
        except MismatchError as error:
            kinds.append(described(error)["kind"])
    for request in sent:
        request.wait(LIMIT_S)
    assert (room == pattern(LARGE, peer, 1)).all() and not small.any()
    return {"kinds": kinds, **ways(comm)}


def ways(comm: Communicator) -> dict[str, int]:
    """How the offered messages came to this rank."""
    stats = comm.stats()
    return {"mapped": stats.messages_mapped, "read": stats.messages_read,
            "asked": stats.messages_asked}  # fmt: skip


def mixed_order(comm: Communicator) -> dict[str, Any]:
    """Messages of one pair and tag are matched in their order, whichever way each goes: by ring or
    offered, before its receive or after, to one who takes from any rank."""
    sizes = [LARGE, 10, 200_000, 0, 200_001, 40, LARGE, 131_072, 131_073] * 3
    comm.barrier(LIMIT_S)
    if comm.rank:
        data = [pattern(size, comm.rank, number) for number, size in enumerate(sizes)]
        sent = [send(comm, each, 0, 4) for each in data]
        comm.barrier(LIMIT_S)
        for request in sent:
            request.wait(LIMIT_S)
        return {}
    rooms = [np.zeros(LARGE, np.uint8) for _ in sizes * (comm.size - 1)]
    half = len(rooms) // 2
    posted = [receive(comm, room, None, 4) for room in rooms[:half]]
    comm.barrier(LIMIT_S)
    posted += [receive(comm, room, None, 4) for room in rooms[half:]]
    next_of = dict.fromkeys(range(1, comm.size), 0)
    for room, request in zip(rooms, posted, strict=True):
        status = request.wait(LIMIT_S)
        number = next_of[status.peer]
        next_of[status.peer] += 1
        assert status.bytes == sizes[number], "messages of a rank overtook each other"
        assert (room[: status.bytes] == pattern(status.bytes, status.peer, number)).all()
    return ways(comm)


def registered(comm: Communicator) -> dict[str, Any]:
    """From registered memory, also from a region in the place of one that was dropped, and from one
    that the receiver has dropped already."""
    peer, rooms = comm.rank ^ 1, [np.zeros(LARGE, np.uint8) for _ in range(3)]
    for turn, room in enumerate(rooms):
        region = comm.allocate(LARGE + 100)
        data = np.frombuffer(region.view, np.uint8)[100:]
        data[:] = pattern(LARGE, comm.rank, turn)
        incoming, outgoing = receive(comm, room, peer, 3), send(comm, data, peer, 3)
        assert incoming.wait(LIMIT_S).bytes == LARGE
        outgoing.wait(LIMIT_S)
        assert (room == pattern(LARGE, peer, turn)).all()
        comm.barrier(LIMIT_S)
        del data
        region.release()
    return ways(comm)


def unexpected(comm: Communicator) -> dict[str, Any]:
    """40 messages of 4 MiB, received in the reverse of their order: how the receiver grows."""
    count, size = 40, 4 << 20
    comm.barrier(LIMIT_S)
    if comm.rank:
        data = [np.full(size, tag, np.uint8) for tag in range(count)]
        sent = [send(comm, each, 0, tag) for tag, each in enumerate(data)]
        comm.barrier(LIMIT_S)
        for request in sent:
            request.wait(LIMIT_S)
        return {}
    room = np.ones(size, np.uint8)
    comm.barrier(LIMIT_S)  # all have been sent, as far as the sender can
    before = highest = resident()
    for tag in reversed(range(count)):
        receive(comm, room, 1, tag).wait(LIMIT_S)
        assert (room == tag).all()
        highest = max(highest, resident())
    return {"grown": highest - before}


def resident() -> int:
    """Bytes of this process that are its own: not those of the segment."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["RssAnon"].split()[0]) << 10


def crowded(comm: Communicator) -> dict[str, Any]:
    """More messages than may be offered at once, by tag in the reverse order."""
    count, size = 70, 150_000
    if comm.rank:
        data = [pattern(size, 1, tag) for tag in range(count)]
        sent = [send(comm, each, 0, tag) for tag, each in enumerate(data)]
        comm.barrier(LIMIT_S)
        for request in sent:
            request.wait(LIMIT_S)
        return {}
    room = np.zeros(size, np.uint8)
    comm.barrier(LIMIT_S)
    for tag in reversed(range(count)):
        receive(comm, room, 1, tag).wait(LIMIT_S)
        assert (room == pattern(size, 1, tag)).all(), tag
    return ways(comm)


def withdrawn(comm: Communicator) -> dict[str, Any]:
    """A send that nobody receives in time ends and names the rank; its memory is the caller's. No
    receive gets it, nor does one lose its turn by it."""
    words: dict[str, Any] = {}
    if comm.rank == 1:
        data = pattern(LARGE, 1, 0)
        for _ in range(3):
            try:
                comm.post_send(int(data.ctypes.data), LARGE, 0, 3, 0.2).wait(LIMIT_S)
            except CollectiveError as error:
                words = described(error)
            data[:] = 0
    comm.barrier(LIMIT_S)
    room, data = np.zeros(LARGE, np.uint8), pattern(LARGE, 1, 7)
    if comm.rank == 1:
        send(comm, data, 0, 3).wait(LIMIT_S)
    elif comm.rank == 0:
        receive(comm, room, 1, 3).wait(LIMIT_S)
        assert (room == data).all()
    return words


def given_up(comm: Communicator) -> dict[str, Any]:
    """The sender is stopped: what lies with it is read all the same. A receive that had to ask for
    a copy gives up, and the copy that comes then is no other receive's."""
    pid, words = np.array([os.getpid()]), {"kind": ""}
    comm.broadcast(pid, 1)
    rooms = [np.zeros(LARGE, np.uint8) for _ in range(3)]
    data = [pattern(LARGE, 1, tag) for tag in range(3)]
    if comm.rank:
        sent = [send(comm, each, 0, 3) for each in data]
        os.kill(os.getpid(), signal.SIGSTOP)
        for request in sent:
            request.wait(LIMIT_S)
        return {}
    wait_until(lambda: state_of(int(pid[0])) == "T", LIMIT_S, lambda: "rank 1 is not stopped")
    receive(comm, rooms[0], 1, 3).wait(LIMIT_S)
    forbid_reading()
    try:
        receive(comm, rooms[1], 1, 3, 0.3).wait(LIMIT_S)
    except CollectiveError as error:
        words = described(error)
    os.kill(int(pid[0]), signal.SIGCONT)
    receive(comm, rooms[2], 1, 3).wait(LIMIT_S)
    assert (rooms[0] == data[0]).all() and (rooms[2] == data[2]).all()
    assert not rooms[1].any(), "written after its end"
    return words


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def unreadable(comm: Communicator) -> dict[str, Any]:
    """The system does not let a rank read another's memory."""
    forbid_reading()
    return around(comm)


def held_copy(comm: Communicator) -> dict[str, Any]:
    """What was offered and has to be sent comes although much waits before it in the ring."""
    forbid_reading()
    count, size = 100, 100_000  # more than is kept for receives that have not been posted
    if comm.rank:
        large, small = pattern(LARGE, 1, 1), pattern(size, 1, 2)
        sent = [send(comm, large, 0, 1), *(send(comm, small, 0, 2) for _ in range(count))]
        comm.barrier(LIMIT_S)
        for request in sent:
            request.wait(LIMIT_S)
        return {}
    room = np.zeros(LARGE, np.uint8)
    comm.barrier(LIMIT_S)
    receive(comm, room, 1, 1).wait(LIMIT_S)
    assert (room == pattern(LARGE, 1, 1)).all()
    for _ in range(count):
        receive(comm, room, 1, 2).wait(LIMIT_S)
        assert (room[:size] == pattern(size, 1, 2)).all()
    return ways(comm)


def stood_still(comm: Communicator) -> dict[str, Any]:
    """The receiver stands still (MC_FAULT) amid what it reads for longer than its sender waits: it
    gets the copy, from a sender that is at no call, and all that comes then."""
    size, meeting = 150_000, Meeting()  # the copy has room in the ring
    data = [pattern(size, 1, tag) for tag in range(3)]
    if comm.rank:
        words = {"kind": ""}
        try:
            comm.post_send(int(data[0].ctypes.data), size, 0, 1, 0.2).wait(LIMIT_S)
        except CollectiveError as error:
            words = described(error)
        meeting.wait_for_mark("first")
        for each in data[1:]:
            send(comm, each, 0, 1).wait(LIMIT_S)
        return words
    room = np.zeros(size, np.uint8)
    for each in data:
        receive(comm, room, 1, 1).wait(LIMIT_S)
        assert (room == each).all()
        meeting.mark("first")
    return {}


def dropped(comm: Communicator) -> dict[str, Any]:
    """A send whose request its caller forgets arrives; a child that is forked meanwhile takes
    nothing away; a close ends what nobody has taken."""
    data, room = pattern(LARGE, comm.rank, 1), np.zeros(LARGE, np.uint8)
    peer = comm.rank ^ 1
    send(comm, data, peer, 1)
    pid = os.fork()
    if not pid:
        comm.close()
        os._exit(0)
    os.waitpid(pid, 0)
    comm.barrier(LIMIT_S)
    receive(comm, room, peer, 1).wait(LIMIT_S)
    assert (room == pattern(LARGE, peer, 1)).all()
    comm.barrier(LIMIT_S)
    request = send(comm, data, peer, 2)
    comm.barrier(LIMIT_S)
    if comm.rank == 0:
        comm.close()
        Meeting().mark("closed")
        return {"kind": type(failed(request)).__name__}
    Meeting().wait_for_mark("closed")
    try:
        receive(comm, room, 0, 2).wait(LIMIT_S)
    except CollectiveError as error:
        return described(error)
    return {"kind": ""}


def failed(request: Any) -> CollectiveError | None:
    try:
        request.wait(LIMIT_S)
    except CollectiveError as error:
        return error
    return None


def beside(comm: Communicator) -> dict[str, Any]:
    """Messages of one thread while another is in collectives: neither waits for the other."""
    failures: list[BaseException] = []

    def talk() -> None:
        try:
            for _ in range(5):
                sizes(comm)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=talk)
    thread.start()
    total = np.ones(5000, np.float32)
    for _ in range(200):
        total[:] = 1
        reduced(comm, total)
        assert (total == comm.size).all()
    thread.join()
    if failures:
        raise failures[0]
    return {}


def alone(comm: Communicator) -> dict[str, Any]:
    """A receive that nobody answers ends at its own deadline and names the rank."""
    words: dict[str, Any] = {}
    if comm.rank == 0:
        room = np.zeros(8, np.uint8)
        try:
            receive(comm, room, 1, 3, 1.0).wait(30.0)
        except CollectiveError as error:
            words = described(error)
    comm.barrier(LIMIT_S)
    return words


def dead(comm: Communicator) -> dict[str, Any]:
    """The last rank dies while all others wait for its message."""
    comm.barrier(LIMIT_S)
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    room = np.zeros(8, np.uint8)
    try:
        receive(comm, room, comm.size - 1, 3).wait(30.0)
    except CollectiveError as error:
        return described(error)
    return {"kind": ""}


def away(comm: Communicator) -> dict[str, Any]:
    """Rank 0 sends rank 1 far more than a ring holds; in turns both wait, the sender is in no
    call of the group until it has arrived, and the receiver until it has left. What the last rank
    owes rank 0 meanwhile, if there is one more, comes at the end. Says how long each took."""
    took: dict[str, list[float]] = {"none": [], "sender": [], "receiver": []}
    meeting, data = Meeting(), np.ones(int(os.environ.get("AWAY_BYTES", "67108864")), np.uint8)
    late, room = None, np.zeros(8, np.uint8)
    if comm.size > 2 and comm.rank == 0:
        late = receive(comm, room, comm.size - 1, 8)
    for turn in range(7):
        for who, each in took.items():
            comm.barrier(LIMIT_S)
            began, name = time.monotonic(), f"{who}-{turn}"
            if comm.rank == 0:
                request = send(comm, data, 1, 7)
                busy = who == "sender"
            elif comm.rank == 1:
                request = receive(comm, data, 0, 7)
                busy = who == "receiver"
            else:
                continue
            if busy:
                meeting.wait_for_mark(name)
            request.wait(LIMIT_S)
            each.append(time.monotonic() - began)
            if not busy:
                meeting.mark(name)
    if late is not None or comm.rank == comm.size - 1 > 1:
        (late or send(comm, room, 0, 8)).wait(LIMIT_S)
    return took


def held(wait: Any, then: Callable[[], None]) -> Any:
    """The core's `wait`, in which a thread that is told the end of a request does `then` before
    it can note it."""

    def wait_and_hold(*given: Any) -> int:
        code = int(wait(*given))
        if code == Code.OK:
            then()
        return code

    return wait_and_hold


def told_once(comm: Communicator) -> dict[str, Any]:
    """Another thread looks, or a signal handler raises, when one has been told the end."""
    wait, meeting = comm.wait_core, Meeting()
    if comm.rank == 1:
        for turn in ("first", "again"):
            meeting.wait_for_mark(turn)  # what is there before its receive is over with the post
            send(comm, pattern(100, 1, 6), 0, 6).wait(LIMIT_S)
    words: dict[str, Any] = {"other": [], "again": []}
    if comm.rank == 0:
        room, told, looked = np.zeros(200, np.uint8), threading.Event(), threading.Event()

        def hold() -> None:
            told.set()
            looked.wait(LIMIT_S)

        comm.wait_core = held(wait, hold)
        request = receive(comm, room, 1, 6)
        meeting.mark("first")
        first = threading.Thread(target=lambda: words["other"].append(request.wait().bytes))
        first.start()
        assert told.wait(LIMIT_S)
        words["other"].append(ended(request))
        looked.set()
        first.join()
        comm.wait_core = held(wait, interrupt)
        request = receive(comm, room, 1, 6)
        meeting.mark("again")
        with suppress(KeyboardInterrupt):
            request.wait()
        comm.wait_core = wait
        words["again"].append(ended(request))
    comm.barrier(LIMIT_S)
    return words


def odd_arguments(comm: Communicator) -> dict[str, Any]:
    """Limits of a wait that leave no time, before the message comes; peers and tags of numpy."""
    words: dict[str, Any] = {}
    if comm.rank == 0:
        room = np.zeros(100, np.uint8)
        request = receive(comm, room, np.int64(1), np.int64(6))
        for limit_s in (-0.5, math.nan):
            try:
                request.wait(limit_s)
            except CollectiveError as error:
                words[str(limit_s)] = [type(error).__name__, request.done()]
        comm.barrier(LIMIT_S)
        words["bytes"] = request.wait(LIMIT_S).bytes
    else:
        comm.barrier(LIMIT_S)
        send(comm, pattern(100, 1, 6), np.int64(0), np.int64(6)).wait(LIMIT_S)
    return words


def interrupt() -> None:
    raise KeyboardInterrupt


def ended(request: Any) -> int | str:
    """The bytes of its end, or what it raises."""
    try:
        return int(request.wait(LIMIT_S).bytes) if request.done() else "not done"
    except CollectiveError as error:
        return f"{type(error).__name__}: {error}"


SCENARIOS: dict[str, Callable[[Communicator], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        sizes,
        order,
        any_source,
        lengths,
        beside,
        alone,
        away,
        dead,
        told_once,
        odd_arguments,
        around,
        mixed_order,
        registered,
        unexpected,
        crowded,
        withdrawn,
        given_up,
        unreadable,
        held_copy,
        stood_still,
        dropped,
    )
}


def main(scenarios: list[str]) -> None:
    meeting = Meeting()
    comm = meeting.world()
    said = {name: SCENARIOS[name](comm) for name in scenarios}
    meeting.say(**said)
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1:])

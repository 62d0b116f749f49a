"""A rank whose groups share a listener: `listener_worker PLAY VICTIM`. Each rank is a node."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

from muster_collectives.binding import library
from muster_collectives.bootstrap.addresses import listen, open_endpoint
from muster_collectives.core import Communicator
from muster_collectives.runtime.settings import read as read_settings
from tests.collectives.faults.fault_worker import LONG_S, described, raised
from tests.collectives.support.meeting import Meeting
from tests.support.waiting import wait_until

FORKS = 200
SLOW_S = 3.0  # longer than a port that is closed is tried at


def leaves(meeting: Meeting, victim: int) -> dict[str, Any]:
    """The victim closes a group in which nobody has called anything; its world, at the same
    listener, stays."""
    world, part = meeting.world(), meeting.world("part")
    summed(world)
    if meeting.rank == victim:
        part.close()
        meeting.wait_for_mark("told")
        words = {"kind": ""}
    else:
        began = time.monotonic()
        words = described(raised(lambda: summed(part)))
        words["took_s"] = time.monotonic() - began
        meeting.mark("told")
        part.close()
    words["sum"] = summed(world)
    world.close()
    return words


def comes_late(meeting: Meeting, victim: int) -> dict[str, Any]:
    """The victim has told its endpoint, and makes its part of the group so much later that the
    other has long been there; its world takes what comes to the listener meanwhile."""
    world, make = meeting.world(), library.create

    def slowly(*given: Any) -> int:
        time.sleep(SLOW_S)
        return make(*given)

    with mock.patch.object(library, "create", slowly if meeting.rank == victim else make):
        part = meeting.world("part")
    found = summed(part)
    part.close()
    world.close()
    return {"sum": found}


def listens(meeting: Meeting, victim: int) -> dict[str, Any]:
    """How many sockets listen: with no group, with a world, with ten groups more, and after all."""
    found = [listening()]
    world = meeting.world()
    summed(world)
    found.append(listening())
    parts = [meeting.world(f"part-{number}") for number in range(10)]
    for part in parts:
        summed(part)
    found.append(listening())
    for group in (*parts, world):
        group.close()
    found.append(listening())
    return {"found": found}


def forks(meeting: Meeting, victim: int) -> dict[str, Any]:
    """Each rank's child makes a world with the other's child, beside its parents'."""
    world = meeting.world()
    summed(world)
    pid = os.fork()
    if not pid:
        before = listening()  # its parent's death shall be seen whatever it does
        with meeting.world("children") as children:
            found = summed(children) == 3.0 and (before, listening()) == (0, 1)
        os._exit(0 if found and listening() == 0 else 1)
    found = summed(world)
    _, status = os.waitpid(pid, 0)
    found += summed(world)
    world.close()
    return {"sum": found, "child": os.waitstatus_to_exitcode(status)}


def children_hold(meeting: Meeting, victim: int) -> dict[str, Any]:
    """Strangers are at the first rank's listener when it forks, and end while the child lives: one
    by itself, one put out for what it says."""
    world = meeting.world()
    summed(world)
    words: dict[str, Any] = {}
    if meeting.rank == 0:
        alone = watched()
        strangers = [socket.create_connection(where()) for _ in range(2)]
        wait_until(lambda: watched() == alone + 2, SLOW_S, "not both are accepted")
        pid = os.fork()
        if not pid:
            for stranger in strangers:
                stranger.close()
            signal.pause()
            os._exit(0)
        try:
            strangers[0].close()
            strangers[1].sendall(b"x" * 64)
            strangers[1].settimeout(SLOW_S)
            words["told"] = strangers[1].recv(1) == b""
            wait_until(lambda: watched() == alone, SLOW_S, "those that ended are looked at")
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            strangers[1].close()
    words["sum"] = summed(world)
    world.close()
    return words


def children_stay(meeting: Meeting, victim: int) -> dict[str, Any]:
    """The victim leaves a group whose connections a child of it has as well."""
    world, part = meeting.world(), meeting.world("part")
    summed(part)
    words: dict[str, Any] = {"kind": ""}
    if meeting.rank == victim:
        pid = os.fork()
        if not pid:
            signal.pause()
            os._exit(0)
        part.close()
        try:
            meeting.wait_for_mark("told", 2 * SLOW_S)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    else:
        words = described(raised(lambda: summed(part)))
        meeting.mark("told")
        part.close()
    words["sum"] = summed(world)
    world.close()
    return words


def filled_once(meeting: Meeting, victim: int) -> dict[str, Any]:
    """The lower rank accepts with the last of its descriptors. It has many again when the other
    comes late to another group."""
    world, part, late = meeting.world(), meeting.world("part"), meeting.world("late")
    summed(world)
    if meeting.rank == 0:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
        meeting.mark("full")
        found = [summed(part)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    else:
        meeting.wait_for_mark("full")
        found = [summed(part)]
        time.sleep(SLOW_S)
    found.append(summed(late))
    for group in (part, late, world):
        group.close()
    return {"sums": found}


def reports(meeting: Meeting, victim: int) -> dict[str, Any]:
    """The victim's listener hears an abort and stands still (MC_FAULT) as it writes it down for its
    node. What it takes meanwhile to make room for another group, and how the aborted one ends."""
    part = meeting.world("part")
    meeting.meet("made", range(meeting.size))
    if meeting.rank != victim:
        part.abort()
        words: dict[str, Any] = {}
    else:
        settings = read_settings(os.environ)
        began, took = time.monotonic(), 0.0
        while time.monotonic() < began + 3 * SLOW_S:
            time.sleep(0.01)
            asked = time.monotonic()
            place = open_endpoint(settings, os.environ)
            library.load(settings.core).mc_endpoint_close(place.endpoint)
            took = max(took, time.monotonic() - asked)
        words = {"took_s": took}
    words |= described(raised(lambda: summed(part)))
    part.close()
    return words


def storms(meeting: Meeting, victim: int) -> dict[str, Any]:
    """This rank forks while two threads open and close listeners. Each child lets go of them and
    has one of its own."""
    core = library.load()
    is_over = threading.Event()

    def opens(host: str) -> None:
        number, _ = library.open_endpoint(core, (host,), lambda: listen((host,), 4))
        core.mc_endpoint_close(number)

    def opens_on(host: str) -> None:
        while not is_over.is_set():
            opens(host)

    threads = [threading.Thread(target=opens_on, args=(f"127.0.0.{n}",)) for n in (2, 3)]
    for thread in threads:
        thread.start()
    codes = []
    for _ in range(FORKS):
        pid = os.fork()
        if not pid:
            opens("127.0.0.2")
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    is_over.set()
    for thread in threads:
        thread.join()
    return {"codes": codes, "left": listening()}


def summed(comm: Communicator) -> float:
    """Of all ranks, each of which gives its own and one."""
    total = array("d", [comm.rank + 1.0])
    comm.all_reduce(total, timeout_s=LONG_S)
    return total[0]


def where() -> tuple[str, int]:
    """This process's listener."""
    return listeners()[0]


def watched() -> int:
    """How many descriptors its epoll sets look at."""
    found = 0
    for path in Path("/proc/self/fdinfo").iterdir():
        with suppress(OSError):
            found += path.read_text().count("tfd:")
    return found


def listening() -> int:
    return len(listeners())


def listeners() -> list[tuple[str, int]]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the folder itself
            if not os.readlink(path).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as each:
                if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.append(each.getsockname()[:2])
    return found


PLAYS: dict[str, Callable[[Meeting, int], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        leaves,
        comes_late,
        listens,
        forks,
        children_hold,
        children_stay,
        filled_once,
        reports,
        storms,
    )
}

if __name__ == "__main__":
    here = Meeting()
    here.say(**PLAYS[sys.argv[1]](here, int(sys.argv[2])))

"""Jobs whose ranks are forked from one process that has imported everything: a case costs no start.

`fault_point_worker` reads a job a line (JSON) and answers with how its ranks ended, a line each.
The rank that is to be broken has the instruction for the core's fault point in its environment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from muster_collectives.binding import library, shared_memory
from muster_collectives.core import CollectiveError, Communicator, DType, Op, Verb
from tests.collectives.support.meeting import Meeting
from tests.collectives.support.unreadable import forbid_reading

LOOPS = 30  # calls within which a fault must have landed
POLL_S = 0.005
LAST_S = 10.0  # what the rank that was stopped has once it goes on

Words = dict[str, Any]


def is_shared(place: int) -> bool:
    """Whether others see this rank's memory there."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    places = [line[0].split("-") for line in lines if "muster-adopted" in "".join(line[5:])]
    return any(int(first, 16) <= place < int(last, 16) for first, last in places)


class Rank:
    """A rank of a job, and what it plays. Plays end by a CollectiveError, or return: no fault."""

    def __init__(self, told: Words, rank: int) -> None:
        self.told, self.rank, self.size = told, rank, len(told["nodes"])
        self.is_victim = rank == told["victim"]
        self.limit_s = float(told["limit_s"])
        self.meeting = Meeting()
        self.comm: Communicator | None = None

    @property
    def world(self) -> Communicator:
        if self.comm is None:
            self.comm = self.meeting.world(timeout_s=float(self.told["connect_s"]))
        return self.comm

    def play(self, words: str) -> None:
        name, *numbers = words.split()
        plays: dict[str, Callable[..., None]] = {
            "creates": self.repeat, "leaves": self.leaves, "aborts": self.aborts,
            "aborted": self.aborted,
            "expires": self.expires, "held": self.held, "held_gather": self.held_gather,
            "uneven": self.uneven, "messages": self.messages, "unreadable": self.unreadable,
            "withdraws": self.withdraws, "adopts": self.adopts,
        }  # fmt: skip
        if name in plays:
            plays[name](*map(int, numbers))
        elif name.startswith("direct_"):
            self.direct(Verb[name.removeprefix("direct_").upper()], *map(int, numbers))
        else:
            self.repeat(Verb[name.upper()], *map(int, numbers))

    def repeat(self, verb: Verb = Verb.BARRIER, count: int = 0, root: int = 0) -> None:
        given, out = self.arrays(count)
        for _ in range(LOOPS):
            self.call(verb, given, out, count, root)
        self.world.barrier(self.limit_s)  # a call with a root may be done before others have come

    def arrays(self, count: int) -> tuple[Any, Any]:
        whole = max(count, 1) * self.size
        return np.ones(whole, np.float32), np.zeros(whole, np.float32)

    def call(self, verb: Verb, given: Any, out: Any, count: int, root: int = 0) -> None:
        self.world.run(
            verb, source=int(given.ctypes.data), target=int(out.ctypes.data), count=count,
            dtype=DType.F32, op=Op.SUM, root=root, timeout_s=self.limit_s,
        )  # fmt: skip

    def direct(self, verb: Verb, count: int) -> None:
        """In registered memory; what is reduced is reduced in place."""
        size = count * self.size * 4
        region = self.world.allocate(size)
        out = self.world.allocate(size)
        target = region.address if verb is Verb.ALL_REDUCE else out.address
        for _ in range(LOOPS):
            self.world.run(
                verb, source=region.address, target=target, count=count, dtype=DType.F32,
                op=Op.SUM, timeout_s=self.limit_s,
            )  # fmt: skip

    def adopts(self, count: int) -> None:
        """Memory that is registered in the midst of a sum."""
        data: Any = np.ones(count, np.float32)
        place = int(data.ctypes.data)
        end = self.world.adopt(place, data.nbytes)
        try:
            self.call(Verb.ALL_REDUCE, data, data, count)
        except CollectiveError:  # a rank that is late shall not write there any more
            assert not is_shared(place + data.nbytes // 2)
            raise
        else:
            self.repeat(Verb.ALL_REDUCE, count)
        finally:
            assert end is not None
            end(False)
            assert not is_shared(place + data.nbytes // 2)

    def uneven(self, count: int) -> None:
        given, out = self.arrays(count + self.size)
        counts = [count + self.rank] * self.size
        others = [count + rank for rank in range(self.size)]
        for _ in range(LOOPS):
            self.world.run(
                Verb.ALL_TO_ALL, source=int(given.ctypes.data), target=int(out.ctypes.data),
                count=0, dtype=DType.F32, in_counts=counts, out_counts=others,
                timeout_s=self.limit_s,
            )  # fmt: skip

    def messages(self, bytes_: int) -> None:
        """All pairs; each waits for the victim first, for a failure is that of its request only."""
        world, victim = self.world, self.told["victim"]
        peers = sorted({*range(self.size)} - {self.rank}, key=lambda peer: peer != victim)
        data: Any = np.ones(bytes_, np.uint8)
        rooms: list[Any] = [np.zeros(bytes_, np.uint8) for _ in peers]
        for _ in range(LOOPS):
            posted = []
            for peer, room in zip(peers, rooms, strict=True):
                posted += [
                    world.post_send(int(data.ctypes.data), bytes_, peer, 1, self.limit_s),
                    world.post_recv(int(room.ctypes.data), bytes_, peer, 1, self.limit_s),
                ]
            for request in posted:
                request.wait(self.limit_s)

    def unreadable(self, bytes_: int) -> None:
        forbid_reading()
        self.messages(bytes_)

    def withdraws(self, bytes_: int) -> None:
        """Nobody receives what the victim sends, which gives up; all wait for it."""
        world, victim = self.world, self.told["victim"]
        data: Any = np.ones(bytes_, np.uint8)
        if self.is_victim:
            world.post_send(int(data.ctypes.data), bytes_, 0, 2, 0.2).wait(self.limit_s)
        world.post_recv(int(data.ctypes.data), bytes_, victim, 1, self.limit_s).wait(self.limit_s)

    def leaves(self) -> None:
        self.repeat_some(3)
        if self.is_victim:
            self.world.close()
        self.repeat()

    def aborts(self) -> None:
        """The victim ends the call that the others are in."""
        self.repeat_some(3)
        if self.is_victim:
            self.world.abort()
        self.repeat()

    def aborted(self, by: int) -> None:
        """Rank `by` is in no call when it ends those of the others; the victim hears it first."""
        self.repeat_some(3)
        if self.rank == by:
            self.world.abort()
        self.repeat()

    def expires(self, late: int) -> None:
        """Rank `late` does not come; the victim has the shortest deadline and says so."""
        self.repeat_some(3)
        if self.rank == late:
            self.until_struck()
        if self.is_victim:
            self.limit_s = 0.2
        self.repeat()

    def held(self, late: int) -> None:
        """Rank `late` comes only when the victim, which waits for it, has been struck."""
        self.repeat_some(3)
        if self.rank == late:
            self.until_struck()
        self.repeat()

    def held_gather(self, count: int, late: int) -> None:
        given, out = self.arrays(count)
        for _ in range(3):
            self.call(Verb.GATHER, given, out, count)
        if self.rank == late:
            self.until_struck()
        self.repeat(Verb.GATHER, count)

    def repeat_some(self, times: int) -> None:
        given, out = self.arrays(10)
        for _ in range(times):
            self.call(Verb.ALL_REDUCE, given, out, 10)

    def until_struck(self) -> None:
        limit = time.monotonic() + self.limit_s
        while not Path(self.told["record"]).exists() and time.monotonic() < limit:
            time.sleep(POLL_S)


def run(told: Words, rank: int) -> NoReturn:
    """In the forked process."""
    code = 1
    try:
        os.environ.update(told["environ"])
        os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(len(told["nodes"])),
                           "JOB_FOLDER": told["folder"]})  # fmt: skip
        if len(set(told["nodes"])) > 1:
            os.environ["COLLECTIVES_NODE"] = told["nodes"][rank]
        if told["in_file"]:
            shared_memory.can_memfd = lambda: (
                False
            )  # as on a machine without: then a file in /dev/shm
        if rank == told["victim"]:
            os.environ.update({"MC_FAULT": told["fault"], "MC_FAULT_RECORD": told["record"]})
        own = Rank(told, rank)
        words: Words = {"kind": ""}
        try:
            own.play(told["play"])
        except CollectiveError as error:
            words = {"kind": type(error).__name__, "text": str(error), "ranks": list(error.ranks)}
        words["at"] = time.monotonic()
        (Path(told["folder"]) / f"said-{rank}").write_text(json.dumps(words))
        if own.comm is not None and not told["abrupt"]:
            own.comm.close()
        code = 0
    except BaseException:
        (Path(told["folder"]) / f"err-{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(code)


class Ranks:
    """The forked ranks of a job: waited for, and ended for sure."""

    def __init__(self, told: Words) -> None:
        self.told = told
        self.codes: dict[int, int] = {}
        self.pids = {}
        for rank in range(len(told["nodes"])):
            pid = os.fork()
            if pid == 0:
                run(told, rank)
            self.pids[rank] = pid

    def look(self, rank: int) -> bool:
        """Whether it has ended."""
        if rank not in self.codes:
            pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
            if pid:
                self.codes[rank] = os.waitstatus_to_exitcode(status)
        return rank in self.codes

    def wait(self, ranks: list[int], limit_s: float) -> list[int]:
        """Those that have not ended within the limit."""
        limit = time.monotonic() + limit_s
        while left := [rank for rank in ranks if not self.look(rank)]:
            if time.monotonic() > limit:
                return left
            time.sleep(POLL_S)
        return []

    def end(self) -> Words:
        victim, others = self.told["victim"], [r for r in self.pids if r != self.told["victim"]]
        try:
            late = self.wait(others, float(self.told["job_s"]))
            stopped = not self.look(victim) and _state(self.pids[victim]) == "T"
            if stopped:
                os.kill(self.pids[victim], signal.SIGCONT)
            late += self.wait([victim], LAST_S)
        finally:
            for rank in self.pids:
                if not self.look(rank):
                    os.kill(self.pids[rank], signal.SIGKILL)
            self.wait(list(self.pids), LAST_S)
        codes = [self.codes.get(rank) for rank in self.pids]
        pids = list(self.pids.values())
        return {"codes": codes, "pids": pids, "late": late, "stopped": stopped}


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def main() -> None:
    library.load(os.environ["COLLECTIVES_CORE"])  # once, for all that are forked
    for line in sys.stdin:
        print(json.dumps(Ranks(json.loads(line)).end()), flush=True)


if __name__ == "__main__":
    main()

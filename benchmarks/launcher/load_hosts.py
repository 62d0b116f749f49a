"""Hosts without work: they speak the whole protocol of a job and start no rank.

Followers are real ones, many on one loop. Run as a module this file is the leader: its real
endpoint, in a process of its own. It prints one line when it listens and ends when all have left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.channel import messages as m
from muster.run.channel.follower import Follower
from muster.run.channel.identity import Identity
from muster.run.channel.session import Frames
from muster.run.job import events as e
from muster.run.job.context import JobContext
from muster.run.job.endpoints import LeaderEndpoint
from muster.run.job.supervisor import TICK_S
from muster.types.cluster import Cluster, Host
from muster.types.deadlines import Deadlines
from muster.types.machine import HostFacts
from muster.types.outcome import RankFailure
from muster.types.shown import Shown

ADDRESS = "127.0.0.1"


def name_of(place: int) -> str:
    return f"algo-{place + 1}"


def identity(place: int, nameless: bool = False) -> Identity:
    """Without a secret, as jobs are by default: the leader looks every host's name up. Nameless
    hosts have invented names, and a secret."""
    name, secret = (f"node-{place}", b"0" * 32) if nameless else (name_of(place), b"")
    return Identity("load", name, place, {"toolkit": "1", "request": "0" * 32}, secret)


class IdleHost:
    """A host whose every step is done at once, and told to the leader."""

    def __init__(self, place: int, tell: Callable[[m.ToLeader], object]) -> None:
        self._place = place
        self._tell = tell
        self._ended = False

    def joined(self) -> None:
        address = f"10.{self._place >> 16}.{self._place >> 8 & 255}.{self._place & 255}"
        facts = HostFacts(
            self._place, address, "eth0", 96, 8, 0, True, True, "0" * 32, "1.0.0", "3.11.9"
        )
        self._tell(m.StagedHost(facts))

    def fail(self) -> None:
        """As if its rank had failed."""
        self._tell(m.Report((self._failure(),)))

    def hear(self, message: m.Message) -> None:
        if isinstance(message, m.FactsPart) and message.part == message.parts - 1:
            self._tell(m.Ready("the same plan"))
        elif isinstance(message, m.Go):
            self._tell(m.Registered(8))
        elif isinstance(message, m.Stop) and not self._ended:
            self._ended = True
            end = m.RankEnd(self._place, 143, 1.0, stopped=True, forced=False)
            self._tell(m.HostEnded((end,), (), {"watch": 1.0}))

    def _failure(self) -> RankFailure:
        return RankFailure(
            name_of(self._place), self._place, 1, time.monotonic(), "ValueError: x", "x" * 1000
        )


class IdleFollower(Follower):
    """Leaves the facts of other hosts unread: one process stands for thousands of hosts, each of
    which would read them on a machine of its own."""

    def _payload(self, frames: Frames, payload: list[object]) -> None:
        fields = payload[-1]
        if isinstance(fields, list) and fields[0] == "FactsPart":
            payload = [*payload[:-1], [*fields[:-1], []]]
        super()._payload(frames, payload)


class Leading:
    """The leader's process: a real endpoint, and an idle host of its own in it."""

    def __init__(self, hosts: int, port: int, nameless: bool) -> None:
        self.loop = Loop()
        me = identity(0, nameless)
        cluster = Cluster(
            tuple(Host(identity(i, nameless).name, i, "", "ml.p5.48xlarge") for i in range(hosts)),
            0,
            tuple(range(hosts)),
        )
        context = JobContext(
            cluster, me, Deadlines(), ADDRESS, "", port, not nameless, Shown(),
            lambda _name: (ADDRESS,),
        )  # fmt: skip
        recorder = Recorder(me.name, "", 0, str)
        self.endpoint = LeaderEndpoint(self.loop, context, self._happen, self._log, recorder)
        self._host = IdleHost(0, lambda said: self.loop.after(0, lambda: self.endpoint.send(said)))

    def begin(self) -> None:
        self.endpoint.begin()
        self._tick()

    def _tick(self) -> None:
        self.endpoint.tick(time.monotonic())
        self.loop.after(TICK_S, self._tick)

    def _happen(self, event: e.Event) -> None:
        if isinstance(event, e.Joined):
            self._host.joined()
        if not isinstance(event, e.FromLeader):
            return
        self._host.hear(event.message)
        if isinstance(event.message, m.Verdict):
            self.loop.after(0, self.endpoint.files_written)
        elif isinstance(event.message, m.Leave):
            self.loop.after(0, lambda: self.endpoint.linger(self.loop.stop))

    def _log(self, component: str, message: str, /, level: str = "INFO", **facts: object) -> None:
        """What a job's log would take, except that nobody reads it here."""
        print(component, level, message, facts, file=sys.stderr)


def main() -> int:
    hosts, port, nameless = (int(word) for word in sys.argv[1:])
    leading = Leading(hosts, port, bool(nameless))
    leading.begin()
    print("listening", flush=True)
    leading.loop.run()
    leading.endpoint.close()
    leading.loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

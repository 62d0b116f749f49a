"""A leader and true hosts in processes of their own, to be attacked from outside.

Run as a module it is one of them: argv[1] holds the settings as JSON, every event becomes a line
of JSON on stdout, and every line of stdin is an order.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from muster.run.base.loop import Loop
from muster.run.channel.follower import Follower
from muster.run.channel.identity import Identity
from muster.run.channel.leader import Leader
from muster.run.channel.messages import Message, Registered, Stop, to_wire
from muster.types.deadlines import Deadlines
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

HOSTS = 6
NAMES = tuple(f"algo-{i + 1}" for i in range(HOSTS))
COUNT_S = 0.002  # between two looks at how many connections wait
TIMES = Deadlines(heartbeat_s=0.2, lost_after_s=15.0, reconnect_s=2.0, join_s=30.0)


def tell(*fields: object) -> None:
    print(json.dumps(fields), flush=True)


class Telling:
    """Every event of either end as a line."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *fields: tell(name, *fields)

    def peer_said(self, host: int, message: Message) -> None:
        tell("peer_said", host, to_wire(message))

    def leader_said(self, message: Message) -> None:
        tell("leader_said", to_wire(message))


def lead(loop: Loop, settings: dict[str, Any]) -> Callable[[list[str]], None]:
    leader = Leader(
        loop, who(settings, 0), NAMES, TIMES, Telling(), lambda *_: None,
        lambda text: tell("warned", text),
    )  # fmt: skip
    leader.listen(settings["address"], settings["port"])
    leader.strict = settings.get("strict", False)

    most = 0

    def count() -> None:
        nonlocal most
        most = max(most, leader.waiting)
        loop.after(COUNT_S, count)

    def obey(words: list[str]) -> None:
        if words[0] == "stats":
            tell("stats", leader.waiting, most, leader.waiting_limit)
        elif words[0] == "say":
            leader.send_all(Stop(False, words[1]))
        elif words[0] == "strict":
            leader.strict = True
            tell("strict")

    count()
    tell("listening")
    return obey


def follow(loop: Loop, settings: dict[str, Any]) -> Callable[[list[str]], None]:
    followers = []
    for place in settings["places"]:
        follower = Follower(
            loop,
            who(settings, place),
            lambda done: done([settings["address"]]),
            settings["port"],
            "",
            TIMES,
            Telling(),
        )
        follower.join(settings.get("limit_s", 30.0))
        followers.append(follower)

    def obey(words: list[str]) -> None:
        for follower in followers:
            follower.send(Registered(int(words[1])))

    return obey


def who(settings: dict[str, Any], place: int) -> Identity:
    secret = bytes.fromhex(settings["secret"])
    return Identity(settings["job"], NAMES[place], place, {"toolkit": "1"}, secret)


class Member:
    """One of those processes, as the test sees it."""

    def __init__(self, folder: Path, role: str, settings: dict[str, Any]) -> None:
        self._log = folder / f"{role}-{secrets.token_hex(4)}"
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps({"role": role, **settings})],
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[4],
            )  # fmt: skip
        assert self.process.stdin is not None
        self._orders: IO[bytes] = self.process.stdin

    @property
    def told(self) -> list[list[Any]]:
        whole = self._log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("[")]

    def of(self, *kinds: str) -> list[list[Any]]:
        return [event for event in self.told if event[0] in kinds]

    def wait_for(self, *beginning: object, count: int = 1, limit_s: float = 20) -> None:
        """Until so many events that begin so were told."""
        start = list(beginning)
        wait_until(
            lambda: sum(event[: len(start)] == start for event in self.told) >= count,
            limit_s,
            lambda: f"{start} never came: {self._log.read_text()[-3000:]}",
        )

    def order(self, *words: object) -> None:
        self._orders.write((" ".join(map(str, words)) + "\n").encode())
        self._orders.flush()

    def stats(self) -> tuple[int, int, int]:
        """Connections that wait now, waited at most, and may wait."""
        count = len(self.of("stats"))
        self.order("stats")
        self.wait_for("stats", count=count + 1)
        _, now, most, limit = self.of("stats")[-1]
        return now, most, limit

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._orders.close()


class Visitor(Protocol):
    def close(self) -> None: ...


class LeaderUnderAttack:
    """A leader with two true hosts that beat five times a second, and room for more."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.members: list[Member] = []
        self.visitors: set[Visitor] = set()  # closed at the end, whatever happens
        self.address = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}.1"
        self.port = free_ports(1)[0]
        self.secret = secrets.token_bytes(16)
        self.job = "attacked-job"
        self.settings: dict[str, Any] = {
            "address": self.address,
            "port": self.port,
            "secret": self.secret.hex(),
            "job": self.job,
            **settings,
        }
        self.leader = self.start("lead")
        self.leader.wait_for("listening")
        self.hosts = self.join(1, 2)

    def start(self, role: str, **settings: object) -> Member:
        member = Member(self.folder, role, {**self.settings, **settings})
        self.members.append(member)
        return member

    def join(self, *places: int, **settings: object) -> Member:
        """True hosts, once the leader has them."""
        member = self.start("follow", places=places, **settings)
        member.wait_for("leader_joined", count=len(places))
        for place in places:
            self.leader.wait_for("peer_joined", place)
        return member

    def late_host_joins_within_s(self, place: int) -> float:
        """The time that one more true host takes from its start to its welcome."""
        began = time.monotonic()
        self.join(place)
        return time.monotonic() - began

    def check_the_true_hosts(self) -> None:
        """None of the two was ever missed, and both directions still work."""
        for name in ("peer_suspect", "peer_lost", "peer_freed", "peer_silent", "peer_disagrees"):
            assert not [event for event in self.leader.of(name) if event[1] in (1, 2)], name
        assert not self.hosts.of("leader_lost", "leader_silent", "leader_unreachable")
        mark = str(secrets.randbelow(1 << 30))
        self.leader.order("say", mark)
        self.hosts.wait_for("leader_said", ["Stop", False, mark], count=2)
        self.hosts.order("register", mark)
        for place in (1, 2):
            self.leader.wait_for("peer_said", place, ["Registered", int(mark)])

    def settle(self, descriptors: int) -> None:
        """Until the leader holds no more descriptors than that and nobody waits any more."""
        wait_until(
            lambda: self.leader.descriptors() <= descriptors,
            10,
            lambda: f"{self.leader.descriptors()} descriptors, {descriptors} before",
        )
        assert self.leader.stats()[0] == 0

    def close(self) -> None:
        for visitor in list(self.visitors):
            visitor.close()
        for member in self.members:
            member.end()


def main(arguments: Sequence[str]) -> None:
    settings = json.loads(arguments[0])
    if settings["role"] == "lead" and "open_files" in settings:
        limit = settings["open_files"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    loop = Loop()
    obey = {"lead": lead, "follow": follow}[settings["role"]](loop, settings)

    def read(_events: int) -> None:
        data = os.read(0, 4096)
        if not data:
            loop.stop()
        for line in data.decode().splitlines():
            obey(line.split())

    loop.watch(0, read)
    loop.run()


if __name__ == "__main__":
    main(sys.argv[1:])

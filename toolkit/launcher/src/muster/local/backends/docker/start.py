"""Containers as the hosts of one run, inside the host supervisor: made, watched, stopped, removed.

They end with the supervisor: when `muster local` is gone its stdin closes, and all is removed. Only
SIGKILL to the supervisor itself leaves containers, which carry the labels of `names`.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from muster.local.backends.docker import names as docker_names
from muster.local.backends.docker import tidy as docker_tidy
from muster.local.backends.docker.engine import EngineError, connect, explained
from muster.local.backends.docker.host import KILLED_CODE, ContainerHost
from muster.local.backends.docker.options import is_root
from muster.local.backends.docker.preflight import image_user
from muster.local.backends.docker.reminders import Reminders
from muster.local.orders import KILL, STOP, Containers, Orders
from muster.local.show.progress import Tail
from muster.local.supervisor import report
from muster.types.run_files import EVENTS

CALL_S = 60.0  # for anything that the engine makes or removes
HASTE_S = 20.0  # the same while `muster local` is silent, and once all is to be killed
SIGNAL_S = 5.0  # for a signal, and for everything once the engine was lost
KILL_LIMIT_S = 20.0
SETTLE_S = 5.0  # for containers that are just being made
POLL_MS = 200


def start(orders: Orders, up: int) -> int:
    """Runs the containers of one run; returns the exit code. Errors have been reported."""
    assert orders.containers is not None
    connections = len(orders.hosts) + 8
    try:
        engine, teller = connect(HASTE_S, connections), connect(HASTE_S, connections)
    except EngineError as error:
        return _give_up(up, error)
    teller.timeout = SIGNAL_S
    cluster = _Cluster(engine, teller, orders, orders.containers, up)
    try:
        cluster.make()
        cluster.watch()
    except EngineError as error:
        cluster.is_lost |= error.lost
        return _give_up(up, error)
    finally:
        _tidy(engine, cluster, cluster.wanted, up)
    return 0


def _tidy(engine: Any, cluster: _Cluster, wanted: Containers, up: int) -> None:
    """In haste when `muster local` wants an end, since a person waits."""
    limit_s = give_back_s = HASTE_S
    if cluster.is_lost:
        limit_s = SIGNAL_S
    elif not cluster.in_haste:
        limit_s, give_back_s = CALL_S, docker_tidy.GIVE_BACK_S
    engine.timeout = limit_s
    found = docker_tidy.tidy(engine, wanted, cluster.settle, give_back_s, cluster.checkpoint)
    for note in found.notes:
        report(up, "note", note)
    if found.is_clean:
        left = docker_names.KEPT_ALL if wanted.keep else docker_names.LEFT_NOTHING
        report(up, "fact", "left", left)


def _give_up(up: int, error: EngineError) -> int:
    report(up, "error", error.in_words(), error.exit_code)
    return 1


class _Cluster:
    """All hosts of the run: one thread for each, and this one, which reads from `muster local`.

    `is_lost`: the engine does not answer any more. `in_haste`: all was to be killed.
    Signals have a client of their own, `teller`.
    """

    def __init__(
        self, engine: Any, teller: Any, orders: Orders, wanted: Containers, up: int
    ) -> None:
        self.is_lost = self.in_haste = False
        self.checkpoint = orders.checkpoint
        self._engine = engine
        self._teller = teller
        self._failures: list[str] = []
        self._told_failure = False
        self._orders = orders
        self.wanted = wanted
        self._up = up
        self._hosts: list[ContainerHost] = []
        self._stopped_at: float | None = None
        self._reminders: Reminders | None = None
        self._events = [os.path.join(wanted.folder, host.name, EVENTS) for host in orders.hosts]
        self._tail = Tail(self._events)
        self._listening: set[str] = set()
        self._is_ready = False
        self._killed_at: float | None = None
        self._wake, self._wake_up = os.pipe()

    def make(self) -> None:
        """The network, then all hosts at once. Raises EngineError."""
        wanted = self.wanted
        network = docker_names.network_name(wanted.run)
        with explained():
            image = self._engine.inspect_image(wanted.image)
            self._engine.create_network(
                network,
                driver="bridge",
                labels=docker_names.labels(wanted.run, wanted.folder, wanted.keep),
            )
            if wanted.shm_bytes is None:
                memory = wanted.memory_bytes or self._engine.info()["MemTotal"]
                wanted = wanted._replace(shm_bytes=memory // 2)
        facts = {"image": wanted.image, "image_id": image["Id"], "containers": wanted.run}
        for name, value in facts.items():
            report(self._up, "fact", name, value)
        self._engine.timeout = CALL_S
        self.wanted = wanted = wanted._replace(user=wanted.user or image_user(image))
        if not is_root(wanted.user):
            docker_tidy.hand_over(self._engine, wanted, CALL_S, self.checkpoint)
        orders = self._orders._replace(containers=wanted)
        self._hosts = [
            ContainerHost(self._engine, self._teller, orders, host_index, self._wake_up)
            for host_index in range(len(orders.hosts))
        ]
        for host in self._hosts:
            host.start()

    def watch(self) -> None:
        """Until every host has ended, or was killed and still does not end."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        running = set(range(len(self._hosts)))
        while running:
            for fd, _ in poll.poll(POLL_MS):
                if fd == self._wake:
                    host_index = os.read(self._wake, 1)[0]
                    running.discard(host_index)
                    self._ended(self._hosts[host_index])
                else:
                    word = os.read(0, 1)
                    if not word:
                        poll.unregister(0)
                    self._obey(word)
            self._tell_ready()
            self._tell_again()
            self._tell_failure()
            if running and self._is_given_up():
                self._abandon(running)
                return
        self._tell_of_another_train()

    def settle(self) -> bool:
        """Whether no container is being made any more, after a while at most."""
        limit = time.monotonic() + (0 if self.is_lost else SETTLE_S)
        for host in self._hosts:
            while host.is_making and time.monotonic() < limit:
                host.join(POLL_MS / 1000)
        return not any(host.is_making for host in self._hosts)

    def _is_given_up(self) -> bool:
        if self._killed_at is None:
            return False
        return self.is_lost or time.monotonic() > self._killed_at + KILL_LIMIT_S

    def _abandon(self, running: Iterable[int]) -> None:
        """What was killed and did not end counts as killed."""
        names = ", ".join(self._hosts[host_index].name for host_index in running)
        self._tell_failure()
        if not self.is_lost:
            report(self._up, "note", f"{names} did not end in {KILL_LIMIT_S:g} s after SIGKILL")
        for host_index in running:
            report(self._up, "ended", host_index, -signal.SIGKILL)

    def _tell_of_another_train(self) -> None:
        """Says why there is no record, when all hosts ended by themselves without writing any."""
        by_itself = self._killed_at is None and self._stopped_at is None
        killed = any(host.note or host.status == KILLED_CODE for host in self._hosts)
        if by_itself and not killed and not any(map(os.path.exists, self._events)):
            text = f"the `train` of {self.wanted.image} wrote no record: is it another toolkit's?"
            report(self._up, "note", text)

    def _obey(self, word: bytes) -> None:
        if word == STOP:
            self._stopped_at = now = time.monotonic()
            started = {host.name: host.started_at for host in self._hosts}
            self._reminders = Reminders(now, started, self._who_listens())
            self._signal_all(signal.SIGTERM)
        elif word in (KILL, b""):
            self.in_haste = True
            self._kill()

    def _kill(self) -> None:
        if self._killed_at is None:
            self._killed_at = time.monotonic()
            threading.Thread(target=self._probe, daemon=True).start()
        self._signal_all(signal.SIGKILL)

    def _probe(self) -> None:
        """Whether the engine is there at all: a SIGKILL to a busy container takes it long."""
        try:
            with explained():
                self._teller.ping()
        except EngineError as error:
            self._failures.append(error.in_words())
            self.is_lost = True

    def _tell_ready(self) -> None:
        if not self._is_ready and all(host.started_at for host in self._hosts):
            self._is_ready = True
            report(self._up, "ready")

    def _tell_again(self) -> None:
        """SIGTERM to hosts whose `train` may not have listened before; to one that has ended
        nothing is sent."""
        now = time.monotonic()
        if (
            self._reminders is None
            or self._killed_at is not None
            or not self._reminders.is_due(now)
        ):
            return
        due = self._reminders.take(now, self._who_listens())
        self._signal_all(signal.SIGTERM, [host for host in self._hosts if host.name in due])

    def _who_listens(self) -> set[str]:
        """Hosts that have written an event: `train` holds signals back before its first."""
        self._listening.update(str(event.get("host")) for event in self._tail.read())
        return self._listening

    def _signal_all(
        self, number: signal.Signals, hosts: Sequence[ContainerHost] | None = None
    ) -> None:
        for host in self._hosts if hosts is None else hosts:
            host.send(number, partial(self._failed, host.name, number))

    def _failed(self, name: str, number: signal.Signals, error: EngineError) -> None:
        """In a thread. What SIGKILL could not do shows at its limit, and in `_probe`."""
        if number != signal.SIGKILL:
            self._failures.append(f"{name}: {error.in_words()}")

    def _tell_failure(self) -> None:
        """The first one; the others are the same, and so is the error of a host."""
        if self._failures and not self._told_failure:
            self._told_failure = True
            if not any(host.error for host in self._hosts):
                report(self._up, "note", self._failures[0])

    def _ended(self, host: ContainerHost) -> None:
        if host.error:
            report(self._up, "error", f"{host.name}: {host.error.in_words()}", host.error.exit_code)
            if self._killed_at is None:
                self._kill()
        if host.note:
            report(self._up, "note", f"{host.name}: {host.note}")
        if host.status is not None:
            report(self._up, "ended", host.host_index, host.status)

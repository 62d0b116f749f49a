"""Containers as the hosts of one run, inside the holder: made, watched, stopped, removed.

They end with the holder: when `muster local` is gone its stdin closes, and all is removed. Only
SIGKILL to the holder itself leaves containers, which carry the labels of `docker_names`.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from typing import Any

from muster.local import docker_names, docker_tidy
from muster.local.docker_engine import EngineError, connect, explained
from muster.local.docker_host import Host
from muster.local.holder import report
from muster.local.orders import KILL, STOP, Containers, Orders
from muster.local.runfolder import EVENTS

CALL_S = 60.0  # for anything that the engine makes or removes
KILL_LIMIT_S = 20.0
POLL_MS = 200
AGAIN_S = 1.0  # a container so young may not have heard the first SIGTERM


def run_containers(orders: Orders, up: int) -> int:
    """The holder's life with containers; returns its exit code. What went wrong was reported."""
    assert orders.containers is not None
    try:
        engine = connect(CALL_S, connections=len(orders.hosts) + 8)
    except EngineError as error:
        return _give_up(up, error)
    cluster = _Cluster(engine, orders, orders.containers, up)
    try:
        cluster.make()
        cluster.watch()
    except EngineError as error:
        return _give_up(up, error)
    finally:
        _tidy(engine, orders.containers, up)
    return 0


def _tidy(engine: Any, wanted: Containers, up: int) -> None:
    notes = docker_tidy.tidy(engine, wanted)
    for note in notes:
        report(up, "note", note)
    if not notes:
        left = docker_names.KEPT_ALL if wanted.keep else docker_names.LEFT_NOTHING
        report(up, "fact", "left", left)


def _give_up(up: int, error: EngineError) -> int:
    report(up, "error", error.in_words(), error.exit_code)
    return 1


class _Cluster:
    """All hosts of the run: one thread for each, and this one, which hears `muster local`."""

    def __init__(self, engine: Any, orders: Orders, wanted: Containers, up: int) -> None:
        self._engine = engine
        self._orders = orders
        self._wanted = wanted
        self._up = up
        self._hosts: list[Host] = []
        self._stopped_at: float | None = None
        self._told_again = False
        self._is_ready = False
        self._killed_at: float | None = None
        self._wake, self._wake_up = os.pipe()

    def make(self) -> None:
        """The network, then all hosts at once. Raises EngineError."""
        wanted = self._wanted
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
        self._hosts = [
            Host(self._engine, wanted, self._orders.channels, order, place, self._wake_up)
            for place, order in enumerate(self._orders.hosts)
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
                    place = os.read(self._wake, 1)[0]
                    running.discard(place)
                    self._ended(self._hosts[place])
                else:
                    word = os.read(0, 1)
                    if not word:
                        poll.unregister(0)
                    self._obey(word)
            self._tell_ready()
            self._tell_again()
            if not running:
                self._tell_of_another_train()
            if self._killed_at and time.monotonic() > self._killed_at + KILL_LIMIT_S:
                for place in running:
                    report(self._up, "ended", place, -signal.SIGKILL)
                return

    def _tell_of_another_train(self) -> None:
        """Says why there is no record, when all hosts ended by themselves without writing any."""
        events = os.path.join(self._wanted.folder, EVENTS)
        by_itself = self._killed_at is None and self._stopped_at is None
        if by_itself and not os.path.exists(events):
            text = f"the `train` of {self._wanted.image} wrote no record: is it another toolkit's?"
            report(self._up, "note", text)

    def _obey(self, word: bytes) -> None:
        if word == STOP:
            self._stopped_at = time.monotonic()
            self._signal_all(signal.SIGTERM)
        elif word in (KILL, b""):
            self._kill()

    def _kill(self) -> None:
        self._killed_at = self._killed_at or time.monotonic()
        self._signal_all(signal.SIGKILL)

    def _tell_ready(self) -> None:
        if not self._is_ready and all(host.started_at for host in self._hosts):
            self._is_ready = True
            report(self._up, "ready")

    def _tell_again(self) -> None:
        """A second SIGTERM to hosts that had only just started; `train` takes it for the first."""
        if self._stopped_at is None or self._told_again:
            return
        if time.monotonic() > self._stopped_at + AGAIN_S:
            self._told_again = True
            young = [h for h in self._hosts if h.started_at > self._stopped_at - AGAIN_S]
            self._signal_all(signal.SIGTERM, young)

    def _signal_all(self, number: signal.Signals, hosts: Sequence[Host] | None = None) -> None:
        for host in self._hosts if hosts is None else hosts:
            try:
                host.signal(number)
            except EngineError as error:
                if not any(host.error for host in self._hosts):  # it has been told
                    report(self._up, "note", f"{host.name}: {error.in_words()}")
                return  # the others would wait as long for the same answer

    def _ended(self, host: Host) -> None:
        if host.error:
            report(self._up, "error", f"{host.name}: {host.error.in_words()}", host.error.exit_code)
            if self._killed_at is None:
                self._kill()
        if host.note:
            report(self._up, "note", f"{host.name}: {host.note}")
        if host.status is not None:
            report(self._up, "ended", host.place, host.status)

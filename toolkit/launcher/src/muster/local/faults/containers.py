"""Faults of hosts that are containers, through the engine that runs them.

A host that is frozen is paused. Scripts are signalled from inside, where their pids count; so is
what is slow, since an engine pauses too slowly to share out time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from muster.local.backends.docker.engine import EngineError, connect, explain
from muster.local.backends.docker.names import container_name, network_name
from muster.local.faults.means import PERIOD_S, Means, NotLandedError, Target

CALL_S = 10.0
POLL_S = 0.05
_SIGNAL = ("sh", "-c", 'kill -s "$1" -- "$2"', "sh")
# whom, for how long it stands still and runs, the file without which it is slow no more
_SLOW = (
    "sh",
    "-c",
    ': >"$4"; while [ -e "$4" ] && kill -s STOP -- "$1"; do sleep "$2"; kill -s CONT -- "$1"; '
    'sleep "$3"; done',
    "sh",
)


class ContainerMeans(Means):
    """`run`: the id in the names of its containers."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._slowed = 0  # how often so far
        self._client: Any = None

    def kill(self, target: Target) -> None:
        with self._engine() as engine:
            if target.rank is not None:
                self._signal(engine, target, "KILL", str(target.pid))
                return
            name = self._name(target.host)
            engine.kill(name, "KILL")
            self._wait(engine, name, "Running", False)

    def freeze(self, target: Target) -> None:
        with self._engine() as engine:
            if target.rank is not None:
                self._signal(engine, target, "STOP", f"-{target.pid}")  # leads a group of its own
                return
            engine.pause(self._name(target.host))
            self._wait(engine, self._name(target.host), "Paused", True)

    def thaw(self, target: Target) -> None:
        try:
            with self._engine() as engine:
                if target.rank is not None:
                    self._signal(engine, target, "CONT", f"-{target.pid}")
                else:
                    engine.unpause(self._name(target.host))
        except NotLandedError:
            pass  # it has ended

    def slow(self, target: Target, percent: int) -> Callable[[], None]:
        """Of a host all but its first process."""
        self._slowed += 1
        mark = f"/tmp/.muster-slow-{self._slowed}"
        whom = "-1" if target.rank is None else f"-{target.pid}"
        runs_s = PERIOD_S * percent / 100
        words = [*_SLOW, whom, f"{PERIOD_S - runs_s:.4f}", f"{runs_s:.4f}", mark]
        with self._engine() as engine:
            if target.rank is not None:
                self._signal(engine, target, "STOP", whom)
            engine.exec_start(engine.exec_create(self._name(target.host), words)["Id"], detach=True)

        def end() -> None:
            try:
                with self._engine() as engine:
                    words = ["rm", "-f", mark]
                    engine.exec_start(engine.exec_create(self._name(target.host), words)["Id"])
            except NotLandedError:
                pass  # it has ended

        return end

    def cut(self, one: str, other: str) -> None:
        """Of two hosts, and there are no more, the second leaves the network."""
        with self._engine() as engine:
            engine.disconnect_container_from_network(self._name(other), network_name(self._run))

    def heal(self, one: str, other: str) -> None:
        try:
            with self._engine() as engine:
                network = network_name(self._run)
                engine.connect_container_to_network(self._name(other), network, aliases=[other])
        except NotLandedError:
            pass  # it has ended

    def _name(self, host: str) -> str:
        return container_name(self._run, host)

    @contextmanager
    def _engine(self) -> Iterator[Any]:
        """The client; what it raises becomes NotLandedError."""
        try:
            if self._client is None:
                self._client = connect(CALL_S)
            yield self._client
        except EngineError as error:
            raise NotLandedError(error.in_words()) from None
        except Exception as error:
            from docker.errors import DockerException

            if not isinstance(error, (DockerException, OSError)):
                raise
            raise NotLandedError(explain(error).in_words()) from None

    def _signal(self, engine: Any, target: Target, number: str, whom: str) -> None:
        made = engine.exec_create(self._name(target.host), [*_SIGNAL, number, whom])["Id"]
        said = engine.exec_start(made)
        if engine.exec_inspect(made)["ExitCode"]:
            text = said.decode(errors="replace").strip()
            raise NotLandedError(f"{target.in_words()}: {text or 'it had ended'}")

    @staticmethod
    def _wait(engine: Any, name: str, what: str, value: bool) -> None:
        limit_s = time.monotonic() + CALL_S
        while bool(engine.inspect_container(name)["State"].get(what)) != value:
            if time.monotonic() > limit_s:
                raise NotLandedError(f"the engine did not do it within {CALL_S:g} s")
            time.sleep(POLL_S)

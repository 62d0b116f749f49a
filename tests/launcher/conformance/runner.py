"""Runs one scenario through one launcher and collects what every host left behind.

Hosts are processes of this machine (5a) or, when the scenario asks for it, namespaces with
`train` as PID 1 (5b). Nothing here knows what a launcher does inside.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.launcher.conformance.isolated import Cluster
from tests.launcher.conformance.launchers import Launcher
from tests.launcher.conformance.processes import MARK, end_all, marked, survivors
from tests.launcher.conformance.scenario import Scenario
from tests.launcher.conformance.surroundings import Place, Ports, environment
from tests.launcher.conformance.tools import write_tools
from tests.launcher.conformance.tree import write_tree
from tests.support.ports import free_ports

_START_LIMIT_S = 30.0  # from the start of `train` to the script's report, loaded machine included


class HostRun(NamedTuple):
    """What one host's `train` left behind. `exit_code` None: it was still running at the end."""

    host: str
    base: Path
    given: Mapping[str, str]
    exit_code: int | None
    stdout: str
    stderr: str
    reports: tuple[Mapping[str, object], ...]
    calls: Mapping[str, tuple[tuple[str, ...], ...]]


class Run(NamedTuple):
    """`survivors`: processes of the run that outlived every `train`."""

    launcher: Launcher
    store_port: int
    hosts: tuple[HostRun, ...]
    in_time: bool
    survivors: int


class Process(Protocol):
    """A host's `train`, whatever it runs in."""

    def poll(self) -> int | None: ...

    def send_signal(self, number: int, /) -> None: ...


class _Started(NamedTuple):
    place: Place
    given: Mapping[str, str]
    train: Process


def run(scenario: Scenario, launcher: Launcher, folder: Path, wheels: Path) -> Run:
    """One run in `folder`, which is empty. No process of it is left when this ends."""
    mark, ports = uuid.uuid4().hex, Ports(*free_ports(2))
    places = [Place(host, folder / host) for host in scenario.hosts]
    given = []
    for place in places:
        place.make()
        write_tree(scenario, place.host, place.base, wheels)
        write_tools(scenario.tools, place.root / "tools")
        for name, text in scenario.site.items():
            (place.root / "site" / name).write_text(text, encoding="utf-8")
        given.append(environment(scenario, launcher, place, mark, ports, wheels))
    try:
        with ExitStack() as stack:
            start = _start_isolated if scenario.isolated else _start_processes
            trains = start(places, given, launcher.train, stack)
            started = [_Started(*fields) for fields in zip(places, given, trains, strict=True)]
            return _watch(scenario, launcher, started, mark, ports)
    finally:
        end_all(mark)


def _watch(
    scenario: Scenario, launcher: Launcher, started: list[_Started], mark: str, ports: Ports
) -> Run:
    if scenario.stop is not None:
        reports = started[0].place.reports
        if not _within(_START_LIMIT_S, lambda: any(reports.glob("*.json"))):
            raise AssertionError(f"the script did not report within {_START_LIMIT_S:g} s")
        started[0].train.send_signal(scenario.stop.number)
    in_time = _within(
        scenario.patience_s, lambda: all(host.train.poll() is not None for host in started)
    )
    alive = len(survivors(mark) if in_time else marked(mark))
    return Run(launcher, ports.store, tuple(map(_observed, started)), in_time, alive)


def _start_processes(
    places: list[Place], given: list[dict[str, str]], train: str, stack: ExitStack
) -> list[Process]:
    children: list[Process] = []
    for place, environ in zip(places, given, strict=True):
        stdout = stack.enter_context((place.root / "stdout.log").open("wb"))
        stderr = stack.enter_context((place.root / "stderr.log").open("wb"))
        child = subprocess.Popen(
            [train], env=environ, cwd=place.root, stdin=subprocess.DEVNULL,
            stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        stack.callback(_end, child)
        children.append(child)
    return children


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
        child.wait(10)


def _start_isolated(
    places: list[Place], given: list[dict[str, str]], train: str, stack: ExitStack
) -> list[Process]:
    cluster = Cluster(places[0].root.parent)
    hosts: list[Process] = [
        cluster.add(place.host, place.base, environ, train)
        for place, environ in zip(places, given, strict=True)
    ]
    stack.callback(cluster.kill)
    cluster.start({MARK: given[0][MARK]})
    return hosts


def _observed(host: _Started) -> HostRun:
    place = host.place
    reports = [json.loads(path.read_text()) for path in sorted(place.reports.glob("*.json"))]
    reports.sort(key=lambda report: int(_rank(report["env"])))
    calls = {path.stem: _calls(path) for path in sorted(place.reports.glob("*.calls"))}
    stdout, stderr = (
        (place.root / name).read_text(encoding="utf-8", errors="replace")
        for name in ("stdout.log", "stderr.log")
    )
    code = host.train.poll()
    return HostRun(place.host, place.base, host.given, code, stdout, stderr, tuple(reports), calls)


def _rank(environ: Mapping[str, str]) -> str:
    return environ.get("RANK", environ.get("OMPI_COMM_WORLD_RANK", "0"))


def _calls(path: Path) -> tuple[tuple[str, ...], ...]:
    """The command lines of a tool, but for questions about its version."""
    lines = [tuple(json.loads(line)) for line in path.read_text().splitlines()]
    return tuple(line for line in lines if line != ("--version",))


def _within(limit_s: float, done: Callable[[], bool]) -> bool:
    """Whether it was done before the limit; looks every 10 ms."""
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True

"""Fixtures, and beginnings of scripts, that several folders of tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.launcher.support.cluster import Cluster


class Checkable(Protocol):
    """A job of a test: what holds after every job can be asked of it, and it can be ended."""

    def check_invariants(self) -> None: ...

    def kill(self) -> None: ...


@contextmanager
def checked(made: Sequence[Checkable]) -> Iterator[None]:
    """Checks all jobs that were made in the block, when it ends well; kills each in any case.

    Neither a check nor a kill that fails keeps the others from being done: the last error is
    raised with those before it as its context.
    """
    try:
        yield
        _do_all(job.check_invariants for job in made)
    finally:
        _do_all(job.kill for job in made)


def _do_all(actions: Iterable[Callable[[], None]]) -> None:
    with ExitStack() as stack:
        for action in reversed(list(actions)):
            stack.callback(action)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters, `cluster(script, hosts=2, ...)`; checks each of them after the test."""
    made: list[Cluster] = []

    def make(script: str, hosts: int = 2, **options: object) -> Cluster:
        folder = tmp_path / f"cluster-{len(made)}"
        made.append(Cluster(folder, script, hosts, **options))  # type: ignore[arg-type]
        return made[-1]

    with checked(made):
        yield make


# beginnings of scripts that hear a stop: one refuses it, one saves
REFUSING = """\
import signal
def refuse(number, frame):
    raise RuntimeError("preempted")
signal.signal(signal.SIGTERM, refuse)
"""


def saving(lasts_s: float) -> str:
    """Saves for so long at the first SIGTERM, and says each one."""
    return f"""\
import signal, sys, time
def save(number, frame):
    asked.append(number)
    print("asked", len(asked), flush=True)
    if len(asked) == 1:
        time.sleep({lasts_s})
        print("saved", flush=True)
        sys.exit(0)
asked = []
signal.signal(signal.SIGTERM, save)
"""

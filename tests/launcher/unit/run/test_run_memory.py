"""Whom the kernel killed for memory, told from a counter that names nobody (A-D6)."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from muster.run.base.memory import KillWatch, Memory

LIMIT = 96 << 20


class Counter:
    def __init__(self) -> None:
        self.kills = 0

    def watch(self, *pids: int, limit: int | None = LIMIT) -> KillWatch:
        watch = KillWatch(Memory(lambda: self.kills, lambda: limit), lambda: pids)
        watch.look()
        return watch


@pytest.mark.promise("F11")
def test_one_that_lived_when_the_kernel_had_killed_was_not_what_it_killed() -> None:
    """A worker of the rank was; the rank itself is ended by somebody later."""
    counter = Counter()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as rank:
        watch = counter.watch(rank.pid)
        counter.kills = 1
        watch.look()
        rank.kill()
        rank.wait()
        ended = time.monotonic() + 15
        assert watch.killed(rank.pid, ended) == ""
        said = watch.another(ended, recent=False)
        assert said.startswith(
            "the kernel killed another process of this container for memory 15 s"
        )
        assert "96 MiB" in said
        assert watch.another(ended, recent=True)
        assert watch.another(ended + 3600, recent=True) == ""


@pytest.mark.promise("F11")
def test_one_that_was_about_to_die_is_named_however_long_its_end_takes() -> None:
    """SIGKILL is on its way to a stopped process's child; a zombie is dead already."""
    counter = Counter()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as rank:
        watch = counter.watch(rank.pid)
        counter.kills = 1
        rank.kill()
        watch.look()
        rank.wait()
        said = watch.killed(rank.pid, time.monotonic() + 30)
        assert said == "killed by the kernel: container memory limit of 96 MiB reached"
        unlimited = counter.watch(rank.pid, limit=None)
        counter.kills = 2
        assert "the machine has no memory left" in unlimited.killed(rank.pid, time.monotonic())


def test_without_a_kill_or_a_counter_nothing_is_said() -> None:
    counter = Counter()
    watch = counter.watch(1)
    assert (watch.killed(1, time.monotonic()), watch.another(time.monotonic(), False)) == ("", "")
    blind = KillWatch(Memory(), list)
    blind.look()
    assert blind.killed(1, time.monotonic()) == ""
    counter.kills = 5  # long before the rank began
    watch.look()
    assert watch.killed(99, time.monotonic() + 60) == ""

"""From how much on ranks count as talking; test_group_watch_jobs.py has what is counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from muster.run.base.loop import Loop
from muster.run.child import group_watch
from muster.run.child.group_watch import ENOUGH_LOOKS, LAST_BYTES, LEAST_BYTES, GroupWatch, Traffic

QUIET = Traffic(5, 1000)
ONE = 77  # the inode of a connection


@pytest.fixture
def watch() -> Iterator[GroupWatch]:
    loop = Loop()
    yield GroupWatch(loop, ())
    loop.close()


def is_named(watch: GroupWatch, at_the_end: Traffic | None, mp: pytest.MonkeyPatch) -> bool:
    mp.setattr(group_watch, "traffic_of_host", lambda: at_the_end)  # others use this network, too
    return bool(watch.warning())


def looks(watch: GroupWatch, *counts: int) -> None:
    for count in counts:
        watch.take(QUIET, True, {ONE: count})


@pytest.mark.parametrize(
    ("step", "count", "named"),
    [
        (0, ENOUGH_LOOKS, True),
        (0, ENOUGH_LOOKS - 1, False),
        (LEAST_BYTES, ENOUGH_LOOKS, True),
        (LEAST_BYTES + 1, ENOUGH_LOOKS, False),
    ],
)
def test_so_many_looks_at_so_few_bytes_are_needed(
    watch: GroupWatch, step: int, count: int, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks(watch, *(step * number for number in range(count + 1)))  # the first sees a new connection
    assert is_named(watch, QUIET, monkeypatch) is named


@pytest.mark.parametrize(
    ("end", "named"),
    [
        (Traffic(5, 999 + LAST_BYTES), True),
        (Traffic(5, 1000 + LAST_BYTES), False),
        (Traffic(6, 1000), False),
        (None, False),
    ],
)
def test_what_moved_after_the_last_look_leaves_it_unsaid(
    watch: GroupWatch, end: Traffic | None, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks(watch, *([0] * (ENOUGH_LOOKS + 1)))
    assert is_named(watch, end, monkeypatch) is named


def test_a_connection_that_came_and_went_between_two_looks_leaves_it_unsaid(
    watch: GroupWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a group that is made, used and left at the very end, before the ranks end."""
    looks(watch, *([0] * (ENOUGH_LOOKS + 1)))
    watch.take(Traffic(9, 9000), True, {ONE: 0})
    assert not is_named(watch, Traffic(9, 9000), monkeypatch)


def test_a_look_without_torch_or_at_what_talks_unseen_begins_anew(
    watch: GroupWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks(watch, *([0] * ENOUGH_LOOKS))
    watch.take(QUIET, False, {ONE: 0})
    looks(watch, 0)
    assert not is_named(watch, QUIET, monkeypatch)
    looks(watch, *([0] * ENOUGH_LOOKS))
    watch.take(QUIET, True, None)
    assert not is_named(watch, QUIET, monkeypatch)


def test_where_no_more_files_can_be_opened_it_stays_unsaid() -> None:
    code = """if True:
        import os, resource
        from muster.run.child.group_watch import glance
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        print(glance([os.getpid()]))"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "(False, None)\n"

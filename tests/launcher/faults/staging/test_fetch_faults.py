"""Code that cannot be brought to one of two hosts: a full disk, a slow mount, a broken archive
(promises F52, F54, F55)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest

from tests.launcher.support.archives import Entry, write_archive
from tests.launcher.support.cluster import Cluster, lines
from tests.launcher.support.disks.mounts import behind, small_disk
from tests.launcher.support.disks.slow_mount import held
from tests.launcher.support.records import keep_record
from tests.launcher.support.sabotage import train_after
from tests.launcher.support.staging import (
    code_channel,
    empty_code,
    one_ending,
    start_after_the_other,
)
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]
PROGRAM = Entry("train.py", b"print('ran')\n")


def packed(job: Cluster, *entries: Entry) -> None:
    """Gives every host the code as an archive in its channel."""
    empty_code(job)
    keep_record(job)
    for name in job.names:
        write_archive(code_channel(job, name) / "sourcedir.tar.gz", PROGRAM, *entries)


@pytest.mark.promise("F52")
@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (
            [Entry("weights.bin", os.urandom(3 << 20))],
            r"needs 3(\.\d+)? MiB, (1 MiB|1020 KiB) free",
        ),
        # each takes a whole page: the room is gone half-way, though there was enough at first
        ([Entry(f"{n}.py", b"x") for n in range(400)], r"needs 2\d\d KiB, 0 bytes free"),
    ],
    ids=["seen before", "half-way"],
)
def test_a_disk_that_the_code_does_not_fit_on_ends_both_hosts_and_holds_nothing_of_it(
    cluster: Make, entries: list[Entry], words: str
) -> None:
    job = cluster("")
    packed(job, *entries)
    code, seen = job.base("algo-2") / "code", job.folder / "seen"
    small = behind(small_disk(code, "size=1m"), afterwards=f"ls -A {code} > {seen}")
    start_after_the_other(job, command=small)
    line = one_ending(job)
    archive = code_channel(job, "algo-2") / "sourcedir.tar.gz"
    told = f"SourceError: no space left unpacking code archive {archive} "
    assert line.startswith(told)
    assert re.search(words, line), line
    assert seen.read_text() == ""


@pytest.mark.promise("F52")
def test_a_host_that_is_still_unpacking_when_another_fails_leaves_nothing(cluster: Make) -> None:
    job = cluster("")
    packed(job)
    (code_channel(job, "algo-2") / "sourcedir.tar.gz").write_bytes(b"")
    with held(code_channel(job, "algo-1") / "sourcedir.tar.gz") as opening:
        job.start("algo-1")
        wait_until(opening.waited.is_set, 20, "nobody came to open it")  # the fault
        assert list(job.base("algo-1").glob(".muster-code-*"))
        job.start("algo-2")
        one_ending(job, 20)
    assert list(job.base("algo-1").glob(".muster-code-*")) == []


@pytest.mark.promise("F54")
@pytest.mark.parametrize("place", ["archive", "code folder"])
def test_a_slow_mount_is_named_and_waited_for(cluster: Make, place: str) -> None:
    """Longer than a silent host is waited for: heartbeats flow meanwhile."""
    job = cluster("")
    packed(job)
    archive = code_channel(job, "algo-2") / "sourcedir.tar.gz"
    slow = archive if place == "archive" else job.base("algo-2") / "code"
    with held(slow) as opening:
        job.start()
        wait_until(opening.waited.is_set, 20, "nobody came to open it")  # the fault
        job.wait_for("algo-2", "still reading", "err", limit_s=20)
        assert {p.poll() for p in job.processes.values()} == {None}
        opening.serve()
        results = job.wait(30)
    assert [(r.code, r.out) for r in results.values()] == [(0, "ran\n")] * 2
    told = lines(results["algo-2"].err, "still reading")[0]
    assert f"path={slow}" in told
    assert "waited_s=10" in told
    assert not lines(results["algo-1"].err, " lost ")


@pytest.mark.promise("F54")
def test_a_slow_mount_is_named_also_while_the_request_is_read(cluster: Make) -> None:
    job = cluster("")
    packed(job)
    slow = code_channel(job, "algo-2")
    with held(slow) as opening:
        job.start()
        wait_until(opening.waited.is_set, 20, "nobody came to open it")  # the fault
        job.wait_for("algo-2", "still reading", "err", limit_s=20)
        opening.serve()
        results = job.wait(30)
    assert [(r.code, r.out) for r in results.values()] == [(0, "ran\n")] * 2
    assert f"path={job.base('algo-2')}" in lines(results["algo-2"].err, "still reading")[0]


@pytest.mark.promise("F55")
def test_an_archive_that_is_cut_off_on_one_host_is_named_with_size_and_place_on_both(
    cluster: Make,
) -> None:
    job = cluster("")
    packed(job, Entry("data.bin", os.urandom(1 << 20)))
    archive = code_channel(job, "algo-2") / "sourcedir.tar.gz"
    size = archive.stat().st_size // 2
    os.truncate(archive, size)
    start_after_the_other(job)
    line = one_ending(job)
    told = re.fullmatch(
        r"SourceError: the code archive (\S+) is cut off or damaged near byte (\d+) of (\d+) \(.+\)"
        r".*",
        line,
    )
    assert told, line
    assert (told[1], int(told[3])) == (str(archive), size)
    assert 0 <= int(told[2]) <= size
    assert list((job.base("algo-2") / "code").iterdir()) == []
    assert [p.name for p in job.base("algo-2").glob(".muster-code-*")] == []


def no_thread_for_a_disk_that_hangs() -> None:
    """What tidies up gets no thread, and would wait for the disk for ever."""
    import threading

    from muster.stage.code import workspace

    start = threading.Thread.start

    def refused(self):  # type: ignore[no-untyped-def]
        if self.name == "tidy":
            raise RuntimeError("can't start new thread")
        start(self)

    threading.Thread.start = refused  # type: ignore[method-assign]
    workspace.discard = lambda code: threading.Event().wait()  # type: ignore[assignment]


@pytest.mark.promise("F52")
def test_a_host_without_a_thread_to_tidy_up_leaves_that_to_the_next_start(cluster: Make) -> None:
    job = cluster("", hosts=1)
    packed(job)
    os.truncate(code_channel(job, "algo-1") / "sourcedir.tar.gz", 40)
    job.start(command=train_after(no_thread_for_a_disk_that_hangs))
    result = job.wait(10)["algo-1"]
    assert result.code == 101, result.err
    assert result.first_line.startswith("SourceError: the code archive"), result.err
    told = lines(result.err, "code that was fetched in part is left")[0]
    assert "the limit of processes is reached" in told

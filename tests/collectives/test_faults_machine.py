"""Machines that lack something, hosts that are slow: the group works and says what it found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.collectives.jobs import CHECKOUT, SOURCES, clean, job

TINY = ("-o", "size=64k", "/dev/shm")
READ_ONLY = ("-o", "ro,size=4k", "/dev/shm")
NO_PROC = ("-o", "ro,size=4k", "/proc")
FIRST_USER = 64_000
_HOLDS = "import sys; print('here', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    "mount", [pytest.param(TINY, id="64 KiB"), pytest.param(READ_ONLY, id="not writable")]
)
def test_shared_memory_does_not_depend_on_dev_shm(mount: Sequence[str]) -> None:
    with machine(mount) as inside, job("fault_worker", 3, "works", "0", prefix=inside) as started:
        said = clean(started.ends())
    assert all(each["right"] for each in said)
    if said[0]["transport"] == "native":
        assert said[0]["nodes"] == [0, 0, 0], said[0]["why"]


def test_without_dev_shm_and_proc_ranks_talk_over_tcp() -> None:
    with machine(READ_ONLY, NO_PROC) as inside:  # noqa: SIM117  the machine outlives the job
        with job("fault_worker", 2, "works", "0", prefix=inside) as started:
            said = clean(started.ends())
    assert all(each["right"] for each in said)
    assert all(len(each["why"]) == 2 and all(each["why"]) for each in said)


def test_ranks_of_different_users_work_whatever_they_may_not_open() -> None:
    needs_root("setpriv")

    def user(rank: int) -> Sequence[str]:
        number = str(FIRST_USER + rank)
        return ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "--"]

    readable = subprocess.run(
        [*user(0), sys.executable, "-c", "import muster_collectives.core, numpy"],
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}:{SOURCES}"}, cwd="/", capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    if readable.returncode:
        pytest.skip("other users cannot read this checkout or its Python")
    with job("fault_worker", 3, "works", "0", prefix=user) as started:
        said = clean(started.ends())
    assert all(each["right"] for each in said)
    assert all(len(each["why"]) == 3 for each in said)


@pytest.mark.promise("F36")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_slow_rank_is_named_in_one_log_line(victim: int) -> None:
    given = {"COLLECTIVES_STRAGGLER_S": "1"}
    with job("fault_worker", 3, "straggles", str(victim), environ=given) as started:
        ends = started.ends()
        said = clean(ends)
    if not any(said[(victim + 1) % 3]["waits"]):
        pytest.skip("the pure core does not measure waits")
    lines = [line for end in ends for line in end.err.splitlines() if "straggler" in line]
    assert lines, "nobody named the slow rank"
    assert all(f"rank {victim}: steps take" in line for line in lines), lines
    speakers = [end.rank for end in ends if "straggler" in end.err]
    assert len(speakers) == 1, f"ranks {speakers} say the same"


@contextmanager
def machine(*mounts: Sequence[str]) -> Iterator[Callable[[int], Sequence[str]]]:
    """A mount namespace with these tmpfs; what a rank's command line begins with to be in it."""
    needs_root("unshare")
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", _HOLDS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != b"here\n":
                pytest.skip("this container may not make mount namespaces")
            # the namespace is held open: below an empty /proc nobody could enter it by its number
            handle = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY)
            try:
                enter = ["nsenter", f"--mount=/proc/{os.getpid()}/fd/{handle}"]
                for mount in mounts:
                    words = [*enter, "mount", "-t", "tmpfs", *mount[:-1], "tmpfs", mount[-1]]
                    if subprocess.run(words, check=False, timeout=30).returncode:
                        pytest.skip("this container may not mount")
                yield lambda rank: enter
            finally:
                os.close(handle)
        finally:
            holder.kill()


def needs_root(tool: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts and other users need root")
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}: apt-get install util-linux")

"""Which way two ranks of a machine take, and the reason that is said: memory of the other
process, else a file in /dev/shm, else TCP; in poor machines, as other users, as in containers."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.collectives.faults.test_faults import names
from tests.collectives.support.jobs import CHECKOUT, SOURCES, clean, job

DOCKER = ("-o", "size=64m", "/dev/shm")  # what its containers have unless asked for more
TINY = ("-o", "size=64k", "/dev/shm")
READ_ONLY = ("-o", "ro,size=4k", "/dev/shm")
NO_PROC = ("-o", "ro,size=4k", "/proc")
OWN_PROCESSES = ("unshare", "--pid", "--fork")
FIRST_USER = 64_000
MEMFD = "shared memory (memfd of rank 0, nonce found)"
FILE = "shared memory (file of rank 0, nonce found"
APART = "TCP, on one machine but nothing is shared"
STRANGERS = "or neither processes nor /dev/shm in common"
DENIED = "memfd of rank 0: Permission denied"
_HOLDS = "import sys; print('here', flush=True); sys.stdin.read()"
_NOTHING: Mapping[str, str] = {}


def run(
    prefix: Callable[[int], Sequence[str]] = lambda rank: (),
    nodes: str = "",
    environ: Mapping[str, str] = _NOTHING,
    ranks: int = 2,
) -> list[Any]:
    """What ranks say of each other, whose sums are right whatever the way."""
    with job(
        "core.locality_worker", ranks, prefix=prefix, nodes=names(nodes), environ=environ
    ) as started:
        said = clean(started.ends())
    assert all(each["right"] for each in said)
    return said


def require_memory(said: Sequence[Any], *reasons: str) -> None:
    for each in said:
        assert each["nodes"] == [0, 0], said
        assert (each["paths"], each["sent_bytes"]) == (["ONE_SHOT"], 0), said
        assert all(reason in each["why"][1 - each["rank"]] for reason in reasons), said


def require_tcp(said: Sequence[Any], *reasons: str) -> None:
    for each in said:
        assert each["nodes"] == [0, 1], said
        assert each["paths"] == ["LEADERS"] and each["sent_bytes"] > 0, said
        assert all(reason in each["why"][1 - each["rank"]] for reason in reasons), said


def test_memory_of_the_other_process_is_the_first_way() -> None:
    require_memory(run(), MEMFD)


@pytest.mark.parametrize(
    "mount", [pytest.param(TINY, id="64 KiB"), pytest.param(READ_ONLY, id="not writable")]
)
def test_shared_memory_does_not_depend_on_dev_shm(mount: Sequence[str]) -> None:
    with machine(mount) as inside:
        require_memory(run(inside), MEMFD)


def test_ranks_that_see_no_processes_of_each_other_share_a_file() -> None:
    """Containers of one pod: process namespaces of their own, /dev/shm in common."""
    needs_root("unshare")
    require_memory(run(lambda rank: OWN_PROCESSES), FILE)


def test_ten_groups_of_8_ranks_share_the_64_mib_of_a_container() -> None:
    with machine(DOCKER) as inside:
        said = run(lambda rank: [*inside(rank), *OWN_PROCESSES], environ={"GROUPS": "10"}, ranks=8)
    for each in said:
        assert (each["nodes"], each["sent_bytes"]) == ([0] * 8, 0), each
        assert all(FILE in why for other, why in enumerate(each["why"]) if other != each["rank"])


def test_ranks_that_may_not_look_into_each_other_share_a_file_and_say_why() -> None:
    """What a system that forbids ptrace does to /proc/PID/fd."""
    require_memory(run(same_user, environ={"HIDDEN": "0"}), FILE, DENIED)


def test_without_room_for_a_file_either_it_is_tcp_and_both_reasons_are_said() -> None:
    with machine(TINY) as inside:
        said = run(lambda rank: [*inside(rank), *same_user(rank)], environ={"HIDDEN": "0"})
    require_tcp(said, APART, DENIED, "file of rank 0: No space left on device")


def test_without_dev_shm_ranks_that_see_no_processes_of_each_other_talk_over_tcp() -> None:
    with machine(READ_ONLY) as inside:
        require_tcp(run(lambda rank: [*inside(rank), *OWN_PROCESSES]), "TCP to ", STRANGERS)


def test_without_dev_shm_and_proc_ranks_talk_over_tcp() -> None:
    with machine(READ_ONLY, NO_PROC) as inside:
        require_tcp(run(inside), "TCP to ", STRANGERS)


def test_ranks_of_different_users_talk_over_tcp() -> None:
    def user(rank: int) -> Sequence[str]:
        return as_user(FIRST_USER + rank)

    require_tcp(run(user), APART, DENIED, "file of rank 0: Permission denied")


def test_ranks_of_different_nodes_talk_over_tcp_though_they_could_share() -> None:
    require_tcp(run(nodes="ab"), "TCP to ", "COLLECTIVES_NODE")


def same_user(rank: int) -> Sequence[str]:
    return as_user(FIRST_USER) if os.geteuid() == 0 else ()


@functools.cache
def as_user(number: int) -> Sequence[str]:
    needs_root("setpriv")
    words = ["setpriv", "--reuid", str(number), "--regid", str(number), "--clear-groups", "--"]
    readable = subprocess.run(
        [*words, sys.executable, "-c", "import muster_collectives.core, numpy"],
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}:{SOURCES}"}, cwd="/", capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    if readable.returncode:
        pytest.skip("other users cannot read this checkout or its Python")
    return words


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

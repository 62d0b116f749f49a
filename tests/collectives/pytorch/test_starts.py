"""The backend "muster" always starts, ends without a trace, and can be made again."""

from __future__ import annotations

import gc
import json
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster_collectives.bootstrap.agreement import Agreement
from muster_collectives.runtime.errors import SettingsError
from tests.collectives.support import ranks
from tests.collectives.support.torch_ranks import TEST_S, Job, names_of, run_checks, run_script
from tests.support.ports import free_port
from tests.support.traces import left_in_shared_memory, shared_memory
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(TEST_S)]
AGAIN = Path(__file__).with_name("ranks_again.py")
LATER = Path(__file__).with_name("ranks_later.py")
STARTS = Path(__file__).with_name("ranks_starts.py")
STOCK = Path(__file__).with_name("ranks_stock.py")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    before = shared_memory()
    job = run_checks(STOCK, 3, tmp_path_factory.mktemp("starts"))
    # a file of another program that lives for a moment is no leftover of these ranks
    wait_until(
        lambda: not left_in_shared_memory(before), 20, lambda: str(left_in_shared_memory(before))
    )
    return job


@pytest.mark.parametrize("name", names_of(AGAIN))
def test_groups_end_and_are_made_again(job: Job, name: str) -> None:
    job.require(name)


@pytest.mark.parametrize("name", names_of(LATER))
def test_a_failure_of_a_later_call_and_those_in_an_earlier_one(job: Job, name: str) -> None:
    job.require(name)


@pytest.mark.parametrize("name", names_of(STARTS))
def test_groups_are_made_in_poor_places(job: Job, name: str) -> None:
    job.require(name)


@pytest.mark.parametrize("name", names_of(STOCK))
def test_other_devices_are_left_to_torch(job: Job, name: str) -> None:
    job.require(name)


ONE_SUM = """
import torch
import torch.distributed as dist
import muster_collectives.torch
dist.init_process_group("muster")
for group in (dist.group.WORLD, dist.new_group()):
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    assert one.item() == dist.get_world_size()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("core", ["missing", "no library"])
def test_without_a_core_on_one_rank_all_use_gloo_and_one_line_says_why_and_the_fix(
    core: str, tmp_path: Path
) -> None:
    path = tmp_path / "core.so"
    if core == "no library":
        path.write_text("text")
    script = tmp_path / "one_sum.py"
    script.write_text(ONE_SUM)
    given = ({}, {"COLLECTIVES_CORE": str(path)})
    ends = run_script([str(script)], 2, environ_of=given, limit_s=TEST_S / 2)
    assert [end.code for end in ends] == [0, 0], ends
    [line] = [line for end in ends for line in end.err.splitlines() if "core" in line]
    assert line.startswith("rank 1 cannot take part: "), line
    assert str(path) in line and line.endswith("; CPU tensors go to gloo"), line
    assert "(fix: install muster-parallel from its wheel" in line


LATE_S = 1.5


@pytest.mark.parametrize("late", [0, 1])
def test_who_waits_for_a_late_rank_says_nothing_of_it(late: int, tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    wait = "import os, time; time.sleep(float(os.environ['LATE_S']))\n"
    script.write_text(ONE_SUM.replace("for group", f"{wait}for group"))
    given = [{"LATE_S": str(LATE_S if rank == late else 0.0)} for rank in range(3)]
    ends = run_script([str(script)], 3, environ_of=given, limit_s=TEST_S / 2)
    assert [(end.code, end.err) for end in ends] == [(0, "")] * 3


def test_what_rank_0_says_at_the_last_moment_is_heard_by_the_ranks_that_wait_for_it() -> None:
    """How the making of a group ended: rank 0's answer comes when their own time is just over."""
    import torch.distributed as dist

    from muster_collectives.torch.store import TorchStore

    store, limit_s = TorchStore(dist.HashStore()), 0.3
    with ThreadPoolExecutor(1) as others:
        began = time.monotonic()
        heard = others.submit(Agreement(store, 1, 2, "late", limit_s).vote, "it failed")
        wait_until(lambda: time.monotonic() > began + 2 * limit_s, 5.0)
        assert Agreement(store, 0, 2, "late", limit_s).vote("") == {1: "it failed"}
        assert heard.result(10.0) == {1: "it failed"}


def test_a_store_in_a_file_waits_for_a_late_rank(tmp_path: Path) -> None:
    import torch.distributed as dist

    from muster_collectives.torch.creation import make_communicator

    def made(rank: int) -> int:
        store = dist.FileStore(str(tmp_path / "store"), 2)
        found = make_communicator(store, rank, 2, "in a file", TEST_S)
        assert found.communicator is not None
        with found.communicator as group:
            return group.size

    with ThreadPoolExecutor(2) as pool:
        first, began = pool.submit(made, 0), time.monotonic()
        wait_until(lambda: time.monotonic() > began + 2.5, 10.0)
        assert not first.done()
        assert [pool.submit(made, 1).result(TEST_S), first.result(TEST_S)] == [2, 2]


@pytest.mark.parametrize(
    "wrong",
    [{"COLLECTIVES_CORE": "/no/such/core.so"}, {"COLLECTIVES_CHUNK_BYTES": "many"}, {}],
    ids=["no core", "a setting", "nothing"],
)
def test_what_went_wrong_holds_no_store_that_is_to_end_before_torch(
    wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is left to the end of the interpreter ends the process with a signal."""
    import torch.distributed as dist

    from muster_collectives.torch.creation import make_communicator

    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    store = dist.HashStore()
    alive = weakref.ref(store)
    gc.collect()
    gc.disable()  # what is in a circle lives until somebody looks for circles
    try:
        try:
            made = make_communicator(store, 0, 1, "alone", 20.0)
            if made.communicator is not None:
                made.communicator.close()
        except SettingsError as error:
            del error
        del store
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("threads", [8, pytest.param(32, marks=pytest.mark.long)])
def test_many_ranks_make_a_group(threads: int) -> None:
    """8 processes of threads, each with a connection to torch's store and a listener."""
    argv = ["-m", "benchmarks.collectives.starts_rank", str(threads), str(free_port()), "1"]
    ended = ranks.run(8, argv, timeout_s=TEST_S)
    assert [each.code for each in ended] == [0] * 8, ranks.shown(ended)
    for each in ended:
        lines = [json.loads(line) for line in each.output.splitlines() if line.startswith("{")]
        assert len(lines) == 1 and lines[0]["had"] > lines[0]["came"], lines

"""What the agent says of collective calls: the one that waits, its number, who has not come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.run.observe.agent_link import Ask
from tests.launcher.support.agents import Ranks, call_of
from tests.support.ports import free_ports

CALLS = Ask(stacks=False, all_threads=False, calls=True)
CORE = """
import array, os, time
from muster_collectives.core import init, new_group
group = init()
data = array.array("f", [1.0] * 1024)
for _ in range(5):
    group.all_reduce(data)
print("ready", flush=True)
def hold():
    while not os.path.exists("go"):
        time.sleep(0.01)
"""
TORCH = """
import os, time, torch, torch.distributed as dist
dist.init_process_group(BACKEND)
for _ in range(5):
    dist.all_reduce(torch.ones(8))
pair = dist.new_group([2, 0])
def hold():
    while not os.path.exists("go"):
        time.sleep(0.01)
print("ready", flush=True)
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    made.end()


def start(ranks: Ranks, scripts: list[str]) -> None:
    (port,) = free_ports(1)
    world = {
        "WORLD_SIZE": str(len(scripts)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    for rank, script in enumerate(scripts):
        ranks.start(script, rank, environ=world)
    for rank in range(len(scripts)):
        ranks.until(lambda rank=rank: "ready" in ranks.output(rank), 60)


def test_of_musters_collectives_the_call_that_waits_and_who_has_not_come(
    ranks: Ranks, tmp_path: Path
) -> None:
    start(ranks, [f"{CORE}{wait}group.all_reduce(data)\ngroup.close()\n"
                  for wait in ("", "", "hold()\n")])  # fmt: skip
    for rank in (0, 1):
        answer = ranks.asked_until(
            lambda answer: answer.calls and answer.calls[0].absent == (2,), rank, CALLS
        )
        call = call_of(answer, "muster")
        assert (call.op, call.number, call.shape) == ("all_reduce", 6, "float32[1024]")
        assert (call.group, call.ranks, call.running) == ("world", (0, 1, 2), True)
    before = call_of(ranks.ask(0, CALLS), "muster").age_s
    ranks.until(lambda: call_of(ranks.ask(0, CALLS), "muster").age_s > before)
    last = call_of(ranks.ask(2, CALLS), "muster")
    assert (last.number, last.running, last.absent) == (5, False, ())
    (tmp_path / "go").touch()
    assert [ranks.ended(rank) for rank in range(3)] == [0, 0, 0]


def test_groups_of_musters_collectives_name_ranks_of_the_world(
    ranks: Ranks, tmp_path: Path
) -> None:
    part = "pair = new_group(group, [2, 0])\n"
    ends = "group.close()\n"
    start(ranks, [
        f"{CORE}{part}hold()\npair.barrier()\npair.close()\n{ends}",
        f"{CORE}{part}hold()\n{ends}",
        f"{CORE}{part}pair.barrier()\npair.close()\n{ends}",
    ])  # fmt: skip
    answer = ranks.asked_until(lambda answer: len(answer.calls) == 2, 2, CALLS)
    pair = answer.calls[0]  # the one that runs comes first
    assert (pair.op, pair.shape, pair.ranks, pair.absent) == ("barrier", "", (2, 0), (0,))
    assert (pair.number, pair.running) == (1, True)
    (tmp_path / "go").touch()
    assert [ranks.ended(rank) for rank in range(3)] == [0, 0, 0]


def test_of_musters_collectives_when_a_rank_came_to_the_last_calls(
    ranks: Ranks, tmp_path: Path
) -> None:
    """Of those alone, where very many are kept: reading all would take a second."""
    script = "import os, muster\nos.environ['COLLECTIVES_RECORDS'] = '4096'\n" + CORE + (
        "from muster_collectives.binding import live\n"
        "for step in range(1, 1001):\n"
        "    group.all_reduce(data)\n"
        "    muster.metrics(step=step)\n"
        "assert len(group.records()) > 1000 and len(live.arrivals()[0][2]) == 512\n"
        "print('through', flush=True)\nhold()\ngroup.close()\n"
    )  # fmt: skip
    start(ranks, [script] * 2)
    for rank in range(2):
        ranks.until(lambda rank=rank: "through" in ranks.output(rank), 60)
    came = ranks.ask(0, Ask(False, False, False, arrivals=True)).arrivals
    assert came is not None
    assert (came.library, came.group, came.ranks) == ("muster", "world", (0, 1))
    assert [number for number, _ in came.calls] == list(range(929, 993))  # whole blocks of 1005
    times = [at_s for _, at_s in came.calls]
    assert times == sorted(times)
    (tmp_path / "go").touch()
    assert [ranks.ended(rank) for rank in range(2)] == [0, 0]


@pytest.mark.torch
@pytest.mark.slow
def test_of_gloo_the_call_that_waits(ranks: Ranks, tmp_path: Path) -> None:
    script = TORCH.replace("BACKEND", "'gloo'")
    ends = "\ndist.destroy_process_group()\n"
    start(ranks, [
        f"{script}hold()\ndist.broadcast(torch.ones(3, 4), 0, group=pair){ends}",
        f"{script}hold(){ends}",
        f"{script}dist.broadcast(torch.ones(3, 4), 0, group=pair){ends}",
    ])  # fmt: skip
    answer = ranks.asked_until(lambda answer: len(answer.calls) == 2, 2, CALLS)
    waits, before = answer.calls
    assert (waits.library, waits.op, waits.shape) == ("torch", "broadcast", "float32[3,4]")
    assert (waits.ranks, waits.number, waits.running) == ((0, 2), 1, True)
    assert (before.op, before.ranks, before.running) == ("all_reduce", (0, 1, 2), False)
    assert before.number == 5
    mine = call_of(ranks.ask(0, CALLS), "torch")
    assert (mine.number, mine.running, mine.group) == (5, False, before.group)
    (tmp_path / "go").touch()
    assert [ranks.ended(rank) for rank in range(3)] == [0, 0, 0]


@pytest.mark.torch
@pytest.mark.slow
def test_of_gloo_a_call_that_waits_is_seen_without_reading_of_those_that_do_not(
    ranks: Ranks, tmp_path: Path
) -> None:
    idle = "idle = dist.new_group([0, 1])\n"
    script = f"{TORCH.replace('BACKEND', repr('gloo')).replace('[2, 0]', '[0, 1]')}{idle}"
    step = "dist.all_reduce(torch.ones(4))\n"
    ends = "dist.destroy_process_group()\n"
    start(ranks, [f"{script}{part}{step}{ends}" for part in ("", "hold()\n")])
    waits = Ask(False, False, False, waits=True)
    first = ranks.asked_until(lambda one: one.calls and one.calls[0].running, 0, waits)
    row = call_of(first, "torch")
    assert (row.op, row.running) == ("all_reduce", True)
    again = call_of(ranks.ask(0, waits), "torch")  # as long as it waits
    assert again.running and again.age_s > row.age_s
    assert not any(one.running for one in ranks.ask(1, waits).calls)
    assert ranks.ask(1, waits).calls == ()  # all have ended, and none began
    (tmp_path / "go").touch()
    assert [ranks.ended(rank) for rank in range(2)] == [0, 0]


@pytest.mark.torch
@pytest.mark.slow
def test_of_the_backend_muster_the_call_that_waits(ranks: Ranks, tmp_path: Path) -> None:
    script = "import muster_collectives.torch\n" + TORCH.replace("BACKEND", "'muster'")
    ends = "\ndist.destroy_process_group()\n"
    start(ranks, [
        f"{script}hold()\ndist.all_reduce(torch.ones(7)){ends}",
        f"{script}dist.all_reduce(torch.ones(7)){ends}",
        f"{script}hold()\ndist.all_reduce(torch.ones(7)){ends}",
    ])  # fmt: skip
    answer = ranks.asked_until(lambda answer: any(one.running for one in answer.calls), 1, CALLS)
    call = answer.calls[0]
    assert (call.library, call.op, call.shape) == ("muster", "all_reduce", "float32[7]")
    assert (call.ranks, set(call.absent) <= {0, 2}) == ((0, 1, 2), True)
    (tmp_path / "go").touch()
    assert [ranks.ended(rank) for rank in range(3)] == [0, 0, 0]


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["gloo", "muster"])
@pytest.mark.slow
def test_ranks_that_are_asked_all_the_time_train_on_and_end_well(
    ranks: Ranks, backend: str
) -> None:
    script = "import muster_collectives.torch\n" + TORCH.replace("BACKEND", repr(backend)) + (
        "for _ in range(300):\n    dist.all_reduce(torch.ones(64))\n"
    )  # fmt: skip
    for ends in ("dist.destroy_process_group()\n", ""):
        start(ranks, [f"{script}{ends}"] * 3)
        while not all((handle := ranks.handle(rank)) and handle.ended for rank in range(3)):
            for rank in range(3):
                ranks.ask(rank)
        assert [ranks.ended(rank) for rank in range(3)] == [0, 0, 0], ranks.output()

"""Objects between real ranks: what arrives, in which order, and what a wait that fails says."""

from __future__ import annotations

import json

import pytest

from tests.model_parallel.support.ranks import results, run_ranks, words_of
from tests.support.waiting import within

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

LIMIT_S = 120.0  # ranks that import torch beside other work take their time


def exchange():
    import fractions

    import torch

    import muster_modelparallel as smp
    from muster_modelparallel.run.session import shutdown

    smp.init()
    rank, other = smp.rank(), 1 - smp.rank()
    said = {"ranks": [smp.rank(), smp.dp_rank(), smp.mp_rank(), smp.size(), smp.dp_size()]}
    many = [None, 7, "é", b"", {"a": [torch.arange(3)]}, fractions.Fraction(1, 3), {1, 2}]
    if rank == 0:
        for each in many:
            smp.send(each, 1, smp.RankType.WORLD_RANK)
        smp.broadcast({"big": torch.ones(1 << 20)}, smp.WORLD)
        smp.send("last", 1, smp.RankType.DP_RANK)
        smp.broadcast("nobody else is there", smp.MP_GROUP)
        said["answer"] = smp.recv_from(1, smp.RankType.DP_RANK)
    else:
        got = [smp.recv_from(0, smp.RankType.DP_RANK) for _ in many]
        said["same"] = [a == b for a, b in zip(got, many, strict=True) if not isinstance(b, dict)]
        said["tensor"] = got[4]["a"][0].tolist()
        big = smp.recv_from(0, smp.RankType.WORLD_RANK)["big"]
        said["big"] = float(big.sum())
        said["last"] = smp.recv_from(0, smp.RankType.WORLD_RANK)
        smp.send("answer", 0, smp.RankType.WORLD_RANK)
    said["all"] = smp.allgather("x" * (1 + 1000 * rank), smp.DP_GROUP)
    said["own"] = smp.allgather(rank, smp.CommGroup.PP_GROUP)
    smp.barrier()
    smp.dp_barrier()
    smp.mp_barrier()
    wrong = (
        lambda: smp.send(1, rank, smp.RankType.WORLD_RANK),
        lambda: smp.recv_from(2, smp.RankType.WORLD_RANK),
        lambda: smp.recv_from(other, smp.RankType.MP_RANK),
        lambda: smp.allgather(1, "WORLD"),
        lambda: smp.broadcast(1, smp.RankType.WORLD_RANK),
    )
    errors = []
    for call in wrong:
        try:
            call()
        except smp.SettingsError as error:
            errors.append(str(error))
    said["errors"] = errors
    smp.init()  # once more, with the same parameters
    try:
        smp.init({"microbatches": 2})
    except smp.SettingsError as error:
        said["again"] = str(error)
    shutdown()
    smp.init({"microbatches": 2})
    said["anew"] = [smp.state.cfg.microbatches, *smp.allgather(rank, smp.WORLD)]
    return said


@pytest.mark.parametrize("backend", ["auto", "gloo"])
def test_objects_arrive_in_order_whatever_they_are(backend):
    parameters = {"ddp": True, "ddp_dist_backend": backend}
    first, second = results(run_ranks(exchange, 2, parameters=parameters, limit_s=LIMIT_S))
    assert first["ranks"] == [0, 0, 0, 2, 2]
    assert second["ranks"] == [1, 1, 0, 2, 2]
    assert second["same"] == [True] * 6
    assert second["tensor"] == [0, 1, 2]
    assert second["big"] == 1 << 20
    assert second["last"] == "last"
    assert first["answer"] == "answer"
    for rank, said in enumerate((first, second)):
        assert [len(each) for each in said["all"]] == [1, 1001]
        assert said["own"] == [rank]
        assert len(said["errors"]) == 5
        assert "this is the rank itself" in said["errors"][0]
        assert "WORLD_RANK goes from 0 to 1" in said["errors"][1]
        assert "'WORLD' is no CommGroup" in said["errors"][3]
        assert "microbatches=1, and now with microbatches=2" in said["again"]
        assert said["anew"] == [2, 0, 1]


def placed(degrees, placement):
    import torch
    import torch.distributed as dist

    import muster_modelparallel as smp
    from muster_modelparallel.run import session

    session.refuse_unbuilt = lambda config: None  # stages are of a later phase, their groups not
    pipeline, tensor = degrees
    asked = {"partitions": pipeline, "tensor_parallel_degree": tensor, "ddp": True}
    smp.init({**asked, "placement_strategy": placement})
    groups, said = {"world": smp.WORLD}, {"world": [smp.rank(), smp.size(), list(range(4))]}
    ranks = {"world": smp.RankType.WORLD_RANK}
    for kind in ("mp", "pp", "tp", "dp", "rdp"):
        groups[kind] = getattr(smp, f"{kind.upper()}_GROUP")
        ranks[kind] = getattr(smp.RankType, f"{kind.upper()}_RANK")
        numbers = [getattr(smp, f"{kind}_{what}")() for what in ("rank", "size")]
        said[kind] = [*numbers, getattr(smp, f"get_{kind}_group")()]
    for kind, group in groups.items():
        number, size, _ = said[kind]
        # torch's group: the ranks in it, as a sum of powers of two
        mine = torch.tensor([2.0 ** smp.rank()])
        dist.all_reduce(mine, group=getattr(smp, f"get_{kind}_process_group")())
        said[kind] += [mine.item(), smp.allgather(smp.rank(), group)]
        # an object from the first to the last, by the rank within the group; one to all
        if number == 0 and size > 1:
            smp.send([kind, smp.rank()], size - 1, ranks[kind])
        if number == size - 1 and size > 1:
            said[kind].append(smp.recv_from(0, ranks[kind]))
        if number == 0:
            smp.broadcast(smp.rank(), smp.CommGroup(group.value))
        else:
            said[kind].append(smp.recv_from(0, ranks[kind]))
    return said


# by hand from the documentation: the right-most letter is the axis of neighbouring ranks
APART, ALL = [[0], [1], [2], [3]], [[0, 1, 2, 3]]
NEXT, ACROSS = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
PLACED = [
    ([2, 1], "spread", {"pp": ACROSS, "mp": ACROSS, "tp": APART, "dp": NEXT, "rdp": NEXT}),
    ([2, 2], "DTP", {"pp": NEXT, "mp": ALL, "tp": ACROSS, "dp": ACROSS, "rdp": APART}),
]


@pytest.mark.parametrize(("degrees", "placement", "sets"), PLACED)
def test_groups_follow_the_placement(degrees, placement, sets):
    found = results(run_ranks(placed, 4, arguments=[degrees, placement], limit_s=LIMIT_S))
    for rank, said in enumerate(found):
        for kind, groups in {"world": ALL, **sets}.items():
            group = next(each for each in groups if rank in each)
            number, size, first = group.index(rank), len(group), group[0]
            expected = [number, size, group, sum(2.0**each for each in group), group]
            if size > 1 and number == size - 1:
                expected.append([kind, first])
            if number:
                expected.append(first)
            assert said[kind] == expected, (rank, kind)


def met(folder):
    """In each group that meets, its last rank comes late and says so before it does."""
    import time
    from pathlib import Path

    import muster_modelparallel as smp
    from muster_modelparallel.run import session

    session.refuse_unbuilt = lambda config: None
    smp.init({"partitions": 2, "ddp": True})  # pairs: 0 1, 2 3 of a replica, 0 2, 1 3 across
    calls = {
        "mp": smp.mp_barrier,
        "dp": smp.dp_barrier,
        "rdp": lambda: smp.barrier(smp.RDP_GROUP),
        "world": smp.barrier,
    }
    early = []
    for name, call in calls.items():
        ranks = list(range(4)) if name == "world" else getattr(smp, f"get_{name}_group")()
        here, done = Path(folder, f"{name} {ranks}"), Path(folder, name)
        if 0 not in ranks:  # nobody may be waiting for us
            end = time.monotonic() + 20
            while not done.exists() and time.monotonic() < end:
                time.sleep(0.01)
            if not done.exists():
                early.append(f"{name} has waited for rank {smp.rank()}")
        if smp.rank() == ranks[-1]:
            time.sleep(0.3)  # as long as a rank would take that does not wait
            here.touch()
        call()
        if not here.exists():
            early.append(f"rank {smp.rank()} has not waited in {name}")
        if smp.rank() == 0:
            done.touch()
    return early


def test_a_barrier_waits_for_its_group_and_for_no_other_rank(tmp_path):
    ends = run_ranks(met, 4, arguments=[str(tmp_path)], limit_s=LIMIT_S)
    assert results(ends) == [[]] * 4


def start_and_say():
    import muster_modelparallel as smp

    try:
        smp.init()
    except smp.ModelParallelError as error:
        return [type(error).__name__, str(error), smp.is_initialized()]
    return ["", smp.get_dp_group(), smp.is_initialized()]


def _sent(**parameters):
    return {"SM_HP_MP_PARAMETERS": json.dumps(parameters)}


def test_ranks_of_a_host_are_numbered_by_the_launcher():
    """Two hosts, of one rank and of two."""

    def locals_of():
        import muster_modelparallel as smp

        smp.init({"ddp": True})
        return [smp.rank(), smp.size(), smp.local_rank(), smp.local_size()]

    env_of = [
        {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": size}
        for local, size in (("0", "1"), ("0", "2"), ("1", "2"))
    ]
    found = results(run_ranks(locals_of, 3, env_of=env_of, limit_s=LIMIT_S))
    assert found == [[0, 3, 0, 1], [1, 3, 0, 2], [2, 3, 1, 2]]


@pytest.mark.promise("B51")
def test_ranks_that_disagree_all_say_both_values():
    env_of = [_sent(ddp=True, microbatches=4), _sent(ddp=True, microbatches=8)]
    for kind, text, started in results(run_ranks(start_and_say, 2, env_of=env_of, limit_s=LIMIT_S)):
        assert kind == "SettingsError"
        assert "microbatches is 4 on rank 0 and 8 on rank 1" in text
        assert not started


def test_a_rank_that_cannot_read_its_parameters_ends_the_others():
    env_of = [_sent(ddp=True), _sent(ddp=True, microbatches="many")]
    first, second = results(run_ranks(start_and_say, 2, env_of=env_of, limit_s=LIMIT_S))
    assert second[0] == "SettingsError" and "many" in second[1]
    assert first[0] == "SettingsError"
    assert first[1].startswith("rank 1 cannot use its parameters") and "many" in first[1]


@pytest.mark.promise("B52")
def test_what_is_not_built_is_refused_on_every_rank():
    parameters = {"tensor_parallel_degree": 2, "ddp": True}
    for kind, text, _ in results(
        run_ranks(start_and_say, 2, parameters=parameters, limit_s=LIMIT_S)
    ):
        assert kind == "NotBuiltError"
        assert "tensor_parallel_degree is 2" in text and "later release of muster" in text


def test_mpirun_alone_starts_the_ranks_of_one_host():
    gone = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                          "MASTER_PORT"), "")  # fmt: skip
    mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    env_of = [
        {**gone, **mpi, "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
         "PMIX_NAMESPACE": "a job of this test"} for rank in ("0", "1")
    ]  # fmt: skip
    ends = run_ranks(start_and_say, 2, parameters={"ddp": True}, env_of=env_of, limit_s=LIMIT_S)
    assert [each[1] for each in results(ends)] == [[0, 1], [0, 1]]


def adopt():
    import torch.distributed as dist

    import muster_modelparallel as smp
    from muster_modelparallel.run.session import shutdown

    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.new_group([0], use_local_synchronization=True)  # the script's own, on one rank only
    smp.init({"ddp": True})
    said = [smp.allgather(smp.rank(), smp.DP_GROUP), smp.get_world_process_group() is not None]
    shutdown()
    return [*said, smp.is_initialized(), dist.is_initialized()]


def test_a_process_group_that_is_there_is_used_and_left():
    for said in results(run_ranks(adopt, 2, limit_s=LIMIT_S)):
        assert said == [[0, 1], True, False, True]


ENDS = """
    import atexit
    import muster_modelparallel as smp
    from muster_modelparallel.run import session
    atexit.register(lambda: print(len(session.current().mesh.object_groups)))
    smp.init()
    smp.barrier()
"""


def test_no_thread_of_a_group_for_objects_outlives_the_script():
    """One that is late to let go of a collective's tensors would abort the process."""
    (end,) = run_ranks(ENDS, 1, limit_s=LIMIT_S)
    assert (end.code, end.out) == (0, "0\n"), words_of([end])


def waiting(case):
    import os
    import signal
    import time

    import muster_modelparallel as smp
    from muster_modelparallel.run.pipeline import waits

    waits.LONG_S = 0.4
    smp.init({"ddp": True})
    rank = smp.rank()
    smp.barrier()
    if rank == 0:
        if case == "killed":
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if case == "late":
            time.sleep(6)
        return None
    began = time.monotonic()
    try:
        if case == "gather":
            smp.allgather(rank, smp.WORLD)
        else:
            smp.recv_from(0, smp.RankType.WORLD_RANK)
    except smp.ExchangeError as error:
        return [str(error), time.monotonic() - began]


@pytest.mark.promise("F69")
def test_a_receive_that_is_late_says_who_waited_for_whom():
    env = {"MODELPARALLEL_OBJECTS_TIMEOUT_S": "2"}
    ends = run_ranks(waiting, 2, arguments=["late"], env=env, limit_s=LIMIT_S)
    text, took_s = results(ends)[1]
    assert "rank 1 waits for rank 0 in recv_from(src_rank=0, rank_type=" in ends[1].err
    assert "rank 1 waited 2.0 s for rank 0 in recv_from(src_rank=0, rank_type=" in text
    assert "rank 0 was last in barrier(group=CommGroup.WORLD)" in text
    assert "MODELPARALLEL_OBJECTS_TIMEOUT_S" in text
    assert 1.9 < took_s < within(5)


@pytest.mark.promise("F69")
def test_a_killed_rank_ends_the_wait_for_it():
    ends = run_ranks(waiting, 3, arguments=["killed"], limit_s=LIMIT_S)
    assert ends[0].code == -9, words_of(ends)
    for end in ends[1:]:
        text, took_s = end.result
        assert f"rank {end.rank} lost rank 0 after" in text
        assert "the output of rank 0 says why it ended" in text
        assert took_s < within(5)


@pytest.mark.promise("F69")
def test_a_collective_names_the_rank_that_has_not_come():
    ends = run_ranks(waiting, 3, arguments=["gather"], limit_s=LIMIT_S)
    for text, took_s in results(ends)[1:]:
        assert "lost rank 0 after" in text and "allgather(group=CommGroup.WORLD)" in text
        assert took_s < within(5)

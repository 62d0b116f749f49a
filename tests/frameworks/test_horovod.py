"""Horovod for real, and all that its MPI controller asks of the launcher.

Horovod takes every number from MPI itself: rank and size of the world, the local ones from a split
by shared memory, the cross ones from a split by local rank. It asks for MPI_THREAD_MULTIPLE and
reads its settings from HOROVOD_*. Source: horovod 0.28.1, common/mpi/mpi_context.cc and
mpi_controller.cc.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.effort import effort
from tests.support.frameworks import SHARED, Start, ended_well, finals
from tests.support.mpi import chosen

# the first test may build Horovod
pytestmark = [pytest.mark.dev, pytest.mark.timeout(900)]
RANKS = 2  # on each host
SETTINGS = {"HOROVOD_FUSION_THRESHOLD": "1048576", "HOROVOD_CYCLE_TIME": "0.5"}
CONTROLLER = """\
import json, os
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
MPI.Init_thread(MPI.THREAD_MULTIPLE)
world = MPI.COMM_WORLD
local = world.Split_type(MPI.COMM_TYPE_SHARED)
cross = world.Split(local.rank, world.rank)
again = world.Dup()
print("controller " + json.dumps({
    "threads": MPI.Query_thread() == MPI.THREAD_MULTIPLE,
    "world": [world.rank, world.size],
    "local": [local.rank, local.size],
    "cross": [cross.rank, cross.size],
    "names": local.allgather(MPI.Get_processor_name()),
    "sizes": again.allgather(local.size),
    "sum": again.allreduce(world.rank),
    "env": {k: v for k, v in os.environ.items()
            if k.startswith(("HOROVOD_", "OMPI_COMM_WORLD_")) or "RANK" in k or "SIZE" in k},
}), flush=True)
MPI.Finalize()
"""


@pytest.mark.effort
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_job_that_calls_horovod_trains(start: Start, horovod: Path, hosts: int) -> None:
    run = start(horovod, "horovod", "horovod", hosts, "--processes-per-host", str(RANKS), *given())
    said = finals(ended_well(run).out)
    assert sorted(said) == list(range(hosts * RANKS))
    assert len({one["accuracy"] for one in said.values()}) == 1
    for rank, one in said.items():
        assert int(one["rank"]) == rank and int(one["size"]) == hosts * RANKS
        assert (int(one["local_rank"]), int(one["local_size"])) == (rank % RANKS, RANKS)
        assert (int(one["cross_rank"]), int(one["cross_size"])) == (rank // RANKS, hosts)
        assert float(one["accuracy"]) > 0.9


@pytest.mark.parametrize(
    ("hosts", "open_mpi"),
    [
        (1, "4.1.4"),
        (2, "5.0.11"),
        # what is left of the matrix is test-long's
        *(
            pytest.param(*pair, marks=pytest.mark.effort)
            for pair in ((1, "5.0.11"), (2, "4.1.4"))
            if effort() > 1
        ),
    ],
)
def test_mpi_tells_horovods_controller_what_was_planned(
    start: Start, tmp_path: Path, hosts: int, open_mpi: str
) -> None:
    script = tmp_path / "src" / "controller.py"
    script.parent.mkdir()
    script.write_text(CONTROLLER)
    environ = chosen(open_mpi).environ
    library = {k: v for k, v in environ.items() if k == "MPI4PY_LIBMPI"}
    run = start(
        Path(sys.executable), script, "mpi", hosts, "--processes-per-host", str(RANKS),
        *given({**SETTINGS, **library}), environ=environ,
    )  # fmt: skip
    found = re.findall(r"^\[(algo-\d):(\d+)\] controller (.*)$", ended_well(run).out, re.MULTILINE)
    size = hosts * RANKS
    assert sorted(int(rank) for _, rank, _ in found) == list(range(size))
    for host, number, line in found:
        rank, seen = int(number), json.loads(line)
        local = rank % RANKS
        assert seen["threads"]  # MPI_THREAD_MULTIPLE was granted
        assert seen["world"] == [rank, size]
        assert seen["local"] == [local, RANKS]
        assert seen["cross"] == [rank // RANKS, hosts]
        assert seen["names"] == [host] * RANKS  # hosts tell themselves apart by their names
        assert seen["sizes"] == [RANKS] * size  # what Horovod calls homogeneous
        assert seen["sum"] == size * (size - 1) // 2
        env = seen["env"]
        assert {name: env.get(name) for name in SETTINGS} == SETTINGS
        for name, value in (
            ("RANK", rank), ("SIZE", size), ("LOCAL_RANK", local), ("LOCAL_SIZE", RANKS),
        ):  # fmt: skip
            assert env[f"OMPI_COMM_WORLD_{name}"] == str(value), name
        assert (env["RANK"], env["LOCAL_RANK"]) == (str(rank), str(local))
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == (str(size), str(RANKS))


def given(environ: dict[str, str] | None = None) -> list[str]:
    """`--env` options."""
    pairs = {**SHARED, **(environ or {})}
    return [word for name, value in pairs.items() for word in ("--env", f"{name}={value}")]

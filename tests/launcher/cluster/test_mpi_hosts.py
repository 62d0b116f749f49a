"""mpirun over several hosts that have networks of their own, in both versions of Open MPI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.local.hosts import why_not_isolated
from tests.launcher.support.cluster import Result
from tests.launcher.support.local.local_runs import runs
from tests.launcher.support.local.unprivileged import (
    as_nobody,
    home_of_nobody,
    readable_python,
    skip_where_hidden,
)
from tests.support.mpi import MakeMpi, OpenMpi

HOSTS = ["algo-1", "algo-2", "algo-3"]
# what each rank writes goes out in one piece
TELLS = """\
import os
from mpi4py import MPI
comm = MPI.COMM_WORLD
place = (comm.rank, comm.size, comm.allreduce(comm.rank), os.environ["RANK"],
         os.environ["LOCAL_RANK"], os.environ["SM_CURRENT_HOST"], os.environ["MASTER_ADDR"])
os.write(1, (" ".join(map(str, place)) + "\\n").encode())
"""


def told(results: dict[str, Result]) -> list[str]:
    lines = [line for result in results.values() for line in result.out.splitlines()]
    return sorted(lines, key=lambda line: int(line.split()[0]))


@pytest.mark.parametrize(("hosts", "processes"), [(2, 2), (3, 1), (3, 4)])
def test_ranks_of_all_hosts_meet(mpi: MakeMpi, hosts: int, processes: int) -> None:
    job = mpi(TELLS, hosts=hosts, processes_per_host=processes)
    results = job.run(60)
    assert {result.code for result in results.values()} == {0}, results["algo-1"].err
    size = hosts * processes
    assert told(results) == [
        f"{rank} {size} {sum(range(size))} {rank} {rank % processes} "
        f"algo-{rank // processes + 1} 10.78.0.1"
        for rank in range(size)
    ]


@pytest.mark.parametrize("names", [("eth0", "ens5"), ("ens5", "eth0")])
def test_hosts_may_call_their_interfaces_differently(mpi: MakeMpi, names: tuple[str, str]) -> None:
    """An include list with a name that one host lacks would end mpirun with 255."""
    job = mpi(TELLS, interfaces=names, resources={"network_interface_name": "eth0"})
    results = job.run(60)
    assert {result.code for result in results.values()} == {0}, results["algo-1"].err
    assert len(told(results)) == 4
    assert f"oob_tcp_if_include {names[0]}" in results["algo-1"].err
    assert f"OMPI_MCA_btl_tcp_if_include={names[0]}: hosts call" in results["algo-1"].err
    assert "btl_tcp_if_include 10" not in results["algo-1"].err
    assert "tcp_if_" not in results["algo-2"].err  # Open MPI does not complain


def test_a_host_outside_the_distribution_runs_the_script_once_beside_mpi(mpi: MakeMpi) -> None:
    groups = [
        {"instance_group_name": "gpu", "instance_type": "ml.c5.xlarge", "hosts": HOSTS[:2]},
        {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": HOSTS[2:]},
    ]
    alone = "import os\nif os.environ['SM_CURRENT_HOST'] == 'algo-3':\n    print('beside')\nelse:\n"
    script = alone + "".join(f"    {line}\n" for line in TELLS.splitlines())
    job = mpi(
        script,
        hosts=3,
        resources={"instance_groups": groups, "current_group_name": "gpu"},
        hyperparameters={"sagemaker_distribution_instance_groups": '["gpu"]'},
    )
    results = job.run(60)
    assert {result.code for result in results.values()} == {0}, results["algo-1"].err
    assert results["algo-3"].out == "beside\n"
    assert [line.split()[1] for line in told({n: results[n] for n in HOSTS[:2]})] == ["4"] * 4


@pytest.mark.promise("F63")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_hosts_of_an_unprivileged_user_need_nothing_more(open_mpi: OpenMpi, tmp_path: Path) -> None:
    """No root, no ssh, no key: rootless namespaces."""
    reason = why_not_isolated(str(tmp_path))
    if reason:
        pytest.skip(f"this machine allows no namespaces: {reason}")
    if open_mpi.mpirun.startswith(("/tmp/", "/var/tmp/")):
        pytest.skip("hosts have folders of their own there: they do not see an mpirun in them")
    skip_where_hidden(open_mpi.mpirun)
    script = "import os\nprint('rank', os.environ['OMPI_COMM_WORLD_RANK'], flush=True)\n"
    argv = ("train.py", "--hosts", "2", "--distribution", "mpi", "--processes-per-host", "2")
    with (
        home_of_nobody(lambda home: (home / "train.py").write_text(script)) as home,
        runs() as start,
    ):
        result = start(
            home,
            (*argv, "--isolation", "netns"),
            environ={"MUSTER_MPIRUN": open_mpi.mpirun},
            wrapper=as_nobody(),
            python=readable_python(),
        ).wait()
        assert result.code == 0, result.err
        assert sorted(line.split()[-1] for line in result.out.splitlines()) == list("0123")

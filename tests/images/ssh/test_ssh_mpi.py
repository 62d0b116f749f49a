"""mpirun in the image with the very words of SDK v3's MPI driver, which are those of Open MPI 4."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.images.support.ssh_hosts import SshHosts, ssh_hosts

pytestmark = pytest.mark.timeout(600)
RANK = """
from mpi4py import MPI
import os
world = MPI.COMM_WORLD
cores = len(os.sched_getaffinity(0)) == os.cpu_count()
total = world.allreduce(world.rank + 1)
host = os.environ.get("SM_CURRENT_HOST")
print(f"rank {world.rank} of {world.size} sum {total} on {host} all cores {cores}", flush=True)
"""


@pytest.fixture
def hosts() -> Iterator[SshHosts]:
    with ssh_hosts() as made:
        yield made


def driver(names: str, ranks: int, interface: str, hosts: int, *script: str) -> list[str]:
    """Words of sagemaker-train 1.27.0 (mpi_utils.get_mpirun_command); `names`: --host."""
    mca = {
        "btl_tcp_if_include": interface,
        "oob_tcp_if_include": interface,
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "^openib",
        "orte_abort_on_non_zero_status": "1",
        "btl_vader_single_copy_mechanism": "none",
        "plm_rsh_num_concurrent": str(hosts),
    }
    return [
        *("mpirun", "--host", names, "-np", str(ranks), "--allow-run-as-root", "--tag-output"),
        *(word for name, value in mca.items() for word in ("-mca", name, value)),
        *("-x", f"NCCL_SOCKET_IFNAME={interface}", "-x", "LD_LIBRARY_PATH", "-x", "PATH"),
        *("/opt/venv/bin/python3", "-m", "mpi4py", *script),
    ]


def said(ranks: int, *names: str) -> set[str]:
    total = ranks * (ranks + 1) // 2
    shares = [names[rank * len(names) // ranks] for rank in range(ranks)]
    return {
        f"rank {rank} of {ranks} sum {total} on {shares[rank]} all cores True"
        for rank in range(ranks)
    }


def heard(text: str) -> set[str]:
    return {row[row.index("rank ") :].strip() for row in text.splitlines() if "rank " in row}


@pytest.mark.parametrize("ranks", [1, 4])
def test_one_host_works_out_of_the_box(hosts: SshHosts, ranks: int) -> None:
    """Without ssh, with an interface that does not exist, as local mode names it, with a host name
    that is not the container's own, and with more ranks than cores."""
    environ = {"SM_CURRENT_HOST": "algo-1"}
    one = hosts.start("algo-1", environ=environ, hosts=["algo-1"], command=["sleep", "600"])
    where = "algo-1" if ranks == 1 else f"algo-1:{ranks}"

    done = hosts.run_in(one, *driver(where, ranks, "ethwe", 1, "-c", RANK))

    assert done.returncode == 0, done.stdout + done.stderr
    assert heard(done.stdout) == said(ranks, "algo-1")


def test_the_status_of_a_script_is_that_of_mpirun(hosts: SshHosts) -> None:
    one = hosts.start("algo-1", hosts=["algo-1"], command=["sleep", "600"])

    done = hosts.run_in(one, *driver("algo-1:2", 2, "eth0", 1, "-c", "raise SystemExit(41)"))

    assert done.returncode == 41


def test_two_hosts_meet_through_our_sshd_where_the_driver_would_ask_for_all_ranks(
    hosts: SshHosts,
) -> None:
    """The driver itself asks for the ranks of one host only (`-np`); ssh is no obstacle."""
    one, _ = (hosts.start(name, environ={"SM_CURRENT_HOST": name}) for name in ("algo-1", "algo-2"))

    done = hosts.run_in(one, *driver("algo-1:2,algo-2:2", 4, "eth0", 2, "-c", RANK))

    assert done.returncode == 0, done.stdout + done.stderr
    assert heard(done.stdout) == said(4, "algo-1", "algo-2")

"""Two jobs on one machine stay apart, and what listens where (protocol.md, Join)."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from muster.local.hosts import why_not_isolated
from tests.launcher.support.cluster import Cluster
from tests.launcher.support.local.local_runs import Start, start
from tests.support.traces import listening

__all__ = ["start"]
Make = Callable[..., Cluster]
TORCHRUN = {"sagemaker_torch_distributed_enabled": "true"}
WAITS = (
    "import os, time\n"
    "print('ready', flush=True)\n"
    "while not os.path.exists('go'):\n    time.sleep(0.01)\n"
)


def let_go(job: Cluster) -> None:
    for name in job.names:
        (job.base(name) / "code" / "go").touch()


@pytest.mark.promise("F26", "F35")
def test_a_second_job_with_the_same_addresses_and_ports_neither_runs_nor_harms(
    cluster: Make,
) -> None:
    """Of the same name too: with fixed ports two such jobs once merged into one."""
    first = cluster(WAITS)
    first.expect(code_writes=("go",))
    first.start_until("ready")
    second = cluster(WAITS, environ={"MUSTER_JOIN_S": "2"})
    # each of its hosts is alone: one has no port, the other finds only a stranger
    second.expect(apart=frozenset(second.names))
    second.addresses = first.addresses
    same = ("MUSTER_HOST_ADDRESSES", "MUSTER_CONTROL_PORT", "MUSTER_STORE_PORT")
    second.environ |= {name: first.environ[name] for name in same}
    second.ports = []  # they are open, and the first job's
    second.start()
    results = second.wait(20)
    assert {(r.code, r.out) for r in results.values()} == {(102, "")}
    holder = f"in use by PID {first.processes['algo-1'].pid} ("
    assert holder in results["algo-1"].first_line
    assert "the leader algo-1 could not be joined" in results["algo-2"].first_line
    assert "the connection ended" in results["algo-2"].first_line  # refused by the first job's
    let_go(first)
    assert {(r.code, r.out) for r in first.wait(20).values()} == {(0, "ready\n")}
    joined = [line for line in first.text("algo-1", "err").splitlines() if " joined " in line]
    assert len(joined) == 1


REDUCES_AND_WAITS = (
    "import os, time, torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "t = torch.ones(1)\n"
    "dist.all_reduce(t)\n"
    "print('sum', int(t), os.environ['GLOO_SOCKET_IFNAME'], flush=True)\n"
)
LEAVES = "\nos._exit(0)\n"  # gloo's threads sometimes abort a Python that ends by itself


@pytest.mark.torch
def test_the_control_port_is_the_interface_s_and_only_torch_s_store_is_everybody_s(
    cluster: Make,
) -> None:
    """torch cannot be told where its store listens; that it is closed at the end is checked
    after every job."""
    script = REDUCES_AND_WAITS + WAITS.partition("\n")[2] + LEAVES
    job = cluster(script, hyperparameters=TORCHRUN, environ={"MUSTER_START_S": "60"})
    job.expect(code_writes=("go",))
    job.start_until("ready", limit_s=60)
    control, store = job.ports
    assert listeners(control) == {job.addresses["algo-1"]}
    assert listeners(store) == {"everywhere"}
    let_go(job)
    results = job.wait(30)
    assert {(r.code, r.out) for r in results.values()} == {(0, "sum 2 lo\nready\n")}


@pytest.mark.torch
def test_ranks_in_namespaces_reduce_over_the_interface_of_the_job(
    start: Start, tmp_path: Path
) -> None:
    """gloo would take the address of the host's name without GLOO_SOCKET_IFNAME."""
    reason = why_not_isolated(str(tmp_path))
    if reason:
        pytest.skip(f"this machine allows no namespaces: {reason}")
    (tmp_path / "train.py").write_text(REDUCES_AND_WAITS + LEAVES)
    option = json.dumps({"torch_distributed": {"enabled": True}})
    argv = ("train.py", "--hosts", "2", "--distribution", option, "--isolation", "netns")
    result = start(tmp_path, argv, environ={"MUSTER_START_S": "60"}).wait(90)
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == ["[algo-1:0] sum 2 eth0", "[algo-2:1] sum 2 eth0"]


def listeners(port: int) -> set[str]:
    """The addresses on which something of this machine listens at the port."""
    found = (where.partition(":") for where in listening().values())
    here = {address for address, _, number in found if int(number, 16) == port}
    return {
        "everywhere" if set(one) == {"0"} else str(IPv4Address(bytes.fromhex(one[-8:])[::-1]))
        for one in here
    }

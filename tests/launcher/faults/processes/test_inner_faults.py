"""F12: whatever is raised inside the launcher, the job never ends with 0 and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.launcher.support.cluster import Cluster, Result
from tests.launcher.support.sabotage import SAID, train_with_broken

Make = Callable[..., Cluster]

WORK = "muster.train.work:JobWork"
PLACES = [
    f"{WORK}.__init__",
    "muster.train.context:part_of",
    f"{WORK}.stage",
    f"{WORK}.plan",
    f"{WORK}.write",
    "muster.run.child.shims:open_private_folder",
    "muster.run.child.ranks:HostRanks.start",
    "muster.run.child.ranks:HostRanks.registered",
    "muster.run.child.child:Child.changed",
    "muster.run.job.hostlife:HostLife.tick",
    "muster.run.job.hostlife:HostLife.on",
]
ERRORS = ["OSError()", "shutil.Error([])", "ValueError('x')", "KeyError('x')", "TimeoutError()"]
CASES = [(place, ERRORS[i % len(ERRORS)]) for i, place in enumerate(PLACES)]


def end_of_broken(job: Cluster, where: str, error: str) -> Result:
    """The end of the one host whose `train` raises `error` at `where`."""
    job.expect(internal_error=True)
    job.start(command=train_with_broken(where, error))
    result = job.wait(30)["algo-1"]
    assert SAID in result.err  # the fault
    return result


@pytest.mark.promise("F12")
@pytest.mark.parametrize(("where", "error"), CASES)
def test_no_exception_inside_the_launcher_ends_with_success(
    cluster: Make, where: str, error: str
) -> None:
    job = cluster("print('ran', flush=True)\nimport time; time.sleep(0.2)\n", hosts=1)
    result = end_of_broken(job, where, error)
    assert (result.code, result.success) == (105, False), result.err
    assert "InternalError" in result.err
    assert result.first_line.startswith("InternalError: "), result.err


@pytest.mark.promise("F12")
@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_defect_on_one_host_is_named_on_all(cluster: Make, host: str) -> None:
    job = cluster("import time\nprint('ran', flush=True)\ntime.sleep(600)\n")
    broken = train_with_broken("muster.run.child.child:Child.changed", "ValueError('x')")
    job.expect(internal_error=True)
    if host == "algo-1":  # the leader itself broke: nobody is left to decide
        job.expect(apart=frozenset({"algo-1"}))
    for name in job.names:
        job.start(name, command=broken if name == host else None)
    results = job.wait(20)
    assert SAID in results[host].err  # the fault
    assert results[host].code == 105
    other = next(name for name in job.names if name != host)
    assert (results[other].code, results[other].first_line[:13]) in [
        (105, "InternalError"),
        (102, "PeerError: lo"),  # the leader itself broke: nobody is left to decide
    ]
    assert host == "algo-1" or results[other].code == 105, results[other].err


@pytest.mark.promise("F12")
def test_a_defect_before_the_leader_s_code_is_there_ends_all_hosts_alike(cluster: Make) -> None:
    job = cluster("import time\ntime.sleep(600)\n")
    job.expect(internal_error=True)
    job.start("algo-1", command=train_with_broken("muster.train.work:prepare", "ValueError('x')"))
    job.start("algo-2")
    results = job.wait(20)
    assert SAID in results["algo-1"].err  # the fault
    for result in results.values():
        assert (result.code, result.first_line[:13]) == (105, "InternalError"), result.err

"""Which isolation a request gets, and what neither can hold."""

from __future__ import annotations

import pytest

from muster.arguments import UsageError
from muster.local.backends.choice import choose as choose_backend
from muster.local.preparation import distribution_keys
from muster.local.record.runfolder import RunFolder
from tests.launcher.support.local.local_runs import make_request

FOLDER = RunFolder("/runs/x", "job-x", -1)


def choose(**changes: object) -> str:
    request = make_request(**{"isolation": "process", **changes})
    return choose_backend(request, FOLDER, distribution_keys(request), lambda text: None).name


@pytest.mark.parametrize("option", ["mpi", "smddp", "pytorchddp"])
def test_mpirun_on_several_hosts_that_are_plain_processes_is_refused_in_a_sentence(
    option: str,
) -> None:
    with pytest.raises(UsageError) as refused:
        choose(hosts=2, distribution=option)
    assert "mpirun" in str(refused.value)
    assert "netns" in refused.value.fix


@pytest.mark.parametrize(
    "changes",
    [{"hosts": 1, "distribution": "mpi"}, {"hosts": 2, "distribution": "parameter_server"},
     {"hosts": 2, "distribution": "torch_distributed"}, {"hosts": 2}],
)  # fmt: skip
def test_other_jobs_run_as_plain_processes(changes: dict[str, object]) -> None:
    assert choose(**changes) == "process"

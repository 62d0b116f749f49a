"""Custom MPI options on two hosts, with each Open MPI: real ranks start and have what was asked.

A launch daemon refuses what its host's plan does not expect, so whatever mpirun hands on to its
daemons, in one way or another, has to be known there.
"""

from __future__ import annotations

import pytest

from tests.support.mpi import MakeMpi, OpenMpi

KEY = "sagemaker_mpi_custom_mpi_options"
SHOW = """\
import os
from mpi4py import MPI
comm = MPI.COMM_WORLD
assert comm.size == 4
assert comm.rank == int(os.environ["RANK"])
assert comm.allreduce(1) == 4
names = ("A", "NCCL_DEBUG", "OMPI_MCA_btl_tcp_eager_limit", "LOCAL_RANK", "SM_CURRENT_HOST")
os.write(1, (" ".join(["has", *(os.environ.get(name, "-") for name in names)]) + "\\n").encode())
"""


def run(mpi: MakeMpi, options: str) -> tuple[str, str]:
    """What both hosts wrote."""
    job = mpi(SHOW, hyperparameters={KEY: options}, environ={"MUSTER_OVERSUBSCRIBE": "1"})
    results = job.run()
    codes = [results[name].code for name in job.names]
    assert codes == [0, 0], job.story("an option was not taken")
    return job.text("algo-1"), job.text("algo-2")


@pytest.mark.parametrize(
    "options",
    [
        "-bind-to none -map-by slot -verbose --display-map --display-allocation --report-bindings",
        "--map-by core --bind-to none --oversubscribe --use-hwthread-cpus",
        "--mca hwloc_base_binding_policy none --timeout 600 --mca plm_rsh_no_tree_spawn 1",
        "-mca orte_abort_on_non_zero_status 1 --prtemca prte_base_help_aggregate 0",
        "--mca btl_tcp_if_exclude lo -mca btl tcp,self --pmixmca gds hash -gmca mpi_param_check 1",
        "--tag-output -x OMPI_MCA_coll_tuned_priority=40 --mca my_own_thing 1",
        "--mca rmaps_base_oversubscribe 1 --output-filename /tmp/never --report-state-on-timeout",
    ],
)
def test_options_that_pass_start_ranks_on_every_host(mpi: MakeMpi, options: str) -> None:
    first, second = run(mpi, options)
    assert first.count("has -") == second.count("has -") == 2


def test_variables_reach_the_ranks_of_every_host_and_parameters_all_of_them(
    mpi: MakeMpi, open_mpi: OpenMpi
) -> None:
    options = "-x 'A=two words' --NCCL_DEBUG=WARN --mca btl_tcp_eager_limit 4096"
    for place, text in enumerate(run(mpi, options)):
        for local in (0, 1):
            assert f"has two words WARN 4096 {local} algo-{place + 1}\n" in text


def test_hosts_that_set_another_transport_each_are_refused_before_anything_starts(
    mpi: MakeMpi,
) -> None:
    """Their ranks would wait for one another without end."""
    job = mpi(SHOW)
    job.start("algo-1", environ={"OMPI_MCA_pml": "ob1"})
    job.start("algo-2")
    results = job.wait(30)
    assert {result.code for result in results.values()} == {100}, job.story("they started")
    (line,) = {result.first_line for result in results.values()}
    assert line == "ConfigError: hosts disagree: algo-2 plans other processes than algo-1"
    assert "OMPI_MCA_pml is set here: every host must set it so" in results["algo-1"].err
    assert "has " not in job.text("algo-1") + job.text("algo-2")

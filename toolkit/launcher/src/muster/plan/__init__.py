"""From a job and the facts of all its hosts to what will run. Pure: equal inputs, equal plans.

A further way of starting ranks is one module here and one arm below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.plan.launchplan import LaunchPlan
from muster.plan.single import plan_single
from muster.plan.world import check_ipv4
from muster.types.distribution import Mpi, ParameterServer, Single, Torchrun
from muster.types.job import Job, Staged
from muster.types.machine import HostFacts

if TYPE_CHECKING:
    from muster.types.tools import Tools

__all__ = ["plan"]


def plan(
    job: Job, facts: Sequence[HostFacts], staged: Staged, tools: Tools | None = None
) -> LaunchPlan:
    """The plan of this host (`job.cluster.current`), agreeing with that of every other.

    `facts`: one per host. `tools`: as `find_tools` of plan.tools found them here;
    None means torch's module under the job's own Python, and nothing else.
    Raises ConfigError when the hosts cannot hold what was asked for.
    """
    match job.distribution:
        case Single():
            return plan_single(job, facts, staged)
        case Torchrun() as option:
            from muster.plan.torchrun import plan_torchrun

            return plan_torchrun(job, option, facts, staged, tools)
        case Mpi() | ParameterServer() as option:
            from muster.types.tools import Tools

            check_ipv4(job.cluster, facts, option.option)
            tools = tools or Tools()
            if isinstance(option, Mpi):
                from muster.plan.openmpi.launch import plan_mpi

                return plan_mpi(job, option, facts, staged, tools)
            from muster.plan.servers.parameter_server import plan_parameter_server

            return plan_parameter_server(job, option, facts, staged, tools)

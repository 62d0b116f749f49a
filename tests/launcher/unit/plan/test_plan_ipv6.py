"""Hosts that have IPv6 alone: what runs over it, and what says that it does not."""

from __future__ import annotations

import pytest

from muster.plan import plan
from muster.types.distribution import Distribution, Mpi, ParameterServer, Torchrun
from muster.types.errors import ConfigError
from tests.launcher.support.jobs import launcher_of, make_facts, make_job, make_staged


def test_torchrun_meets_at_the_plain_address() -> None:
    """As torchrun and init_process_group want it: without brackets."""
    facts = [
        fact._replace(address=f"fd00::{fact.host_index + 1}", resolves_leader=False)
        for fact in make_facts(2)
    ]
    job = make_job(2, Torchrun())
    made = plan(job, facts, make_staged(job))
    assert made.master_addr == "fd00::1"
    argv = launcher_of(made).argv
    assert argv[argv.index("--master_addr") + 1] == "fd00::1"


@pytest.mark.parametrize("distribution", [Mpi(), ParameterServer()], ids=str)
def test_what_needs_ipv4_says_which_host_has_none(distribution: Distribution) -> None:
    facts = [fact._replace(address=f"fd00::{fact.host_index + 1}") for fact in make_facts(2)]
    job = make_job(2, distribution)
    with pytest.raises(ConfigError, match=r"needs an IPv4 address.*: algo-1, algo-2"):
        plan(job, facts, make_staged(job))

"""Hosts that are about to run the same thing have equal digests, and only those."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.plan import plan
from muster.plan.launchplan import Direct, LaunchPlan
from muster.plan.script import without_base
from muster.types.cluster import Cluster, Host
from muster.types.distribution import Distribution, Single, Torchrun
from muster.types.job import Job, Settings, Staged
from muster.types.machine import HostFacts
from muster.types.tools import Tools
from tests.launcher.support.jobs import launcher_of, make_facts, make_job, make_staged


class World(NamedTuple):
    """A random cluster, with what differs from host to host."""

    cluster: Cluster
    distribution: Distribution
    facts: tuple[HostFacts, ...]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """1 to 9 hosts in up to 3 groups that lie in any order; equal devices within a group."""
    groups = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
    present = sorted(set(groups))
    chosen = draw(st.lists(st.sampled_from(present), min_size=1, unique=True))
    members = tuple(i for name in chosen for i, group in enumerate(groups) if group == name)
    gpus = {name: draw(st.integers(0, 4)) for name in present}
    hosts = tuple(Host(f"host{i}", i, group, "ml.x") for i, group in enumerate(groups))
    facts = tuple(
        fact._replace(
            gpus=gpus[groups[fact.host_index]],
            interface=f"eth{draw(st.integers(0, 3))}",
            cpus=draw(st.integers(1, 64)),
            resolves_leader=draw(st.booleans()),
            efa=draw(st.booleans()),
        )
        for fact in make_facts(len(hosts))
    )
    least = min((gpus[name] for name in chosen if gpus[name]), default=4)
    processes = draw(st.none() | st.integers(1, least))
    options: list[Distribution] = [Single(), Torchrun(processes_per_host=processes)]
    return World(Cluster(hosts, 0, members), draw(st.sampled_from(options)), facts)


def plans(world: World) -> list[LaunchPlan]:
    """Each host's own plan; every host has its own base folder, Python and torchrun."""
    made = []
    for current in range(len(world.cluster.hosts)):
        base = f"/runs/host{current}/opt/ml"
        job = make_job(
            distribution=world.distribution,
            cluster=world.cluster._replace(current=current),
            base=base,
            arguments=("--data", f"{base}/input/data", f"--out={base}", "--leader", "host0"),
        )
        staged = make_staged(job, python=f"/env{current}/python", environ={"MINE": str(current)})
        made.append(plan(job, world.facts, staged, Tools((f"/env{current}/torchrun",))))
    return made


@given(worlds())
def test_all_hosts_of_a_job_have_equal_digests_and_tables(world: World) -> None:
    made = plans(world)
    assert len({each.digest for each in made}) == 1
    assert len({each.ranks for each in made}) == 1
    assert len({each.master_addr for each in made}) == 1


@given(worlds())
def test_ranks_are_contiguous_on_each_host_in_the_order_of_the_distribution(world: World) -> None:
    made = plans(world)[0]
    number = 0
    for place in world.cluster.distribution:
        slots = made.ranks_of(place)
        assert slots
        assert [slot.local_rank for slot in slots] == list(range(len(slots)))
        assert [slot.rank for slot in slots] == list(range(number, number + len(slots)))
        number += len(slots)
    assert number == made.world_size
    for place in range(len(world.facts)):
        if place not in world.cluster.distribution:
            (slot,) = made.ranks_of(place)
            assert slot.rank >= made.world_size


@given(worlds())
def test_torchrun_is_told_the_numbers_of_the_table(world: World) -> None:
    for current, made in enumerate(plans(world)):
        if made.starter == Direct():
            assert isinstance(world.distribution, Single) or made.ranks_of(current)[0].rank >= (
                made.world_size
            )
            continue
        line = launcher_of(made).argv
        assert line[line.index("--nproc_per_node") + 1] == str(len(made.ranks_of(current)))
        assert line[line.index("--nnodes") + 1] == str(len(world.cluster.distribution))


JOB = make_job(2, Torchrun(processes_per_host=2), arguments=("--lr", "1"))
FACTS = make_facts(2)
Change = Callable[[Job], tuple[Job, tuple[HostFacts, ...], Staged]]


def changed(job: Job, **staged: str) -> tuple[Job, tuple[HostFacts, ...], Staged]:
    return job, FACTS, make_staged(job, **staged)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda job: changed(job._replace(arguments=("--lr", "2"))), id="argument"),
        pytest.param(lambda job: changed(job._replace(arguments=("--lr 1",))), id="split"),
        pytest.param(lambda job: changed(job, name="other.py"), id="program"),
        pytest.param(lambda job: changed(job, kind="module"), id="kind"),
        pytest.param(
            lambda job: changed(job._replace(settings=Settings(store_port=7))), id="store port"
        ),
        pytest.param(
            lambda job: changed(job._replace(settings=Settings(control_port=7))), id="control port"
        ),
        pytest.param(
            lambda job: changed(job._replace(distribution=Torchrun(processes_per_host=3))),
            id="processes",
        ),
        pytest.param(lambda job: changed(job._replace(distribution=Single())), id="option"),
        pytest.param(
            lambda job: changed(job._replace(cluster=job.cluster._replace(distribution=(1, 0)))),
            id="rank table",
        ),
        pytest.param(
            lambda job: (
                job,
                tuple(fact._replace(resolves_leader=False) for fact in FACTS),
                make_staged(job),
            ),
            id="leader address",
        ),
    ],
)
def test_a_plan_that_would_run_something_else_has_another_digest(change: Change) -> None:
    same = plan(JOB._replace(cluster=JOB.cluster._replace(current=1)), FACTS, make_staged(JOB))
    assert plan(JOB, FACTS, make_staged(JOB)).digest == same.digest
    assert plan(*change(JOB)).digest != same.digest


@pytest.mark.parametrize(
    ("text", "base", "result"),
    [
        ("/opt/ml/model", "/opt/ml", "{base}/model"),
        ("/opt/ml", "/opt/ml", "{base}"),
        ("--out=/opt/ml", "/opt/ml", "--out={base}"),
        ("a=/opt/ml/x,b=/opt/ml/y", "/opt/ml", "a={base}/x,b={base}/y"),
        ("/opt/mlflow", "/opt/ml", "/opt/mlflow"),
        ("/opt/ml", "", "/opt/ml"),
    ],
)
def test_the_base_folder_is_taken_out_of_arguments_and_nothing_else_is(
    text: str, base: str, result: str
) -> None:
    assert without_base(text, base) == result

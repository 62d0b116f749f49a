"""The plan of a job under mpirun, for both versions of Open MPI."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.plan import plan
from muster.plan.launchplan import Daemon, Launcher, LaunchPlan, RankSlot, Scratch
from muster.plan.script import PYTHON_MAIN, RANK_SHIM, SPAWN_AGENT
from muster.stage.machine.programs import find_mpi, find_tools
from muster.types.distribution import Mpi
from muster.types.errors import ConfigError
from muster.types.job import Settings
from muster.types.tools import Tools
from tests.launcher.support.jobs import (
    daemon_hosts_of,
    daemon_of,
    launcher_of,
    make_cluster,
    make_facts,
    make_job,
    make_staged,
)

VERSIONS = ("4.1.4", "5.0.11")
TOOLS = {
    "4.1.4": Tools(mpirun="/usr/bin/mpirun", mpi_daemon="/usr/bin/orted"),
    "5.0.11": Tools(mpirun="/env/bin/mpirun", mpi_daemon="/env/bin/prted"),
}
SHIM = ("/usr/bin/python3", "-I", "-S", RANK_SHIM)
AGENT = f"/usr/bin/python3 -I -S {SPAWN_AGENT}"
both = pytest.mark.parametrize("version", VERSIONS)


def plan_on(
    current: int,
    hosts: int,
    version: str = "5.0.11",
    processes: int | None = 2,
    option: str = "mpi",
    environ: dict[str, str] | None = None,
    settings: Settings | None = None,
    custom: str = "",
    **facts: object,
) -> LaunchPlan:
    wanted = Mpi(option=option, processes_per_host=processes, custom_options=custom)
    job = make_job(hosts, wanted, current, settings=settings)
    found = make_facts(hosts, mpi=version, **facts)
    return plan(job, found, make_staged(job, environ=environ), TOOLS[version])


def line(made: LaunchPlan) -> tuple[str, ...]:
    return launcher_of(made).argv


LINES = {
    ("4.1.4", 1): (
        *("/usr/bin/mpirun", "--host", "localhost:2", "-np", "2", "--allow-run-as-root"),
        *("--map-by", "slot", "--bind-to", "none", "--mca", "pml", "ob1"),
        *("--mca", "btl_vader_single_copy_mechanism", "none"),
        *("--mca", "plm", "isolated", "--mca", "btl", "^openib,tcp,ofi"),
    ),
    ("5.0.11", 1): (
        *("/env/bin/mpirun", "--host", "localhost:2", "-np", "2", "--allow-run-as-root"),
        *("--map-by", "slot", "--bind-to", "none", "--mca", "pml", "ob1"),
        *("--mca", "smsc", "^cma", "--mca", "btl", "^tcp,ofi"),
    ),
    ("4.1.4", 2): (
        *("/usr/bin/mpirun", "--host", "10.0.0.1:2,10.0.0.2:2", "-np", "4"),
        *("--allow-run-as-root", "--map-by", "slot", "--bind-to", "none", "--mca", "pml", "ob1"),
        *("--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "btl", "^openib"),
        *("--mca", "plm", "rsh", "--mca", "plm_rsh_agent", AGENT),
        *("--mca", "orte_launch_agent", "orted", "--mca", "plm_rsh_no_tree_spawn", "1"),
        *("--mca", "plm_rsh_num_concurrent", "2"),
        *("--mca", "plm_base_node_regex_threshold", "50000"),
        *("--mca", "oob_tcp_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0"),
    ),
    ("5.0.11", 2): (
        *("/env/bin/mpirun", "--host", "10.0.0.1:2,10.0.0.2:2", "-np", "4"),
        *("--allow-run-as-root", "--map-by", "slot", "--bind-to", "none", "--mca", "pml", "ob1"),
        *("--mca", "smsc", "^cma", "--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", AGENT),
        *("--prtemca", "prte_launch_agent", "prted", "--prtemca", "plm_ssh_no_tree_spawn", "1"),
        *("--prtemca", "plm_ssh_num_concurrent", "2"),
        *("--prtemca", "oob_tcp_if_include", "eth0"),
        *("--prtemca", "oob_tcp_disable_ipv6_family", "1", "--mca", "btl_tcp_if_include", "eth0"),
    ),
}


@pytest.mark.parametrize(("version", "hosts"), LINES)
def test_the_leader_runs_mpirun_over_our_shims(version: str, hosts: int) -> None:
    assert line(plan_on(0, hosts, version)) == (*LINES[version, hosts], *SHIM)


@both
def test_followers_start_nothing_but_the_daemon_that_is_asked_for(version: str) -> None:
    leader, follower = plan_on(0, 2, version), plan_on(1, 2, version)
    assert isinstance(leader.starter, Launcher)
    assert daemon_of(follower).command.argv[0] == TOOLS[version].mpi_daemon
    assert daemon_hosts_of(leader) == {"10.0.0.2": 1}
    assert daemon_hosts_of(follower) == {}
    assert leader.digest == follower.digest


@both
def test_ranks_go_host_after_host(version: str) -> None:
    made = plan_on(0, 3, version, processes=2)
    assert made.ranks == tuple(RankSlot(rank, rank // 2, rank % 2) for rank in range(6))
    assert made.world_size == 6


@both
@pytest.mark.parametrize("current", [0, 1])
def test_every_rank_gets_the_names_that_pytorch_reads(version: str, current: int) -> None:
    made = plan_on(current, 2, version)
    rank = made.ranks_of(current)[1]
    number = str(rank.rank)
    of_mpi = {"OMPI_COMM_WORLD_RANK": number, "SM_SECRET": "of the leader", "LD_PRELOAD": "evil"}
    environ = made.rank_environment(rank.rank, of_mpi, {})
    assert environ["RANK"] == environ["OMPI_COMM_WORLD_RANK"] == number
    assert (environ["LOCAL_RANK"], environ["WORLD_SIZE"], environ["LOCAL_WORLD_SIZE"]) == (
        *("1", "4", "2"),
    )
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("algo-1", "7777")
    assert not environ.keys() & {"SM_SECRET", "LD_PRELOAD", "MUSTER_SHIM"}


@pytest.mark.promise("S09")
@both
def test_no_value_of_the_environment_is_on_a_command_line(version: str) -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": "canary", "SM_HPS": "canary", "OMPI_MCA_btl": "canary"}
    for current in (0, 1):
        made = plan_on(current, 2, version, environ=environ)
        lines = [made.script.argv, made.agreed]
        lines.append(launcher_of(made).argv)
        assert "canary" not in str(lines)
        assert "-x" not in made.agreed


@both
def test_parameters_of_the_environment_are_for_ranks_and_never_for_how_daemons_start(
    version: str,
) -> None:
    environ = {"OMPI_MCA_coll": "^hcoll", "OMPI_MCA_plm_rsh_agent": "ssh"}
    environ |= {"OMPI_MCA_orte_launch_agent": "/tmp/evil", "PRTE_MCA_plm_ssh_agent": "ssh"}
    for current in (0, 1):
        made = plan_on(current, 2, version, environ=environ)
        command = launcher_of(made)
        assert command
        assert not [n for n in command.env if n.startswith(("OMPI_MCA_", "PRTE_MCA_"))]
        assert made.script.env["OMPI_MCA_coll"] == "^hcoll"
        assert not made.script.env.keys() & (environ.keys() - {"OMPI_MCA_coll"})


@both
def test_a_parameter_of_the_environment_comes_before_ours(version: str) -> None:
    environ = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_oob_tcp_if_include": "eth9"}
    made = plan_on(0, 2, version, environ=environ)
    assert "pml" not in line(made)
    assert "oob_tcp_if_include" in line(made)
    assert made.script.env["OMPI_MCA_pml"] == "ucx"


@both
def test_hosts_with_other_parameters_of_how_ranks_meet_are_told_apart(version: str) -> None:
    """Worlds that never meet must not start; what a host may have of its own does not count."""
    of_one = {"OMPI_MCA_pml": "ucx"}
    digest = plan_on(0, 2, version, environ=of_one).digest
    assert digest == plan_on(1, 2, version, environ=of_one).digest
    assert digest != plan_on(1, 2, version).digest
    assert digest != plan_on(1, 2, version, environ={"OMPI_MCA_pml": "cm"}).digest
    own = {"OMPI_MCA_btl_tcp_if_include": "ens5", "OMPI_MCA_mpi_show_mca_params": "all"}
    assert plan_on(0, 2, version, environ=own).digest == plan_on(1, 2, version).digest
    made = plan_on(0, 2, version, environ=of_one)
    assert "ucx" not in str(made.agreed)
    assert "OMPI_MCA_pml is set here: every host must set it so" in made.notes


@both
def test_parameters_are_not_compared_with_hosts_that_take_no_part(version: str) -> None:
    cluster = make_cluster(3, 2, {"gpu": (0, 1), "data": (2,)})
    facts = make_facts(3, mpi=version)
    digests = set()
    for current, environ in ((0, {"OMPI_MCA_pml": "ucx"}), (2, {})):
        job = make_job(3, Mpi(processes_per_host=2), cluster=cluster._replace(current=current))
        digests.add(plan(job, facts, make_staged(job, environ=environ), TOOLS[version]).digest)
    assert len(digests) == 1


@both
def test_no_variable_of_the_options_reaches_mpirun_or_its_daemons(version: str) -> None:
    """They inherit to one another what they are started with, and are no scripts."""
    asked = {"LD_PRELOAD": "/x.so", "PATH": "/evil", "LD_LIBRARY_PATH": "/evil", "A": "1"}
    custom = " ".join(f"-x {name}={value}" for name, value in asked.items())
    environ = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/own"}
    for current in (0, 1):
        made = plan_on(
            current, 2, version, environ=environ, custom=f"{custom} -x PMIX_MCA_gds=hash"
        )
        command = launcher_of(made)
        assert command
        assert not command.env.keys() & {"LD_PRELOAD", "A", "PMIX_MCA_gds"}
        assert {name: command.env[name] for name in environ} == environ
        assert asked.items() <= made.script.env.items()


@both
def test_no_variable_that_open_mpi_carries_by_itself_is_in_its_environment(version: str) -> None:
    environ = {"OMPI_ODD": "of this host", "OMPI_MCA_coll": "^hcoll", "OPAL_PREFIX": "/image"}
    for current in (0, 1):
        made = plan_on(current, 2, version, environ=environ)
        command = launcher_of(made)
        assert command
        assert not [name for name in command.env if name.startswith("OMPI_")]
        assert command.env["OPAL_PREFIX"] == "/image"
        assert environ.items() <= made.script.env.items()


def test_a_rank_that_is_alone_has_lost_no_other() -> None:
    assert 14 not in plan_on(0, 1, processes=1).ends.peer_loss_exit_codes
    assert 14 in plan_on(0, 1, processes=2).ends.peer_loss_exit_codes
    for status, words in plan_on(0, 2).ends.peer_loss_exit_codes.items():
        assert words.startswith(f"it ended without an error message; Open MPI uses {status} when ")


@both
def test_a_host_whose_open_mpi_has_no_daemon_is_named_before_anything_starts(version: str) -> None:
    job = make_job(2, Mpi(processes_per_host=1), current=1)
    tools = TOOLS[version]._replace(mpi_daemon="")
    program = {"4.1.4": "orted", "5.0.11": "prted"}[version]
    with pytest.raises(ConfigError, match=f"algo-2 has mpirun .* without {program}") as caught:
        plan(job, make_facts(2, mpi=version), make_staged(job), tools)
    assert "openmpi" in caught.value.fix
    alone = make_job(1, Mpi(processes_per_host=1))
    plan(alone, make_facts(1, mpi=version), make_staged(alone), tools)


def test_the_daemon_is_of_the_version_of_its_mpirun(tmp_path: Path) -> None:
    for name in ("mpirun", "orted", "prted"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for version, name in (("4.1.4", "orted"), ("5.0.11", "prted")):
        found = find_tools({"PATH": str(tmp_path)}, "/nowhere/python", "", version)
        assert found.mpi_daemon == f"{tmp_path}/{name}"
    (tmp_path / "orted").unlink()
    assert find_mpi({"PATH": str(tmp_path)}, "/nowhere/python", "", "4.1.4")[1] == ""


SURROUNDINGS = {
    "SLURM_JOB_ID": "7",
    "SLURM_NODELIST": "n[1-2]",
    "SLURMD_NODENAME": "n1",
    "PMI_RANK": "1",
    "PMI2_X": "1",
    "PMIX_NAMESPACE": "other",
    "PMIX_RANK": "3",
    "PBS_NODEFILE": "/n",
    "LSB_HOSTS": "a b",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_MCA_ess": "pmi",
    "PRTE_X": "1",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://1.2.3.4:5",
    "FLUX_URI": "x",
    "OMPI_MCA_pmix": "s1",
}


@both
@pytest.mark.parametrize("current", [0, 1])
def test_no_launcher_around_us_reaches_mpirun_or_ranks(version: str, current: int) -> None:
    made = plan_on(current, 2, version, environ={**SURROUNDINGS, "SM_HOSTS": "[]"})
    for command in (made.script, launcher_of(made)):
        assert not command.env.keys() & SURROUNDINGS.keys()
        assert command.env["SM_HOSTS"] == "[]"
    assert any("SLURM_JOB_ID is kept from mpirun" in note for note in made.notes)


def scratch_of(made: LaunchPlan) -> Scratch:
    assert made.launched is not None
    return made.launched.scratch


@both
def test_what_open_mpi_leaves_goes_to_folders_of_the_job(version: str) -> None:
    folder = {"4.1.4": "btl_vader", "5.0.11": "btl_sm"}[version]
    made = plan_on(1, 2, version)
    assert scratch_of(made).launcher == ("TMPDIR",)
    assert f"OMPI_MCA_{folder}_backing_directory" in scratch_of(made).ranks
    own = {f"OMPI_MCA_{folder}_backing_directory": "/mine"}
    kept = plan_on(1, 2, version, environ=own)
    assert not own.keys() & set(scratch_of(kept).ranks)


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        (("eth0", "ens5"), ("eth0", "ens5")),
        (("eth0", ""), ("eth0", "172.31.4.8/31")),
        (("", ""), ("10.0.0.4/31", "172.31.4.8/31")),
    ],
)
@both
def test_where_hosts_call_their_interfaces_differently_each_uses_its_own(
    version: str, interfaces: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """Never a network that holds all hosts: of 10.0.0.5 and 172.31.4.9 it would be 0.0.0.0/0."""
    addresses = ("10.0.0.5", "172.31.4.9")
    named = zip(make_facts(2, mpi=version), interfaces, addresses, strict=True)
    facts = [fact._replace(interface=name, address=where) for fact, name, where in named]
    digests = set()
    for current, own in enumerate(expected):
        job = make_job(2, Mpi(processes_per_host=1), current)
        made = plan(job, facts, make_staged(job), TOOLS[version])
        digests.add(made.digest)
        words = launcher_of(made).argv
        assert words[words.index("oob_tcp_if_include") + 1] == own
        assert "btl_tcp_if_include" not in words
        assert made.script.env["OMPI_MCA_btl_tcp_if_include"] == own
        if isinstance(made.starter, Daemon):  # the leader's mpirun tells it the leader's
            expects = made.starter.known["oob_tcp_if_include"]
            assert re.fullmatch(expects, expected[0])
    assert len(digests) == 1


@both
def test_an_interface_that_the_user_chose_stays(version: str) -> None:
    facts = [
        fact._replace(interface=name)
        for fact, name in zip(make_facts(2, mpi=version), ("eth0", "ens5"), strict=True)
    ]
    for custom, environ in (
        ("--mca btl_tcp_if_include ib0", {}),
        ("--mca btl_tcp_if_exclude lo", {}),
        ("", {"OMPI_MCA_btl_tcp_if_include": "ib0"}),
        ("", {"OMPI_MCA_btl_tcp_if_exclude": "lo"}),
    ):
        job = make_job(2, Mpi(processes_per_host=1, custom_options=custom))
        made = plan(job, facts, make_staged(job, environ=environ), TOOLS[version])
        assert made.script.env.get("OMPI_MCA_btl_tcp_if_include") == environ.get(
            "OMPI_MCA_btl_tcp_if_include"
        )


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("script", "train.py", ("/usr/bin/python3", PYTHON_MAIN, "script", "train.py")),
        ("module", "pkg.train", ("/usr/bin/python3", PYTHON_MAIN, "module", "pkg.train")),
        ("command", "train.sh", ("/bin/sh", "train.sh")),
    ],
)
def test_each_kind_of_program_has_its_command(
    kind: str, name: str, expected: tuple[str, ...]
) -> None:
    job = make_job(2, Mpi(processes_per_host=2))
    staged = make_staged(job, kind=kind, name=name)
    made = plan(job, make_facts(2, mpi="5.0.11"), staged, TOOLS["5.0.11"])
    assert made.script.argv == expected


def versions_of(*found: str) -> LaunchPlan:
    job = make_job(len(found), Mpi(processes_per_host=1))
    named = zip(make_facts(len(found)), found, strict=True)
    facts = [fact._replace(mpi=version) for fact, version in named]
    return plan(job, facts, make_staged(job), TOOLS["4.1.4"])


def test_hosts_with_different_versions_are_named() -> None:
    with pytest.raises(ConfigError, match=r"algo-2 has Open MPI 5\.0\.11, algo-1 has 4\.1\.4"):
        versions_of("4.1.4", "5.0.11")


def test_a_version_that_we_do_not_speak_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Open MPI 3\.1\.6 is not one"):
        versions_of("3.1.6")


def test_an_interpreter_that_cannot_be_handed_to_mpirun_is_refused_on_several_hosts() -> None:
    job = make_job(2, Mpi(processes_per_host=1))
    staged = make_staged(job, python="/my env/python")
    with pytest.raises(ConfigError, match="which holds a space"):
        plan(job, make_facts(2, mpi="5.0.11"), staged, TOOLS["5.0.11"])
    alone = make_job(1, Mpi(processes_per_host=1))
    plan(alone, make_facts(1, mpi="5.0.11"), staged, TOOLS["5.0.11"])

"""What a follower starts when the leader's mpirun asks for its launch daemon (reliability.md S02).

The requests were recorded from both versions of Open MPI.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.plan import plan
from muster.plan.launchplan import Command, Daemon
from muster.run.channel.messages import StartDaemon, to_wire
from muster.run.channel.wire import encode
from muster.run.child.daemon import daemon_command, fits
from muster.run.job.context import host_error_of
from muster.types.distribution import Mpi
from muster.types.errors import LaunchError
from muster.types.tools import Tools
from tests.launcher.support.jobs import make_facts, make_job, make_staged

RECORDED = json.loads((Path(__file__).parent / "golden" / "mpi_requests.json").read_text())
VERSIONS = ("4.1.4", "5.0.11")
DAEMONS = {"4.1.4": "/own/bin/orted", "5.0.11": "/own/bin/prted"}
PARAMETER = {"4.1.4": "-mca", "5.0.11": "--prtemca"}
URI = {"4.1.4": "orte_hnp_uri", "5.0.11": "prte_hnp_uri"}
LEADER = "10.0.0.1"
Request = list[str]
Change = Callable[[Request, str], Request]


def daemon_of(version: str) -> Daemon:
    job = make_job(3, Mpi(processes_per_host=2), current=1)
    tools = Tools(mpirun="/own/bin/mpirun", mpi_daemon=DAEMONS[version])
    staged = make_staged(job, environ={"PATH": "/own/bin", "OMPI_MCA_btl": "tcp,self"})
    made = plan(job, make_facts(3, mpi=version), staged, tools).daemon
    assert made is not None
    return made


def answer(version: str, asked: Request, leader: str = LEADER) -> Command:
    return daemon_command(daemon_of(version), asked, leader, "algo-2")


def value_of(request: Request, name: str) -> str:
    return request[request.index(name) + 1].strip('"')


@pytest.mark.promise("S02")
@pytest.mark.parametrize("shell", ["", " sh", " tcsh"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_mpirun_truly_asks_for_starts_the_hosts_own_daemon(version: str, shell: str) -> None:
    """It writes for the shell that the user has on the leader."""
    asked = RECORDED[version + shell]
    command = answer(version, asked)
    assert command.argv[0] == DAEMONS[version]
    assert "--daemonize" not in command.argv
    assert command.env["PATH"] == "/own/bin"
    assert not [name for name in command.env if name.startswith("OMPI_MCA_")]
    passed = [value_of(asked, name) for name in daemon_of(version).asked]
    assert list(command.argv[-3 * len(passed) :][2::3]) == passed


@pytest.mark.promise("S02")
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_of_the_request_but_those_values_is_passed_on(version: str) -> None:
    words = " ".join(answer(version, RECORDED[version]).argv)
    for foreign in ("/env", "spawn_agent", "PREFIXES", "export", "PATH=", "node_regex_threshold"):
        assert foreign not in words


def other_program(request: Request, version: str) -> Request:
    return ["/bin/sh", *request[1:]]


def program_of_another_folder_that_is_none(request: Request, version: str) -> Request:
    return [request[0] + "x", *request[1:]]


def shell_behind_it(request: Request, version: str) -> Request:
    return [request[0] + ";reboot", *request[1:]]


def shell_around_it(request: Request, version: str) -> Request:
    return ["(", "test", "!", "-r", "./.profile", "||", "reboot;", *request, ")"]


def shell_that_stays_open(request: Request, version: str) -> Request:
    return ["(", "test", "!", "-r", "./.profile", "||", ".", "./.profile;", *request]


def prefix(request: Request, version: str) -> Request:
    return [request[0], "--prefix", "/tmp/evil", *request[1:]]


def component_path(request: Request, version: str) -> Request:
    return [*request, PARAMETER[version], "mca_base_component_path", "/tmp/evil"]


def agent_option(request: Request, version: str) -> Request:
    return [*request, PARAMETER[version], "plm_rsh_args", "-oProxyCommand=reboot"]


def more_parameters(request: Request, version: str) -> Request:
    return [*request, PARAMETER[version], "btl", "tcp"]


def known_parameter_of_another_value(request: Request, version: str) -> Request:
    return [*request, PARAMETER[version], "oob_tcp_if_include", "lo"]


def switch_of_the_other_version(request: Request, version: str) -> Request:
    return [*request, "--pmixmca", "mca_base_component_path", "/tmp"]


def flag_that_is_not_known(request: Request, version: str) -> Request:
    return [*request, "--debug-daemons"]


def word_that_stands_alone(request: Request, version: str) -> Request:
    return [*request, "reboot"]


def switch_without_its_value(request: Request, version: str) -> Request:
    return [*request, PARAMETER[version], "ess_base_vpid"]


def other_number_twice(request: Request, version: str) -> Request:
    return [*request, PARAMETER[version], "ess_base_vpid", "7"]


def replaced(name: str, value: str) -> Change:
    def change(request: Request, version: str) -> Request:
        at = request.index(URI[version] if name == "uri" else name)
        return [*request[: at + 1], value, *request[at + 2 :]]

    change.__name__ = f"{name} {value[:30]!r}"
    return change


def dropped(name: str) -> Change:
    def change(request: Request, version: str) -> Request:
        at = request.index(URI[version] if name == "uri" else name)
        return [*request[: at - 1], *request[at + 2 :]]

    change.__name__ = f"no {name}"
    return change


def uri_with_a_second_address(request: Request, version: str) -> Request:
    uri = value_of(request, URI[version]) + ";tcp://10.9.9.9:5"
    return replaced("uri", uri)(request, version)


def uri_of_two_interfaces(request: Request, version: str) -> Request:
    uri = value_of(request, URI[version]).replace(LEADER, f"{LEADER},10.9.9.9")
    return replaced("uri", uri)(request, version)


DEVIATIONS: tuple[Change, ...] = (
    lambda request, version: [],
    other_program,
    program_of_another_folder_that_is_none,
    shell_behind_it,
    shell_around_it,
    shell_that_stays_open,
    prefix,
    component_path,
    agent_option,
    more_parameters,
    known_parameter_of_another_value,
    switch_of_the_other_version,
    flag_that_is_not_known,
    word_that_stands_alone,
    switch_without_its_value,
    other_number_twice,
    uri_with_a_second_address,
    uri_of_two_interfaces,
    replaced("ess", "singleton"),
    replaced("ess_base_vpid", "1;reboot"),
    replaced("ess_base_vpid", "$(reboot)"),
    replaced("ess_base_vpid", "-1"),
    replaced("ess_base_vpid", "1\n"),
    replaced("ess_base_vpid", "\u0661"),
    replaced("ess_base_vpid", ""),
    replaced("ess_base_num_procs", "9" * 13),
    replaced("uri", "1.0;tcp://10.0.0.9:5"),
    replaced("uri", "1.0;tcp://10.0.0.1.evil:5"),
    replaced("uri", "1.0;tcp://10x0x0x1:5"),
    replaced("uri", "file:/etc/passwd"),
    replaced("uri", "x" * 1_000_000),
    dropped("ess"),
    dropped("ess_base_vpid"),
    dropped("ess_base_num_procs"),
    dropped("uri"),
)


@pytest.mark.promise("S02")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("change", DEVIATIONS, ids=lambda change: change.__name__)
def test_every_deviation_is_refused_with_the_hosts_name(change: Change, version: str) -> None:
    asked = change(list(RECORDED[version]), version)
    with pytest.raises(LaunchError, match="algo-2 refused what the leader's launcher") as caught:
        answer(version, asked)
    assert len(str(caught.value)) < 250
    assert len(caught.value.tail) < 3_000
    assert caught.value.exit_code == 106


@pytest.mark.promise("S02")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_line_names_the_option_and_the_lines_below_what_was_asked(version: str) -> None:
    asked = [*RECORDED[version], PARAMETER[version], "mca_base_component_path", "/tmp/evil"]
    with pytest.raises(LaunchError) as caught:
        answer(version, asked)
    assert str(caught.value).endswith("the option mca_base_component_path is not allowed")
    told = host_error_of(caught.value)
    assert "ess_base_vpid" not in told.message
    assert "ess_base_vpid" in told.detail
    assert DAEMONS[version].rpartition("/")[2] in told.detail


@pytest.mark.parametrize(
    "character", ["x", '"', "\\", "\n", "\x01", "\u20ac", "\udcff", "\U0001f600"]
)
def test_a_request_that_passes_fits_a_frame_whatever_its_characters_grow_to(character: str) -> None:
    def passes(count: int) -> bool:
        asked = (character * count, "a", "b")
        passed = fits(asked)
        if passed:
            encode(to_wire(StartDaemon(asked)))
        return passed

    assert passes(1_000)
    assert not passes(70_000)
    for count in range(4_000, 70_000, 500):
        passes(count)


@pytest.mark.promise("S02")
@pytest.mark.parametrize("text", ["x" * 50_001, "algo-[1:1];reboot", "a b", "$(reboot)", '"'])
def test_a_list_of_nodes_is_one_or_it_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="orte_node_regex"):
        answer("4.1.4", replaced("orte_node_regex", text)(list(RECORDED["4.1.4"]), "4.1.4"))


@pytest.mark.promise("S02")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_request_of_the_other_version_is_refused(version: str) -> None:
    other = next(one for one in VERSIONS if one != version)
    with pytest.raises(LaunchError):
        answer(version, RECORDED[other])


@pytest.mark.promise("S02")
def test_a_leader_at_another_address_than_it_joined_with_is_refused() -> None:
    with pytest.raises(LaunchError, match="hnp_uri"):
        answer("4.1.4", RECORDED["4.1.4"], leader="10.0.0.7")


@pytest.mark.promise("S02")
def test_a_host_without_a_launch_daemon_in_its_plan_starts_none() -> None:
    with pytest.raises(LaunchError, match="no launch daemon is part of this host's plan"):
        daemon_command(None, RECORDED["4.1.4"], LEADER, "algo-1")

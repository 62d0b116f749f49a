"""What a follower starts when the leader's mpirun asks for its launch daemon (promise S02).

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
    made = plan(job, make_facts(3, mpi=version), staged, tools).starter
    assert isinstance(made, Daemon)
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


def more(*words: str) -> Change:
    """With these words behind it; `-mca` stands for the switch of the version."""
    return lambda request, version: [
        *request, *(PARAMETER[version] if word == "-mca" else word for word in words)
    ]  # fmt: skip


def place_of(request: Request, version: str, name: str) -> int:
    return request.index(URI[version] if name == "uri" else name)


def replaced(name: str, value: str) -> Change:
    def change(request: Request, version: str) -> Request:
        at = place_of(request, version, name)
        return [*request[: at + 1], value, *request[at + 2 :]]

    return change


def dropped(name: str) -> Change:
    def change(request: Request, version: str) -> Request:
        at = place_of(request, version, name)
        return [*request[: at - 1], *request[at + 2 :]]

    return change


def uri_with(request: Request, version: str, old: str, new: str) -> Request:
    uri = value_of(request, URI[version]).replace(old, new, 1)
    return replaced("uri", uri)(request, version)


AROUND = ("(", "test", "!", "-r", "./.profile", "||")
DEVIATIONS: dict[str, Change] = {
    "nothing": lambda request, version: [],
    "another program": lambda request, version: ["/bin/sh", *request[1:]],
    "a program that is none": lambda request, version: [request[0] + "x", *request[1:]],
    "a shell behind it": lambda request, version: [request[0] + ";reboot", *request[1:]],
    "a shell around it": lambda request, version: [*AROUND, "reboot;", *request, ")"],
    "an open shell": lambda request, version: [*AROUND, ".", "./.profile;", *request],
    "prefix": lambda request, version: [request[0], "--prefix", "/tmp/evil", *request[1:]],
    "component path": more("-mca", "mca_base_component_path", "/tmp/evil"),
    "agent option": more("-mca", "plm_rsh_args", "-oProxyCommand=reboot"),
    "more parameters": more("-mca", "btl", "tcp"),
    "another value of a known one": more("-mca", "oob_tcp_if_include", "lo"),
    "the other version's switch": more("--pmixmca", "mca_base_component_path", "/tmp"),
    "an unknown flag": more("--debug-daemons"),
    "a word alone": more("reboot"),
    "a switch without its value": more("-mca", "ess_base_vpid"),
    "a number twice": more("-mca", "ess_base_vpid", "7"),
    "a second address": lambda r, v: uri_with(r, v, "://", "://10.9.9.9:5;tcp://"),
    "two interfaces": lambda r, v: uri_with(r, v, LEADER, f"{LEADER},10.9.9.9"),
    **{
        f"{name} {value[:30]!r}": replaced(name, value)
        for name, values in {
            "ess": ["singleton"],
            "ess_base_vpid": ["1;reboot", "$(reboot)", "-1", "1\n", "\u0661", ""],
            "ess_base_num_procs": ["9" * 13],
            "uri": ["1.0;tcp://10.0.0.9:5", "1.0;tcp://10.0.0.1.evil:5", "1.0;tcp://10x0x0x1:5",
                    "file:/etc/passwd", "x" * 1_000_000],
        }.items()
        for value in values
    },
    "no ess": dropped("ess"),
    "no number": dropped("ess_base_vpid"),
    "no number of processes": dropped("ess_base_num_procs"),
    "no address": dropped("uri"),
}  # fmt: skip


@pytest.mark.promise("S02")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("change", DEVIATIONS.values(), ids=DEVIATIONS)
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

"""Who may start what through mpirun's spawn agent, and what Open MPI carries."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from muster.plan.script import SPAWN_AGENT
from tests.support.hosts import address
from tests.support.mpi import WAITS, MakeMpi, MpiCluster, wait_ranks

AGENT = (sys.executable, "-I", "-S", SPAWN_AGENT)
DAEMONS = ("orted", "prted")
# the true mpirun has no part in it
with_one_version = pytest.mark.parametrize("open_mpi", ["5.0.11"], indirect=True)


def token_of(pid: int) -> str:
    """What a launcher's child finds in its environment and no script does."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (found,) = (entry for entry in entries if entry.startswith(b"MUSTER_SHIM="))
    return found.decode().partition("=")[2]


def ask(job: MpiCluster, name: str, token: str, *words: str) -> subprocess.CompletedProcess[str]:
    """An agent on a host, started by an attacker who knows the token."""
    return subprocess.run(
        [*job.inside(name), *AGENT, *words],
        env={"MUSTER_SHIM": token},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


@pytest.mark.promise("S02")
def test_once_the_ranks_run_nobody_gets_anything_started(mpi: MakeMpi) -> None:
    """Refused and logged; the job goes on."""
    job = mpi(f"{WAITS}\n")
    job.start()
    wait_ranks(job, "up", 4)
    marker = job.folder / "started"
    command = ("/usr/bin/touch", str(marker))
    of_leader, of_follower = token_of(job.launcher()), token_of(job.daemon("algo-2"))
    for name, token, host in (
        ("algo-1", of_leader, address(1)),  # a second time
        ("algo-1", of_leader, address(0)),  # the leader itself
        ("algo-1", of_leader, "192.0.2.1"),  # no host of the job
        ("algo-2", of_follower, address(1)),  # a follower has nobody started
        ("algo-2", of_follower, address(0)),
    ):
        done = ask(job, name, token, host, *command)
        assert done.returncode == 1
        assert f"muster starts nothing on '{host}'" in done.stderr
        job.wait_for(name, f"refused to start anything on '{host}'", "err", 5)
    wrong = ask(job, "algo-1", of_leader[:-1] + "?", address(1), *command)
    assert wrong.returncode == 1
    assert not marker.exists()
    assert all(process.poll() is None for process in job.processes.values())
    job.signal("algo-1")
    assert {result.code for result in job.wait(20).values()} == {143}


STAND_IN = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "mpirun (Open MPI) {version}"; exit 0; fi
{agent} {host} {request}
echo "the agent ended with $?" >&2
exec sleep 600
"""


def with_mpirun_that_asks(mpi: MakeMpi, version: str, host: str, *request: str) -> MpiCluster:
    """A job whose mpirun asks for what it likes; a daemon that is started leaves `started`."""
    job = mpi("print('ran')\n")
    bin_folder = job.folder / "bin"
    bin_folder.mkdir(parents=True)
    words = [word.replace("STARTED", str(job.folder / "started")) for word in request]
    text = STAND_IN.format(
        version=version, agent=shlex.join(AGENT), host=host, request=shlex.join(words)
    )
    tools = {"mpirun": text}
    tools |= dict.fromkeys(DAEMONS, f"#!/bin/sh\ntouch {job.folder}/started\nsleep 600\n")
    for name, content in tools.items():
        (bin_folder / name).write_text(content)
        (bin_folder / name).chmod(0o755)
    job.environ["MUSTER_MPIRUN"] = str(bin_folder / "mpirun")
    return job


def asked(uri: str = f"7.0;tcp://{address(0)}:5", *more: str) -> tuple[str, ...]:
    values = {"ess": "env", "ess_base_jobid": "7", "ess_base_vpid": "1", "ess_base_num_procs": "2"}
    values |= {"orte_node_regex": "algo-[1:1-2]@0(2)", "orte_hnp_uri": uri}
    pairs = (word for name, value in values.items() for word in ("-mca", name, value))
    return ("/usr/bin/orted", *pairs, *more)


EVIL = {
    "another program": ("/usr/bin/touch", "STARTED"),
    "a shell line": (f"{asked()[0]}; touch STARTED #", *asked()[1:]),
    "another leader": asked("7.0;tcp://192.0.2.1:5"),
}


@with_one_version
@pytest.mark.promise("S02")
@pytest.mark.parametrize("request_", EVIL.values(), ids=EVIL.keys())
def test_a_request_that_deviates_is_refused_by_its_host_and_fails_the_job(
    mpi: MakeMpi, request_: tuple[str, ...]
) -> None:
    job = with_mpirun_that_asks(mpi, "4.1.4", address(1), *request_)
    results = job.run(20)
    assert {result.code for result in results.values()} == {106}
    (line,) = {result.first_line for result in results.values()}
    assert line.startswith("LaunchError: algo-2 refused what the leader's launcher asked it")
    assert not (job.folder / "started").exists()


@with_one_version
@pytest.mark.promise("S02")
@pytest.mark.parametrize("host", ["192.0.2.1", address(0), "-oProxyCommand=reboot"])
def test_a_request_for_no_host_of_the_job_fails_its_asker_alone(mpi: MakeMpi, host: str) -> None:
    job = with_mpirun_that_asks(mpi, "4.1.4", shlex.quote(host), *asked())
    job.environ["MUSTER_START_S"] = "3"
    job.start()
    job.wait_for("algo-1", "the agent ended with 1", "err")
    assert "refused to start anything on" in job.text("algo-1", "err")
    assert not (job.folder / "started").exists()
    results = job.wait(20)  # what mpirun makes of it is its matter: here it waits
    assert {result.code for result in results.values()} == {106}


@with_one_version
@pytest.mark.promise("S02")
def test_a_request_that_no_frame_holds_is_refused(mpi: MakeMpi) -> None:
    job = with_mpirun_that_asks(mpi, "4.1.4", address(1), *asked("x" * 70_000))
    job.environ["MUSTER_START_S"] = "3"
    job.start()
    job.wait_for("algo-1", "the agent ended with 1", "err")
    assert {result.code for result in job.wait(20).values()} == {106}


SEES = """\
import json, os, subprocess, sys
agent = {agent!r}
done = subprocess.run([*agent, "10.78.0.2", "true"], capture_output=True, text=True)
facts = {{"environ": dict(os.environ), "agent": [done.returncode, done.stderr]}}
with open(os.path.join(os.environ["SM_OUTPUT_DIR"], f"facts-{{os.environ['RANK']}}"), "w") as file:
    json.dump(facts, file)
"""


def seen(job: MpiCluster) -> dict[int, dict[str, str]]:
    """The environment that each rank has seen."""
    found = {}
    for name in job.names:
        for file in (job.base(name) / "output").glob("facts-*"):
            facts = json.loads(file.read_text())
            assert facts["agent"][0] == 1
            assert "only `train` starts this process" in facts["agent"][1]
            found[int(file.name.partition("-")[2])] = facts["environ"]
    return found


@pytest.mark.promise("S09")
@pytest.mark.promise("S17")
def test_ranks_get_the_environment_of_their_own_host_and_no_word_of_the_leader_s(
    mpi: MakeMpi,
) -> None:
    job = mpi(SEES.format(agent=AGENT))
    only = {"AWS_SECRET_ACCESS_KEY": "of the leader", "OMPI_MCA_coll_base_verbose": "0"}
    only |= {"ONLY_HERE": "leader", "OMPI_ODD": "leader"}
    job.start("algo-1", environ=only)
    job.start("algo-2", environ={"ONLY_THERE": "follower", "OMPI_MCA_coll_sync_priority": "0"})
    results = job.wait(30)
    assert {result.code for result in results.values()} == {0}, results["algo-1"].err
    environs = seen(job)
    assert sorted(environs) == [0, 1, 2, 3]
    for rank, environ in environs.items():
        assert not [n for n in environ if n.startswith("MUSTER_") and n != "MUSTER_RUN_ID"]
        assert environ["SM_CURRENT_HOST"] == ("algo-1", "algo-1", "algo-2", "algo-2")[rank]
        assert ("ONLY_THERE" in environ) == ("OMPI_MCA_coll_sync_priority" in environ) == (rank > 1)
        for name in only:
            assert (name in environ) == (rank < 2), name


@pytest.mark.promise("S08")
@pytest.mark.promise("S09")
def test_the_process_list_shows_no_secret_and_no_variable_of_the_job(mpi: MakeMpi) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIA-canary-id", "AWS_SECRET_ACCESS_KEY": "canary-key"}
    job = mpi(f"{WAITS}\n", environ=keys, hyperparameters={"password": '"canary-hp"'})
    job.start()
    wait_ranks(job, "up", 4)
    token = token_of(job.launcher())
    shown = b"".join(
        Path(f"/proc/{pid}/cmdline").read_bytes() + b"\n" for pid in job.marked_processes()
    ).decode()
    scripts = [line for line in shown.splitlines() if "canary-hp" in line]
    assert all("train.py" in line for line in scripts)  # hyperparameters are its arguments
    for secret in (job.canary, *keys.values(), job.environ["MUSTER_JOB_SECRET"], *token.split()):
        assert secret not in shown
    assert "SM_" not in shown
    job.signal("algo-1")
    assert {result.code for result in job.wait(20).values()} == {143}


@pytest.mark.promise("S01")
@pytest.mark.promise("F25")
def test_no_ssh_and_no_key_is_needed(mpi: MakeMpi, tmp_path: Path) -> None:
    """Neither a client, nor a server, nor a home folder that could hold a key."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "env"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    home = tmp_path / "home"
    home.mkdir()
    job = mpi("print('ran')\n", environ={"PATH": str(programs), "HOME": str(home)})
    results = job.run(20)
    told = [(r.code, r.out) for r in results.values()]
    assert told == [(0, "ran\n" * 2)] * 2, job.story("it needs more")
    assert not (home / ".ssh").exists()


def test_an_agent_that_nobody_listens_to_says_so() -> None:
    done = subprocess.run(
        [*AGENT, "host", "true"], env={}, capture_output=True, text=True, timeout=40, check=False
    )
    assert done.returncode == 1
    assert "only `train` starts this process" in done.stderr
    assert os.path.isfile(SPAWN_AGENT)

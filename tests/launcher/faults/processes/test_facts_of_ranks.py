"""How ranks are started, heard, signalled and named: what was seen once is seen again
(protocol.md, Ranks and Failures)."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.faults.processes.test_shim_faults import shim_above
from tests.launcher.support.cluster import Cluster, describe
from tests.launcher.support.sabotage import train_after
from tests.support.terminals import read_to_hangup

Make = Callable[..., Cluster]
TORCHRUN = {"sagemaker_torch_distributed_enabled": "true"}
SAYS_WHO_AND_WAITS = (
    "import os, time\n"
    "print('ready', os.getpid(), flush=True)\n"
    "while not os.path.exists('go'):\n    time.sleep(0.01)\n"
)


def inodes(pid: int) -> set[str]:
    """What the process's descriptors refer to."""
    folder = Path(f"/proc/{pid}/fd")
    return {os.readlink(entry) for entry in folder.iterdir()}


@pytest.mark.torch
def test_no_output_of_a_rank_goes_through_the_launcher(cluster: Make) -> None:
    """torchrun closes inherited descriptors: the shim hands the pipes over by its socket."""
    job = cluster(SAYS_WHO_AND_WAITS, hosts=1, hyperparameters=TORCHRUN)
    job.expect(code_writes=("go",))
    job.start(environ={"MUSTER_START_S": "60"})
    job.wait_for("algo-1", "ready", limit_s=60)
    rank = int(job.text("algo-1").split()[1])
    shim = shim_above(rank)
    launcher = int(Path(f"/proc/{shim}/stat").read_text().rpartition(")")[2].split()[1])
    assert "torchrun" in describe(launcher)
    pipes = {os.readlink(f"/proc/{rank}/fd/{number}") for number in (1, 2)}
    assert all(pipe.startswith("pipe:") for pipe in pipes)
    assert not pipes & inodes(launcher)
    assert pipes <= inodes(job.processes["algo-1"].pid)
    assert os.readlink(f"/proc/{rank}/fd/0") == "/dev/null"
    (job.base("algo-1") / "code" / "go").touch()
    assert job.wait(30)["algo-1"].code == 0


def start_shims_in_a_thread() -> None:
    import sys
    import threading

    from muster.run.child.shims import ShimPool

    real = ShimPool.spawn

    def spawn(*args):  # type: ignore[no-untyped-def]
        thread = threading.Thread(target=real, args=args)
        thread.start()
        thread.join()
        print("started by a thread that has ended", file=sys.stderr, flush=True)

    ShimPool.spawn = spawn  # type: ignore[method-assign]
    ShimPool.warm_up = lambda *args: None  # type: ignore[method-assign]


def test_a_shim_outlives_the_thread_that_started_it(cluster: Make) -> None:
    """A parent-death signal would come when that thread ends."""
    job = cluster("import time\ntime.sleep(0.3)\nprint('ran')\n", hosts=1)
    job.start(command=train_after(start_shims_in_a_thread))
    result = job.wait(20)["algo-1"]
    assert "started by a thread that has ended" in result.err  # the fact
    assert (result.code, result.out) == (0, "ran\n"), result.err


def test_a_terminal_as_stdout_gets_the_plain_lines_of_the_script(cluster: Make) -> None:
    """Local mode gives `train` one: metric expressions read what it shows."""
    script = (
        "import sys\n"
        "print('loss=0.5', sys.stdout.isatty(), sys.stdin.read() == '')\n"
        "sys.stdout.write('a\\rb\\n')\n"
    )
    job = cluster(script, hosts=1)
    terminal, other_end = pty.openpty()
    job.start(environ={"TERM": "xterm"}, stdio=other_end)
    os.close(other_end)
    shown = read_to_hangup(terminal)
    job.keep_output("algo-1", shown)
    assert job.wait(20)["algo-1"].code == 0, shown
    lines = shown.split(b"\r\n")  # as a terminal shows line ends
    assert b"loss=0.5 False True" in lines
    assert b"a\rb" in lines
    assert b"\x1b" not in shown
    assert b"\r\r\n" not in shown


SHELL_WITH_A_CHILD = """\
python3 -c '
import signal, sys, time
def save(*_):
    print("told", flush=True)
    time.sleep(1.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
'
"""


@pytest.mark.promise("F01")
def test_a_shell_entry_point_has_ended_when_its_group_is_empty(cluster: Make) -> None:
    """The shell ends by the stop itself, when its child has only begun to save."""
    job = cluster(SHELL_WITH_A_CHILD, hosts=1, program="run.sh")
    job.start_until("ready")
    job.signal("algo-1")
    result = job.wait(15)["algo-1"]
    assert (result.code, result.out) == (143, "ready\ntold\nsaved\n"), result.err
    assert result.failure == ""


def take_the_status_of_the_script() -> None:
    import os
    import sys
    from contextlib import suppress
    from pathlib import Path

    from muster.run.base.reaper import Reaper
    from muster.run.job import supervisor

    class Slow(Reaper):
        def look(self) -> None:
            found = Path(os.environ["PID_OF_THE_SCRIPT"]).read_text()
            if found:
                with suppress(ChildProcessError):
                    os.waitpid(int(found), 0)
                    print("took the status of", found, file=sys.stderr, flush=True)
            super().look()

    supervisor.Reaper = Slow  # type: ignore[attr-defined]


def test_a_status_that_somebody_else_took_is_a_defect_and_never_success(
    cluster: Make, tmp_path: Path
) -> None:
    """Python reads such a status as 0. The script lost its shim, so only we could know it."""
    stolen = tmp_path / "stolen"
    stolen.write_text("")
    script = (
        "import os, signal, time\n"
        "shim = os.getppid()\n"
        "os.kill(shim, signal.SIGKILL)\n"
        "while os.getppid() == shim:\n    time.sleep(0.01)\n"
        "open(os.environ['PID_OF_THE_SCRIPT'], 'w').write(str(os.getpid()))\n"
        "os._exit(7)\n"
    )
    job = cluster(script, hosts=1, environ={"PID_OF_THE_SCRIPT": str(stolen)})
    job.expect(internal_error=True)
    job.start(command=train_after(take_the_status_of_the_script))
    result = job.wait(30)["algo-1"]
    assert "took the status of" in result.err, result.err  # the fault
    assert result.code == 105, result.err
    assert result.first_line.startswith("InternalError: ")

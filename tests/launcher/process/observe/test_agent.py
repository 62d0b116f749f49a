"""The agent in a rank's Python: it answers where the rank is, and the script never notices it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.run.observe.agent_link import Ask
from tests.launcher.support.agents import Ranks, main_thread, where
from tests.launcher.support.cluster import Cluster
from tests.support.mpi import MakeMpi

Make = Callable[..., Cluster]
CANARY = "canary-5f3a"
NUMBER = signal.SIGRTMIN + 5
# of this process: its threads, and sockets and pipes beside the three streams that are its own
SEEN = """
import os
def seen():
    links = []
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2 and os.path.lexists(f"/proc/self/fd/{number}"):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    before = os.environ["BEFORE"].split()
    more = [one for one in links if "[" in one and one not in before]
    return f"{len(os.listdir('/proc/self/task'))} threads, {len(more)} more"
"""
WAITS = "\nimport time\ndef wait_here():\n    print('waits', flush=True)\n    time.sleep(600)\n"
# C code that keeps the interpreter for hours
HOLDS = (
    "\nimport re\ndef holds():\n    pattern = re.compile('(a+)+$')\n"
    "    print('holds', flush=True)\n    pattern.match('a' * 60 + 'b')\n"
)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    made.end()


def test_it_says_where_the_threads_are_and_nothing_of_their_values(ranks: Ranks) -> None:
    ranks.start(
        "import threading\n"
        f"def loads(password='{CANARY}'):\n    threading.Event().wait()\n"
        "threading.Thread(target=loads, name='loader', daemon=True).start()\n"
        f"{WAITS}\ntoken = '{CANARY}'\nwait_here()\n"
    )
    ranks.says("waits")
    answer = ranks.asked_until(lambda answer: len(answer.threads) == 2)
    assert (answer.how, where(answer), main_thread(answer).name) == (
        "agent", "wait_here", "MainThread",
    )  # fmt: skip
    assert [thread.name for thread in answer.threads] == ["MainThread", "loader"]
    assert any(frame.function == "loads" for frame in answer.threads[1].frames)
    assert CANARY not in repr(answer)
    alone = ranks.ask(what=Ask(stacks=True, all_threads=False, calls=False))
    assert [thread.is_main for thread in alone.threads] == [True]


def test_odd_names_travel(ranks: Ranks) -> None:
    name = 'a "name"\\\u2028\U0001f600'
    ranks.start(
        "import threading\nhold = threading.Event()\n"
        f"threading.Thread(target=hold.wait, name={name!r}, daemon=True).start()\n"
        f"{WAITS}\nwait_here()\n",
        environ={"PYTHONIOENCODING": "utf-8"},
    )
    ranks.says("waits")
    assert name in [thread.name for thread in ranks.ask().threads]


def test_it_is_one_thread_and_the_variable_is_gone(ranks: Ranks) -> None:
    ranks.start(
        f"{SEEN}\nprint(seen(), 'RANK_AGENT' in os.environ)\n"
        "import threading\nprint(threading.active_count(), threading.enumerate())\n"
    )
    assert ranks.ended() == 0
    first, second = ranks.output().splitlines()
    assert first == "2 threads, 4 more False"
    assert second.startswith("1 [<_MainThread")


def test_files_of_a_script_that_have_its_numbers_are_left_alone(
    ranks: Ranks, tmp_path: Path
) -> None:
    """As of a script that closes all that it did not open, before it opens its own."""
    ranks.start(
        "import os, time\n"
        "numbers = [int(name) for name in os.listdir('/proc/self/fd') if int(name) > 2]\n"
        "os.closerange(3, max(numbers) + 1)\n"
        "def opened(number):\n"
        f"    path = os.path.join({str(tmp_path)!r}, f'own-{{number}}')\n"
        "    made = os.open(path, os.O_RDWR | os.O_CREAT)\n"
        "    if made != number:\n"
        "        os.dup2(made, number)\n"
        "        os.close(made)\n"
        "for number in numbers:\n    opened(number)\n"
        "began = time.monotonic()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    for number in numbers:\n        os.fstat(number)\n"
        "    os._exit(7)\n"
        "ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "print('forked', ended, time.monotonic() - began < 0.8, flush=True)\n"
        "print('waits', flush=True)\n"
        "time.sleep(3)\n"
    )
    ranks.says("waits")
    assert ranks.ask().how != "agent"
    assert ranks.ended() == 0
    assert "forked 7 True" in ranks.output()
    files = list(tmp_path.glob("own-*"))
    assert len(files) >= 3
    assert all(path.read_bytes() == b"" for path in files)


@pytest.mark.parametrize("way", ["subprocess", "os.fork", "fork", "spawn", "forkserver"])
def test_what_a_rank_starts_has_no_agent(ranks: Ranks, way: str, tmp_path: Path) -> None:
    (tmp_path / "seeing.py").write_text(
        f"{SEEN}\ndef child():\n"
        "    print('child', seen(), 'RANK_AGENT' in os.environ, flush=True)\n"
    )
    how = f"""
    p = multiprocessing.get_context({way!r}).Process(target=child)
    p.start(), p.join()
    assert p.exitcode == 0"""
    if way == "subprocess":
        how = """
    import subprocess
    one = [sys.executable, "-c", "from seeing import child; child()"]
    subprocess.run(one, check=True, close_fds=False)"""
    elif way == "os.fork":
        how = """
    pid = os.fork()
    if not pid:
        child()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0"""
    ranks.start(
        f"import multiprocessing, os, sys\nfrom seeing import child\n{WAITS}\n"
        f"if __name__ == '__main__':{how}\n    wait_here()\n"
    )
    ranks.says("waits")
    (line,) = (line for line in ranks.output().splitlines() if line.startswith("child"))
    assert line.startswith("child 1 threads, ") and line.endswith("False")
    if way in ("subprocess", "os.fork"):  # others have pipes of their own
        assert ", 0 more" in line
    assert where(ranks.ask()) == "wait_here"


def test_a_rank_that_forks_is_asked_all_the_while(ranks: Ranks) -> None:
    """No child finds a lock of the agent's held, and the agent is there again after each fork."""
    ranks.start(
        "import os, threading\n"
        "for count in range(200):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        threading.Thread(target=str).start()\n"
        "        os._exit(7)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        f"{WAITS}\nwait_here()\n"
    )
    ranks.asked_until(lambda answer: "waits" in ranks.output())
    answer = ranks.ask()
    assert (answer.how, where(answer)) == ("agent", "wait_here")


# Python 3.13.0 counts the threads at a fork once the agent is there again
NO_WARNINGS = {"PYTHONWARNINGS": "ignore"}
OWN_FILES = """
import os, subprocess, sys
def opened():
    return [open(f"own-{number}", "wb", buffering=0) for number in range(12)]
def whole(files, text):
    for file in files:
        file.write(text)
        with open(file.name, "rb") as written:
            found = written.read()
        assert found == text, (file.fileno(), found)
"""


def test_a_forked_process_ends_and_forks_as_if_nothing_had_been(ranks: Ranks) -> None:
    """Its files have the numbers that descriptors of the agent had."""
    ranks.start(
        f"{OWN_FILES}\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    files = opened()\n"
        "    if not os.fork():\n"
        "        whole(files, b'of the child')\n"
        "        sys.exit()\n"
        "    status = os.waitstatus_to_exitcode(os.wait()[1])\n"
        "    sys.exit(status)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
        environ=NO_WARNINGS,
    )
    assert (ranks.ended(), ranks.output()) == (0, "")
    assert {file.read_bytes() for file in ranks.folder.glob("own-*")} == {b"of the child"}


@pytest.mark.parametrize("first", [3, 4, 5, 6])
def test_descriptors_that_a_script_closes_are_no_longer_the_agents(
    ranks: Ranks, first: int
) -> None:
    """As those do that become daemons: what is opened then has the same numbers."""
    ranks.start(
        f"{OWN_FILES}\n"
        f"os.closerange({first}, 256)\n"
        "files = opened()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    whole(files, b'of the child')\n"
        "    sys.exit()\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "subprocess.run(['true'], preexec_fn=str, check=True)\n"
        f"{WAITS}\ntime.sleep(600 if sys.argv[1:] else 0.3)\nprint('ends')\n",
        environ=NO_WARNINGS,
    )
    handle = ranks.handle(0)
    ranks.asked_until(lambda answer: handle is not None and handle.ended)
    assert (ranks.ended(), ranks.output()) == (0, "ends\n")
    assert {file.read_bytes() for file in ranks.folder.glob("own-*")} == {b"of the child"}


def test_a_fork_is_that_of_a_process_of_one_thread(ranks: Ranks, tmp_path: Path) -> None:
    """From Python 3.12 on it warns of any other thread, and a warning may be an error."""
    ranks.start(
        "import os\n"
        "for _ in range(50):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n",
        argv=[sys.executable, "-W", "error", str(tmp_path / "script-0.py")],
    )
    assert ranks.ended() == 0
    assert ranks.output() == ""


def test_forks_of_many_threads_leave_the_agent_in_place(ranks: Ranks) -> None:
    ranks.start(
        "import os, threading\n"
        "def forks():\n"
        "    for _ in range(20):\n"
        "        pid = os.fork()\n"
        "        if not pid:\n"
        "            os._exit(0)\n"
        "        os.waitpid(pid, 0)\n"
        "threads = [threading.Thread(target=forks) for _ in range(5)]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
        f"{WAITS}\nwait_here()\n"
    )
    ranks.says("waits")
    assert where(ranks.ask()) == "wait_here"


@pytest.mark.parametrize("flags", [["-I"], ["-S"]])
def test_a_rank_in_isolated_python_has_none(ranks: Ranks, flags: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script-0.py"
    handle = ranks.start(f"{SEEN}{WAITS}\nprint(seen())\nwait_here()\n",
                         argv=[sys.executable, *flags, str(script)])  # fmt: skip
    ranks.says("waits")
    assert ranks.output().startswith("1 threads")
    assert ranks.ask().how == "none"
    assert not handle.ended


def test_another_program_has_none_and_lives_on(ranks: Ranks) -> None:
    handle = ranks.start("", argv=["sh", "-c", "echo here; exec sleep 600"])
    ranks.says("here")
    assert ranks.ask().how == "none"
    assert not handle.ended


def test_a_shell_that_becomes_python_has_one(ranks: Ranks, tmp_path: Path) -> None:
    command = f"exec {sys.executable} {tmp_path}/script-0.py"
    ranks.start(f"{WAITS}\nwait_here()\n", argv=["sh", "-c", command])
    ranks.says("waits")
    assert where(ranks.ask()) == "wait_here"


def test_a_file_that_a_shell_has_at_its_number_is_left_alone(ranks: Ranks, tmp_path: Path) -> None:
    """`exec 9>lock; flock 9; exec python train.py`."""
    script = (
        'numbers=${RANK_AGENT#*:}; first=${numbers%%,*}; eval "exec $first>lock"; '
        "exec $0 -c \"import os; print(os.get_blocking($first), 'RANK_AGENT' in os.environ)\""
    )
    ranks.start("", argv=["bash", "-c", script, sys.executable])
    assert ranks.ended() == 0
    assert ranks.output() == "True False\n"
    assert (tmp_path / "lock").read_bytes() == b""


@pytest.mark.parametrize("number", [4, 5, 6, 7, 8, 9])
def test_a_file_of_a_shell_that_becomes_python_is_left_alone(
    ranks: Ranks, tmp_path: Path, number: int
) -> None:
    """As of a script that holds a lock: `exec 9>lock; flock 9; exec python train.py`."""
    script = (
        f"exec {number}>{tmp_path}/lock; exec {sys.executable} -c 'import os; os.fstat({number})'"
    )
    ranks.start("", argv=["bash", "-c", script])
    assert ranks.ended() == 0, ranks.output()
    assert (tmp_path / "lock").read_bytes() == b""


def test_python_that_becomes_another_program_is_not_signalled(ranks: Ranks) -> None:
    handle = ranks.start(
        "import os, time\nprint('first', flush=True)\n"
        "while not os.path.exists('go'):\n    time.sleep(0.01)\n"
        "os.execvp('sh', ['sh', '-c', 'echo second; exec sleep 600'])\n"
    )
    ranks.says("first")
    assert ranks.ask().how == "agent"
    (Path(f"/proc/{handle.pid}/cwd") / "go").touch()
    ranks.says("second")
    assert ranks.ask(limit_s=1.5).how == "none"
    assert not handle.ended


def test_a_process_that_is_no_rank_has_none(ranks: Ranks, tmp_path: Path) -> None:
    handle = ranks.start(
        f"{SEEN}{WAITS}\nprint(seen(), 'RANK_AGENT' in os.environ)\nwait_here()\n",
        is_rank=False,
        environ={"RANK_AGENT": "1:2,3"},
    )
    assert (handle.agent, handle.agent_dump) == (-1, -1)
    path = tmp_path / "launcher.out"
    ranks.until(lambda: path.exists() and "waits" in path.read_text())
    assert path.read_text().startswith("1 threads, 0 more False")


def test_the_thread_ends_when_the_supervisor_is_gone(ranks: Ranks) -> None:
    handle = ranks.start(f"{WAITS}\nwait_here()\n")
    ranks.says("waits")
    assert len(os.listdir(f"/proc/{handle.pid}/task")) == 2
    handle.drop_agent()
    ranks.until(lambda: len(os.listdir(f"/proc/{handle.pid}/task")) == 1)
    assert ranks.ask().how == "none"


def test_one_whose_c_code_keeps_the_interpreter_answers_by_signal(ranks: Ranks) -> None:
    handle = ranks.start(f"{HOLDS}\nsecret = '{CANARY}'\nholds()\n")
    ranks.says("holds")
    for _ in range(2):
        answer = ranks.asked_until(lambda answer: answer.how == "signal")
        assert where(answer) == "holds"
        assert [frame.function for frame in main_thread(answer).frames][:2] == ["<module>", "holds"]
        assert CANARY not in repr(answer)
    assert ranks.ask(what=Ask(False, False, calls=True), limit_s=1.0).how == "silent"
    assert ranks.ask(what=Ask(True, False, False, by_signal=False), limit_s=1.0).how == "silent"
    assert not handle.ended


def test_a_stopped_one_is_silent_and_answers_once_it_goes_on(ranks: Ranks) -> None:
    handle = ranks.start(f"{WAITS}\nwait_here()\n")
    ranks.says("waits")
    os.kill(handle.pid, signal.SIGSTOP)
    stats = list(Path(f"/proc/{handle.pid}/task").glob("*/stat"))
    ranks.until(lambda: all(stat.read_text().rpartition(") ")[2][0] == "T" for stat in stats))
    assert ranks.ask(limit_s=1.5).how == "silent"
    os.kill(handle.pid, signal.SIGCONT)
    assert where(ranks.ask()) == "wait_here"


@pytest.mark.parametrize(
    "taken", ["signal.signal(number, note)", "signal.signal(number, signal.SIG_IGN)"]
)
def test_a_signal_that_the_script_takes_is_never_sent(ranks: Ranks, taken: str) -> None:
    handle = ranks.start(
        "import os, signal, sys, time\n"
        "def note(number, frame):\n    os.write(1, b'NOTED')\n"
        f"number = signal.SIGRTMIN + 5\nsignal.signal(number, {taken})\n"
        "print('taken', flush=True)\n"
        f"while not os.path.exists('go'):\n    time.sleep(0.01)\n{HOLDS}\nholds()\n"
    )
    ranks.says("taken")
    assert ranks.ask().how == "agent"
    (Path(f"/proc/{handle.pid}/cwd") / "go").touch()
    ranks.says("holds")
    assert ranks.ask(limit_s=1.5).how == "silent"
    assert "NOTED" not in ranks.output()
    assert not handle.ended


def test_modules_of_the_scripts_own_do_not_stand_in_its_way(ranks: Ranks, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in ("muster", "json", "select_", "threading_"):
        (own / f"{name}.py").write_text("import sys; sys.exit('mine')\n")
    (tmp_path / "muster.py").write_text("raise SystemExit('mine')\n")
    ranks.start(f"{WAITS}\nwait_here()\n", environ={"PYTHONPATH": str(own)})
    ranks.says("waits")
    assert where(ranks.ask()) == "wait_here"


def test_what_a_script_puts_in_the_place_of_system_calls_is_not_the_agents(ranks: Ranks) -> None:
    """As gevent does: its threads are the script's own, which would then block all signals."""
    ranks.start(
        "import _thread, os, select, signal, threading\n"
        "_thread.start_new_thread = lambda run, given: (run(*given), 1)[1]\n"
        "os.read = os.write = select.poll = None\n"
        "pid = os.fork()\n"
        "if not pid:\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
        f"{WAITS}\nwait_here()\n",
        environ=NO_WARNINGS,
    )
    ranks.says("waits")
    assert ranks.output() == "set()\nwaits\n"
    assert where(ranks.ask()) == "wait_here"


def test_a_rank_that_ends_meanwhile_has_none(ranks: Ranks) -> None:
    handle = ranks.start(f"{HOLDS}\nholds()\n")
    ranks.says("holds")
    got: list[str] = []
    ranks.link.ask([0, 7], Ask(False, False, True), 30.0, lambda found: got.extend(
        found[rank].how for rank in (0, 7)))  # fmt: skip
    os.kill(handle.pid, signal.SIGKILL)
    ranks.until(lambda: got)
    assert got == ["none", "none"]


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(3)", "raise SystemExit(3)"])
def test_being_asked_does_not_change_how_a_rank_ends(ranks: Ranks, end: str) -> None:
    """Asked all the time, also while the interpreter ends."""
    script = (
        "import atexit, os, sys, threading, time\natexit.register(time.sleep, 0.1)\n"
        f"threading.Thread(target=time.sleep, args=(0.1,)).start()\n{end}\n"
    )
    for rank in range(5):
        handle = ranks.start(script, rank)
        while not handle.ended:
            ranks.ask(rank)
        assert ranks.ended(rank) == 3
        assert ranks.output(rank) == ""


@pytest.mark.torch
def test_few_files_leave_ranks_without_agents_and_the_job_goes_on(cluster: Make) -> None:
    job = cluster("import os\nprint(len(os.listdir('/proc/self/task')))\n", 1)
    job.start(command=["prlimit", "--nofile=72:72", sys.executable, "-m", "muster", "train"])
    result = job.wait(30)["algo-1"]
    assert result.code == 0, result.err
    assert result.out.split() == ["1"]
    assert result.err.count("run without agents") <= 1


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_of_torchrun_have_agents(cluster: Make) -> None:
    two = {
        "sagemaker_torch_distributed_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "2",
    }
    script = "import os\nprint(len(os.listdir('/proc/self/task')), 'RANK_AGENT' in os.environ)\n"
    result = cluster(script, 1, hyperparameters=two).run(limit_s=60)["algo-1"]
    assert result.code == 0, result.err
    assert result.out == "2 False\n" * 2


@pytest.mark.parametrize("way", ["mpirun", "alone"])
def test_ranks_of_a_job_have_agents(mpi: MakeMpi, cluster: Make, way: str) -> None:
    script = "import os\nprint(len(os.listdir('/proc/self/task')), 'RANK_AGENT' in os.environ)\n"
    job = mpi(script, hosts=1, processes_per_host=2) if way == "mpirun" else cluster(script, 1)
    result = job.run(60)["algo-1"]
    assert result.code == 0, result.err
    assert result.out == "2 False\n" * (2 if way == "mpirun" else 1)

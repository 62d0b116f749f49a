"""One host, no distribution: the script's environment, streams, endings."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from muster.types.errors import RESERVED_EXIT_CODES
from tests.launcher.support.cluster import Cluster
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]


def test_the_script_runs_in_the_code_folder_with_its_arguments(cluster: Make) -> None:
    job = cluster(
        "import os, sys, json\n"
        "print(json.dumps([sys.argv[1:], os.getcwd(), os.environ['SM_HPS']]))\n",
        hosts=1,
        hyperparameters={"lr": "0.1", "name": '"a b; $(id)"'},
    )
    result = job.run()["algo-1"]
    assert (result.code, result.success, result.failure) == (0, True, "")
    argv, cwd, hps = json.loads(result.out)
    assert argv == ["--lr", "0.1", "--name", "a b; $(id)"]
    assert cwd == str(job.base("algo-1") / "code")
    assert json.loads(hps) == {"lr": 0.1, "name": "a b; $(id)"}


def test_a_shell_entry_point_gets_values_unparsed(cluster: Make) -> None:
    job = cluster(
        'printf "%s|" "$@"',
        hosts=1,
        program="run.sh",
        hyperparameters={"value": json.dumps("a b;'$HOME\"")},
    )
    assert job.run()["algo-1"].out == "--value|a b;'$HOME\"|"


@pytest.mark.parametrize("asked", ["wait:0", "pdb:0", "hold", "hint"])
def test_no_rank_is_debugged_without_muster_local(cluster: Make, asked: str) -> None:
    script = (
        "import os, sys\n"
        "print(sys.breakpointhook is sys.__breakpointhook__)\n"
        "print(sys.excepthook is sys.__excepthook__)\n"
        "print('debugpy' in sys.modules, os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev)\n"
    )
    result = cluster(script, hosts=1, environ={"MUSTER_DEBUG": asked}).run()["algo-1"]
    assert (result.code, result.out.split()) == (0, ["True", "True", "False", "True"])


def test_output_is_passed_byte_for_byte(cluster: Make) -> None:
    job = cluster(
        "import sys\n"
        "out = sys.stdout.buffer\n"
        "out.write(bytes(range(256)) * 300)\n"
        "out.write('  é中\\n\\n\\tx\\r'.encode() * 5000)\n"
        "out.write(b'x' * 300000)\n",
        hosts=1,
    )
    job.run()
    expected = bytes(range(256)) * 300 + "  é中\n\n\tx\r".encode() * 5000 + b"x" * 300000
    assert (job.folder / "algo-1" / "out").read_bytes() == expected


@pytest.mark.promise("F13")
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import atexit, os; atexit.register(lambda: os._exit(3))", 3),
        ("import os; os._exit(200)", 200),
    ],
)
def test_the_script_s_exit_code_is_the_job_s(cluster: Make, script: str, code: int) -> None:
    result = cluster(script, hosts=1).run()["algo-1"]
    assert result.code == code
    assert f"exit code {code}" in result.first_line
    assert f"ExecuteUserScriptError: ExitCode {code}" in result.failure


def test_a_code_that_only_muster_says_becomes_one(cluster: Make) -> None:
    codes = sorted(RESERVED_EXIT_CODES)
    jobs = [cluster(f"import os; os._exit({code})", hosts=1) for code in codes]
    for job in jobs:  # all at once
        job.start()
    for code, job in zip(codes, jobs, strict=True):
        result = job.wait(60)["algo-1"]
        assert result.code == 1
        assert f"exit code {code} of the script, reported as 1" in result.first_line


@pytest.mark.promise("F10")
def test_a_fatal_signal_is_named(cluster: Make) -> None:
    result = cluster("import os; os.abort()", hosts=1).run()["algo-1"]
    assert result.code == 134
    assert "SIGABRT" in result.first_line


def test_a_sigterm_that_is_not_ours_is_a_failure(cluster: Make) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    result = cluster(script, hosts=1).run()["algo-1"]
    assert result.code == 1
    assert "SIGTERM" in result.first_line


def test_the_last_traceback_names_the_failure(cluster: Make) -> None:
    script = (
        "import traceback\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
        "print('goes on')\n"
        "raise ValueError('bad batch')\n"
    )
    result = cluster(script, hosts=1).run()["algo-1"]
    assert (
        result.first_line == "UserScriptError: ValueError: bad batch (algo-1 rank 0, exit code 1)"
    )
    assert 'raise ValueError("bad batch")' in result.failure or "bad batch" in result.failure
    assert result.err.rstrip().splitlines()[-1] == "exit code 1"
    assert "FAILED algo-1 rank 0: ValueError: bad batch" in result.err


def test_a_failure_file_of_the_script_stays(cluster: Make) -> None:
    script = (
        "import os\n"
        "path = os.path.join(os.environ['SM_OUTPUT_DIR'], 'failure')\n"
        "open(path, 'w').write('own failure')\n"
        "raise SystemExit(4)\n"
    )
    job = cluster(script, hosts=1)
    job.expect(own_failure=True)
    result = job.run()["algo-1"]
    assert (result.code, result.failure) == (4, "own failure")


@pytest.mark.promise("F14")
def test_a_daemon_that_keeps_the_output_open_does_not_delay_the_end(cluster: Make) -> None:
    script = (
        "import subprocess, sys, os, signal\n"
        "subprocess.Popen(['setsid', 'sleep', '600'])\n"
        "print('done', flush=True)\n"
    )
    job = cluster(script, hosts=1, environ={"MUSTER_DRAIN_S": "1"})
    result = job.run(limit_s=10)["algo-1"]
    assert (result.code, result.out) == (0, "done\n")


@pytest.mark.promise("F15")
def test_zombies_are_reaped_while_the_script_runs(cluster: Make) -> None:
    script = (
        "import os, time\n"
        "for _ in range(500):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "def zombies():\n"
        "    n = 0\n"
        "    for p in os.listdir('/proc'):\n"
        "        if p.isdigit():\n"
        "            try:\n"
        "                s = open(f'/proc/{p}/stat').read().rpartition(')')[2].split()\n"
        "            except OSError:\n"
        "                continue\n"
        "            n += s[0] == 'Z' and int(s[1]) == os.getppid()\n"
        "    return n\n"
        "end = time.monotonic() + 1\n"
        "while zombies() and time.monotonic() < end:\n"
        "    time.sleep(0.01)\n"
        "print('zombies', zombies())\n"
    )
    assert cluster(script, hosts=1).run()["algo-1"].out == "zombies 0\n"


WAITS_FOR_TERM = (
    "import signal, sys, time, os\n"
    "def stop(*_):\n"
    "    print('told', flush=True)\n"
    "    time.sleep(0.3)\n"
    "    print('saved', flush=True)\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, stop)\n"
    "print('ready', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.mark.promise("F02")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_stop_reaches_the_script_and_ends_with_143(cluster: Make, name: str) -> None:
    job = cluster(WAITS_FOR_TERM, hosts=1)
    job.start_until("ready")
    job.signal("algo-1", getattr(signal, name))
    result = job.wait(10)["algo-1"]
    assert result.out == "ready\ntold\nsaved\n"
    assert (result.code, result.failure, result.success) == (143, "", False)
    assert result.err.rstrip().splitlines()[-1] == f"STOPPED by {name} on algo-1, exit code 143"


def test_a_second_stop_signal_changes_nothing(cluster: Make) -> None:
    job = cluster(WAITS_FOR_TERM, hosts=1)
    job.start_until("ready")
    job.signal("algo-1")
    job.wait_for("algo-1", "told")
    job.signal("algo-1")
    result = job.wait(10)["algo-1"]
    assert "saved" in result.out
    assert "stopping already" in result.err


def test_a_rank_that_ignores_the_stop_is_killed_and_named(cluster: Make) -> None:
    script = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    job = cluster(script, hosts=1, environ={"MUSTER_STOP_GRACE_S": "0.5"})
    job.start_until("ready")
    job.signal("algo-1")
    result = job.wait(10)["algo-1"]
    assert result.code == 143
    assert result.first_line == ("StoppedError: 1 of 1 ranks did not stop in 0.5 s (algo-1 rank 0)")


@pytest.mark.promise("F08")
def test_nothing_outlives_a_supervisor_that_was_killed(cluster: Make) -> None:
    script = (
        "import subprocess, time\n"
        "subprocess.Popen(['setsid', 'sleep', '600'])\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    job = cluster(script, hosts=1)
    job.start_until("ready")
    job.processes["algo-1"].kill()
    wait_until(lambda: not job.marked_processes(), 5, "processes outlived their supervisor")


def test_a_training_function_of_the_image_owns_the_job(cluster: Make) -> None:
    job = cluster("raise SystemExit('the program is not what runs')", hosts=1)
    hooks = job.folder / "hooks"
    hooks.mkdir()
    (hooks / "toolkit.py").write_text(
        "import sys\ndef main():\n    print('mine')\n    sys.exit(3)\n"
    )
    job.environ.update(SAGEMAKER_TRAINING_MODULE="toolkit:main", PYTHONPATH=str(hooks))
    result = job.run()["algo-1"]
    assert (result.code, result.out) == (3, "mine\n")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "{base}/output/data/muster/algo-1/collectives"),
        ({"MUSTER_RUN_DIR": "{base}-run"}, "{base}-run/algo-1/collectives"),
        ({"MUSTER_RECORD": "off"}, "None"),
        ({"COLLECTIVES_SUMMARY_DIR": "/elsewhere", "COLLECTIVES_FLIGHT_DIR": ""}, None),
    ],
)
def test_collectives_leave_what_they_did_in_the_record_unless_the_user_says_where(
    cluster: Make, environ: dict[str, str], expected: str | None
) -> None:
    names = ("COLLECTIVES_SUMMARY_DIR", "COLLECTIVES_FLIGHT_DIR")
    job = cluster(f"import os\nfor name in {names}: print(os.environ.get(name))", hosts=1)
    base = str(job.base("algo-1"))
    job.environ |= {name: value.format(base=base) for name, value in environ.items()}
    result = job.run()["algo-1"]
    assert result.code == 0
    own = "/elsewhere\n\n" if expected is None else f"{expected.format(base=base)}\n" * 2
    assert result.out == own

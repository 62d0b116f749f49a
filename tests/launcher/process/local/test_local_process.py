"""`muster local` with hosts as plain processes: real runs, real signals, and nothing left."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.support.local.local_runs import (
    PROCESS,
    SCRIPT,
    STUBBORN,
    Result,
    Start,
    contents,
    runs,
)
from tests.support.terminals import read_to_hangup
from tests.support.waiting import wait_until


def fill(home: Path) -> Path:
    (home / "src").mkdir()
    (home / "src/train.py").write_text(SCRIPT)
    (home / "src/stubborn.py").write_text(STUBBORN)
    (home / "data").mkdir()
    (home / "data/a.csv").write_text("1,2\n")
    return home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return fill(tmp_path)


def until(file: Path) -> tuple[str, ...]:
    """The command line of a job of two hosts that runs until the file is there, or for 60 s."""
    hyperparameters = ("--hyperparameter", "seconds=60", "--hyperparameter", f"until={file}")
    return ("src/train.py", "--hosts", "2", *hyperparameters, *PROCESS)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    """A run of two hosts that went well, and left the source folder and the channel alone."""
    home = fill(tmp_path_factory.mktemp("ended"))
    before = contents(home / "src"), contents(home / "data")
    with runs() as start:
        argv = ("src/train.py", "--hosts", "2", "--channel", "train=data", *PROCESS)
        result = start(home, argv).wait()
        assert result.code == 0, result.err
        assert before == (contents(home / "src"), contents(home / "data"))
        yield result


def test_every_host_runs_the_script_in_a_tree_of_its_own(ended: Result) -> None:
    result = ended
    assert sorted(result.out.splitlines()) == [
        "[algo-1:0] ready on algo-1",
        "[algo-2:1] ready on algo-2",
    ]
    for host in ("algo-1", "algo-2"):
        base = result.folder / host / "opt/ml"
        assert (base / "model/model.txt").read_text() == host
        assert (base / "code/train.py").read_text() == SCRIPT
        assert (base / "output/success").exists()
        config = json.loads((base / "input/config/resourceconfig.json").read_text())
        assert config["current_host"] == host
    assert result.summary["local"]["exit_code"] == 0
    assert (result.folder / "algo-2/logs/rank-1.out").read_text() == "ready on algo-2\n"


def test_the_end_names_hosts_ranks_and_where_things_lie(ended: Result) -> None:
    result, lines = ended, ended.err.splitlines()
    first = next(place for place, line in enumerate(lines) if "succeeded in" in line)
    words = [line.split() for line in lines[first + 1 :]]
    assert words[0] == ["host", "rank", "end", "seconds"]
    assert [word[:4] for word in words[1:3]] == [
        ["algo-1", "0", "exit", "0"],
        ["algo-2", "1", "exit", "0"],
    ]
    assert words[3] == ["model", f"{result.folder.name}/model", "(1", "file)"]
    assert [word[0] for word in words[4:]] == ["logs", "record"]
    assert words[4] == ["logs", f"{result.folder.name}/algo-*/logs"]
    assert "which differs from SageMaker in:" in result.err


def test_the_record_of_each_host_lies_in_its_folder_for_its_owner_alone(ended: Result) -> None:
    result = ended
    found = sorted(str(path.relative_to(result.folder)) for path in result.folder.glob("*/*.jsonl"))
    assert found == ["algo-1/events.jsonl", "algo-2/events.jsonl"]
    logs = sorted(path.name for path in result.folder.glob("algo-2/logs/*"))
    assert logs == ["rank-1.out", "train.log"]
    assert " INFO " in (result.folder / "algo-2/logs/train.log").read_text()
    folders = (".", "algo-1", "algo-1/logs", "algo-2/logs")
    assert {(result.folder / name).stat().st_mode & 0o777 for name in folders} == {0o700}


def test_with_json_stdout_is_one_value(start: Start, home: Path) -> None:
    result = start(home, ("src/train.py", "--json", *PROCESS)).wait()
    document = json.loads(result.out)
    assert document["schema"] == 1
    assert document["outcome"]["result"] == "Succeeded"
    assert document == result.summary
    assert "ready on algo-1" in result.err


@pytest.mark.clock
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_scripts_in_time_and_leaves_nothing(
    start: Start, home: Path, number: int
) -> None:
    argv = ("src/train.py", "--hosts", "2", "--hyperparameter", "seconds=600", *PROCESS)
    run = start(home, argv)
    run.wait_ready(2)
    began = time.monotonic()
    run.signal(number)
    result = run.wait(10)
    assert time.monotonic() - began < 5
    assert result.code == 143, result.err
    assert result.out.count("checkpoint written") == 2
    run.check_nothing_left(limit_s=0)


@pytest.mark.parametrize(
    ("moment", "isolation"),
    [("record in", PROCESS), ("isolation", ()), ("all hosts share", PROCESS), (" join ", ())],
)
def test_an_interrupt_at_any_moment_ends_the_run_cleanly(
    start: Start, home: Path, moment: str, isolation: tuple[str, ...]
) -> None:
    options = ("--hosts", "2", "--hyperparameter", "seconds=600", "--verbose")
    run = start(home, ("src/train.py", *options, *isolation))
    wait_until(lambda: moment in run.err, 10)
    run.signal(signal.SIGINT)
    result = run.wait(8)
    assert result.code == 143, result.err
    assert "Traceback" not in result.err
    assert not result.folder.exists() or result.summary["outcome"]["result"] == "Stopped"
    run.check_nothing_left(limit_s=0)


def test_a_second_interrupt_kills_at_once(start: Start, home: Path) -> None:
    argv = ("src/stubborn.py", "--hosts", "2", *PROCESS)
    run = start(home, argv, environ={"MUSTER_STOP_GRACE_S": "60"})
    run.wait_ready(2)
    run.signal(signal.SIGINT)
    wait_until(lambda: "stopping" in run.err, 5)
    run.signal(signal.SIGINT)
    result = run.wait(5)
    assert result.code == 143, result.err
    assert result.summary["complete"] is False
    assert result.summary["local"]["killed"] is True
    run.check_nothing_left(limit_s=0)


@pytest.mark.clock
def test_a_script_that_ignores_the_stop_is_killed_in_time(start: Start, home: Path) -> None:
    run = start(home, ("src/stubborn.py", *PROCESS), environ={"MUSTER_STOP_GRACE_S": "0.5"})
    run.wait_ready(1)
    began = time.monotonic()
    run.signal(signal.SIGINT)
    result = run.wait(15)
    assert time.monotonic() - began < 8
    assert result.code == 143, result.err
    run.check_nothing_left(limit_s=0)


@pytest.mark.parametrize("victim", ["", "muster.local.supervisor"])
def test_killing_muster_local_or_its_holder_leaves_nothing(
    start: Start, home: Path, victim: str
) -> None:
    run = start(home, ("src/stubborn.py", "--hosts", "2", *PROCESS))
    run.wait_ready(2)
    (pid,) = run.alive(victim) if victim else [run.process.pid]
    os.kill(pid, signal.SIGKILL)
    run.check_nothing_left()


def test_the_timeout_stops_the_job_and_says_so(start: Start, home: Path) -> None:
    argv = ("src/train.py", "--hyperparameter", "seconds=600", "--timeout", "6", *PROCESS)
    result = start(home, argv).wait()  # it counts from before the hosts start
    assert result.code == 124
    assert result.err.rstrip().splitlines()[-1] == "Stopped: --timeout 6 s reached (exit code 124)"
    shown = [line for line in result.err.splitlines() if " INFO " not in line]
    assert not any("143" in line for line in shown)
    assert result.summary["outcome"]["exit_code"] == result.summary["local"]["exit_code"] == 124
    assert "checkpoint written" in result.out
    assert result.summary["local"]["note"] == "timeout after 6 s"


CRASHES = "def break_it():\n    raise ValueError('100% bad\\nbatch')\nbreak_it()\n"


def test_the_block_and_the_annotation_name_the_user_s_own_line(start: Start, home: Path) -> None:
    (home / "src" / "crashes.py").write_text(CRASHES)
    actions = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(home)}
    result = start(home, ("src/crashes.py", "--hosts", "2", *PROCESS), environ=actions).wait()
    assert result.code == 1
    lines = result.err.splitlines()
    assert any(line.endswith("line 2, in break_it  (src/crashes.py:2)") for line in lines)
    block = lines.index(next(line for line in lines if line.startswith("FAILED algo-")))
    (error,) = [line for line in lines if line.startswith("::error ")]
    assert error.startswith(
        "::error file=src/crashes.py,line=2::UserScriptError: ValueError: 100%25"
    )
    group = next(place for place, line in enumerate(lines) if line.startswith("::group::"))
    assert group < lines.index("::endgroup::") < lines.index(error) < block
    assert max(map(len, lines[block:])) <= 200
    assert result.err.index("failed after") < result.err.index("\nFAILED algo-")
    assert not any("muster local:" in line for line in lines[block:])


def test_ctrl_c_ends_with_one_line_and_one_code(start: Start, home: Path) -> None:
    run = start(home, ("src/train.py", "--hosts", "2", "--hyperparameter", "seconds=600", *PROCESS))
    run.wait_ready(2)
    run.signal(signal.SIGINT)
    result = run.wait()
    assert result.code == result.summary["outcome"]["exit_code"] == 143
    assert result.summary["outcome"]["headline"] == "Ctrl-C"
    assert result.err.rstrip().splitlines()[-1] == "Stopped: Ctrl-C (exit code 143)"
    assert "STOPPED by" not in result.err


@pytest.mark.promise("F26")
def test_two_runs_at_once_stay_apart(start: Start, home: Path) -> None:
    asked = {"MUSTER_CONTROL_PORT": "7776", "MUSTER_STORE_PORT": "7777"}  # of this machine, for all
    argv = until(home / "go")
    first, second = start(home, argv, environ=asked), start(home, argv, environ=asked)
    first.wait_ready(2)
    second.wait_ready(2)
    (home / "go").touch()
    results = first.wait(), second.wait()
    assert [result.code for result in results] == [0, 0]
    plans = [result.summary["plan"] for result in results]
    assert plans[0]["ports"]["control"] != plans[1]["ports"]["control"]
    assert plans[0]["ports"]["store"] != plans[1]["ports"]["store"]
    assert results[0].summary["job"] != results[1].summary["job"]
    for result in results:
        assert [rank["host"] for rank in result.summary["ranks"]] == ["algo-1", "algo-2"]


def test_a_leader_that_is_killed_leaves_a_summary_that_says_so(start: Start, home: Path) -> None:
    argv = ("src/train.py", "--hosts", "2", "--hyperparameter", "seconds=600", *PROCESS)
    run = start(home, argv)
    run.wait_ready(2)
    leaders = [
        pid
        for pid in run.alive("muster\0train")
        if b"algo-1/opt/ml" in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    os.kill(leaders[0], signal.SIGKILL)
    result = run.wait(30)
    assert result.code == 137, result.err
    assert "hosts disagree about the end" in result.err
    assert result.summary["complete"] is False
    assert "the leader ended without a summary" in result.summary["outcome"]["headline"]


def test_two_slips_in_a_distribution_are_told_together(start: Start, home: Path) -> None:
    text = '{"torch_distribted": {"enabled": true}, "mpi": {"enabld": true}}'
    result = start(home, ("src/train.py", "--distribution", text, *PROCESS)).wait()
    assert result.code == 2
    assert "did you mean 'torch_distributed'?" in result.err
    assert "did you mean 'enabled'?" in result.err
    assert not result.folder.exists()


def on_a_terminal(home: Path, *awaited: str, **environ: str) -> tuple[str, int]:
    """What a terminal receives from `muster local`, and its exit code. The ranks run until all
    that is awaited was shown."""

    def look(data: bytes) -> None:
        if all(text.encode() in data for text in awaited):
            (home / "go").touch()

    terminal, other_end = pty.openpty()
    argv = until(home / "go")
    command = [sys.executable, "-m", "muster", "local", *argv, "--output", "on-tty"]
    with subprocess.Popen(
        command,
        cwd=home,
        env={**os.environ, "TERM": "xterm", **environ},
        stdout=other_end,
        stderr=other_end,
    ) as process:
        os.close(other_end)
        data = read_to_hangup(terminal, look)
    return data.decode(), process.returncode


def test_a_terminal_shows_a_live_table_and_keeps_every_line(home: Path) -> None:
    text, code = on_a_terminal(home, "0 running", "1 running")
    assert code == 0, text
    assert "0 running" in text
    assert "1 running" in text
    assert "\x1b[2m" in text  # the header's colour
    screen = as_seen(text)
    assert "[algo-1:0] ready on algo-1" in screen
    assert "[algo-2:1] ready on algo-2" in screen
    assert not [line for line in screen if "running" in line]  # the table is gone
    assert "record" in screen[-1]


def as_seen(text: str) -> list[str]:
    """The lines that are left on a terminal after moves up and erasures."""
    lines = [""]
    for part in re.split(r"(\x1b\[\d+A|\x1b\[J|\x1b\[\d*m|\r\n|\r)", text):
        if part.endswith("A") and part.startswith("\x1b"):
            del lines[len(lines) - int(part[2:-1]) :]
            lines[-1] = ""
        elif part == "\r\n":
            lines.append("")
        elif part != "\r" and not part.startswith("\x1b"):
            lines[-1] += part
    return [line for line in lines if line]


def test_a_dumb_terminal_gets_plain_lines(home: Path) -> None:
    running = "muster local: 2 of 2 ranks running"
    text, code = on_a_terminal(home, running, TERM="dumb")
    assert code == 0, text
    assert running in text
    assert "\x1b" not in text


def test_no_secret_of_the_run_reaches_ranks_files_or_command_lines(
    start: Start, home: Path
) -> None:
    (home / "src/show.py").write_text(
        "import os, time\n"
        "print(sorted(os.environ), flush=True)\n"
        "print('ready on', flush=True)\n"
        "limit = time.monotonic() + 60\n"
        f"while time.monotonic() < limit and not os.path.exists({str(home / 'go')!r}):\n"
        "    time.sleep(0.02)\n"
    )
    run = start(home, ("src/show.py", *PROCESS))
    run.wait_ready(1)
    trains = run.alive("muster\0train")
    variables = Path(f"/proc/{trains[0]}/environ").read_text().split("\0")
    secret = next(v for v in variables if v.startswith("MUSTER_JOB_SECRET=")).partition("=")[2]
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in run.alive()]
    (home / "go").touch()
    result = run.wait()
    assert "MUSTER_JOB_SECRET" not in result.out
    assert not any(secret in line for line in lines)
    assert not any(secret.encode() in data for data in contents(result.folder).values())


def test_a_slow_reader_neither_loses_bytes_nor_delays_a_stop(home: Path, start: Start) -> None:
    (home / "src/loud.py").write_text(
        "import sys, time\n"
        "for number in range(20000):\n"
        "    print(number, 'x' * 100)\n"
        "print('ready on', flush=True)\n"
        "time.sleep(600)\n"
    )
    reader, writer = os.pipe()
    argv = ("src/loud.py", *PROCESS)
    run = start(home, argv, environ={"MUSTER_STOP_GRACE_S": "0.5"}, stdout=writer)
    os.close(writer)
    log = run.folder / "algo-1/logs/rank-0.out"
    wait_until(lambda: log.exists() and log.stat().st_size > 1 << 17, 30)
    run.signal(signal.SIGINT)  # nobody has read a byte yet
    wait_until((run.folder / "summary.json").exists, 15)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    assert run.wait(15).code == 143
    numbers = [line.split()[1] for line in data.splitlines() if line.endswith(b"x")]
    assert len(numbers) > 500
    assert numbers == [str(number).encode() for number in range(len(numbers))]


@pytest.mark.clock
@pytest.mark.parametrize(
    ("argv", "text", "starts"),
    [(["--help"], b"usage: muster", 5), (["local", "src/train.py", *PROCESS], b"muster", 15)],
)
def test_the_first_line_comes_soon(home: Path, argv: list[str], text: bytes, starts: int) -> None:
    """Within the time of so many starts of this Python on this machine."""

    def first_line_s(words: list[str], begins: bytes) -> float:
        began = time.monotonic()
        with subprocess.Popen(
            [sys.executable, *words], cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(begins)
            took_s = time.monotonic() - began
            process.stdout.read()
        return took_s

    pairs = [
        (
            first_line_s(["-c", "print('here')"], b"here"),
            first_line_s(["-m", "muster", *argv], text),
        )
        for _ in range(5)
    ]
    bare_s, ours_s = (min(times) for times in zip(*pairs, strict=True))
    assert ours_s < starts * bare_s


TOLD = """\
import json, os, sys
names = [name for name in os.environ if name.startswith("SM_")]
told = {"argv": sys.argv, "environ": {name: os.environ[name] for name in names}}
print(json.dumps(told), flush=True)
"""


def test_a_plan_says_what_the_run_then_does(start: Start, home: Path) -> None:
    (home / "src/told.py").write_text(TOLD)
    argv = ("src/told.py", "--channel", "train=data", "--hyperparameter", "tag=1.10", *PROCESS)
    run = start(home, argv)
    result = run.wait()
    assert result.code == 0, result.err
    told = json.loads(result.out.partition(" ")[2])
    assert told["argv"][1:] == ["--tag", "1.10"]  # as it was typed
    assert json.loads(told["environ"]["SM_HPS"]) == {"tag": 1.1}
    command = [sys.executable, "-m", "muster", "plan", *argv, "--output", str(result.folder)]
    planned = json.loads(subprocess.check_output([*command, "--json"], cwd=home))
    assert planned["hosts"][0]["script"][1:] == told["argv"]
    exports, environ = planned["exports"], told["environ"]
    differ = {name for name in environ if exports[name] != environ[name]}
    # the run's own name and archive; its corner of the loopback network and its ports are random
    own = {"SM_JOB_NAME", "SM_MODULE_DIR", "SM_TRAINING_ENV", "SM_MASTER_ADDR", "SM_MASTER_PORT"}
    assert differ <= own


def test_exit_code_2_of_the_script_is_said_to_be_its_own(start: Start, home: Path) -> None:
    (home / "src/usage.py").write_text("import sys; sys.exit(2)\n")
    result = start(home, ("src/usage.py", *PROCESS)).wait()
    assert result.code == 2
    assert "exit code 2, the job's own: the command line was right" in result.err


def test_a_limit_of_namespaces_is_named_and_is_not_a_full_disk(start: Start, home: Path) -> None:
    wrapper = ("unshare", "--user", "--map-root-user", "--mount")
    if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    lowered = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    run = start(home, ("src/train.py",), wrapper=(*wrapper, "sh", "-c", lowered, "sh"))
    result = run.wait()
    assert result.code == 0, result.err
    assert "no namespaces here" in result.err
    assert "user.max_net_namespaces is 0" in result.err
    assert "No space left" not in result.err


MODULE = """\
import multiprocessing, sys
from .lib import FACTOR
def times(number):
    return number * FACTOR
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(__package__, sys.argv[1:], pool.map(times, [1, 2]), flush=True)
"""


def test_a_module_runs_as_python_would_run_it(start: Start, home: Path) -> None:
    (home / "job").mkdir()
    (home / "job/lib.py").write_text("FACTOR = 3\n")
    (home / "job/train.py").write_text(MODULE)
    result = start(home, ("-m", "job.train", *PROCESS, "--", "--x")).wait()
    assert result.code == 0, result.err
    assert result.out == "[algo-1:0] job ['--x'] [3, 6]\n"


def test_a_module_beside_no_other_is_not_run_in_its_own_starter(start: Start, home: Path) -> None:
    (home / "alone.py").write_text(f"FACTOR = 3\n{MODULE}".replace("from .lib", "from alone"))
    result = start(home, ("-m", "alone", *PROCESS, "--", "--x")).wait()
    assert result.code == 0, result.err
    assert result.out == "[algo-1:0]  ['--x'] [3, 6]\n"


def test_an_import_of_a_folder_beside_the_source_folder_gets_a_hint(
    start: Start, home: Path
) -> None:
    (home / "job").mkdir()
    (home / "job/train.py").write_text("import job.train\n")
    result = start(home, ("job/train.py", *PROCESS)).wait()
    assert result.code == 1
    assert "train.py imports job of this folder" in result.err
    assert "--source-dir ." in result.err

"""What ended a rank, from the words of real failures (issue 16: the cause named is the cause)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.run.base.causes import Surroundings, find_cause, more_shared_memory
from muster.run.base.evidence import Watcher, last_lines, last_traceback, looks_like_lost_peer

REAL = Path(__file__).parent / "failures"  # what torch 2.13 over gloo wrote, paths shortened
HERE = Surroundings()


def run(folder: Path, script: str, *arguments: str) -> tuple[int, bytes, Surroundings]:
    """Status and error stream of a real script, and where it was."""
    path = folder / "train.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )  # fmt: skip
    return done.returncode, done.stderr, Surroundings(code=str(folder))


def real(name: str) -> bytes:
    return (REAL / f"{name}.txt").read_bytes()


def judged(status: int, tail: bytes, around: Surroundings) -> tuple[str, str]:
    """Headline and fix, as a rank's failure is made."""
    watcher = Watcher()
    watcher.feed(tail, 1.0, True)
    evidence = watcher.evidence()
    words = last_traceback(tail) if evidence else last_lines(tail)
    return find_cause(status, evidence.summary if evidence else "", words, around)


SCRIPTS = [
    ("x = 1\nprnt(\n", (), 1, "SyntaxError: '(' was never closed (train.py line 2)", "correct"),
    ("if True:\nprint(1)\n", (), 1, "IndentationError: expected an indented", "correct"),
    ("if True:\n\tx = 1\n        y = 2\n", (), 1, "TabError: inconsistent use", "correct"),
    (
        "import pandass\n", (), 1,
        "ModuleNotFoundError: No module named 'pandass' (train.py line 1)",
        "add pandass to requirements.txt",
    ),
    (
        "def f():\n    import cv2_not_here.x\nf()\n", (), 1,
        "No module named 'cv2_not_here' (train.py line 2)", "add cv2_not_here to req",
    ),
    (
        "from os import nothing_like_that\n", (), 1,
        "ImportError: cannot import name 'nothing_like_that' from 'os'", "check its version",
    ),
    (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n",
        ("--foo", "2"), 2, "train.py: error: unrecognized arguments: --foo 2",
        "exit code 2 is the script's own",
    ),
    (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--lr', required=True)\np.parse_args()\n",
        (), 2, "train.py: error: the following arguments are required: --lr",
        "pass it (hyperparameters={...})",
    ),
    ("import sys\nsys.exit(3)\n", (), 3, "exit(3) without an error message", "sys.exit(3)"),
    (
        "import sys\nsys.exit('no data in /data')\n", (), 1,
        "exit(1) without a traceback; its last line: no data in /data", "sys.exit(1)",
    ),
    (
        "import ctypes\ndef break_it():\n    ctypes.string_at(0)\nbreak_it()\n", (), -11,
        "Segmentation fault at train.py line 3 in break_it", "compiled code",
    ),
    (
        "import ctypes\nctypes.CDLL(None).abort()\n", (), -6,
        "Aborted at train.py line 2 in <module>", "compiled code",
    ),
    (
        "import os\nos.kill(os.getpid(), 9)\n", (), -9, "", "muster did not send this signal",
    ),
    ("breakpoint()\nx = 1\n", (), 1, "bdb.BdbQuit", "need a terminal"),
    (
        "import socket\nsocket.getaddrinfo('no-such-host.invalid', 443)\n", (), 1,
        "socket.gaierror: [Errno -", "network",
    ),
    ("raise ValueError('bad batch')\n", (), 1, "ValueError: bad batch", ""),
]  # fmt: skip


@pytest.mark.promise("F10")
@pytest.mark.parametrize(
    ("script", "arguments", "status", "what", "fix"), SCRIPTS, ids=[row[3][:24] for row in SCRIPTS]
)
def test_real_scripts_are_named_for_what_ended_them(
    tmp_path: Path, script: str, arguments: tuple[str, ...], status: int, what: str, fix: str
) -> None:
    code, tail, around = run(tmp_path, script, *arguments)
    assert code == status
    said = judged(code, tail, around)
    assert what in said[0]
    assert fix in said[1]
    assert bool(said[0]) == bool(what)
    assert bool(said[1]) == bool(fix)


def test_a_crash_names_the_thread_that_it_was_in(tmp_path: Path) -> None:
    script = (
        "import ctypes, threading, time\n"
        "for _ in range(40):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "time.sleep(0.2)\n"
        "ctypes.string_at(0)\n"
    )
    code, tail, around = run(tmp_path, script)
    assert judged(code, tail, around)[0] == "Segmentation fault at train.py line 5 in <module>"


def test_an_abort_of_compiled_code_is_named_by_what_it_said() -> None:
    tail = (
        b"terminate called after throwing an instance of 'c10::Error'\n"
        b"  what():  CUDA error: an illegal memory access was encountered\n"
        b"Fatal Python error: Aborted\n\n"
        b'Current thread 0x01 (most recent call first):\n  File "/c/train.py", line 3 in f\n'
    )
    said, _ = judged(-6, tail, Surroundings(code="/c"))
    assert said == "c10::Error: CUDA error: an illegal memory access was encountered"


NO_LOCAL_RANK = b"""Traceback (most recent call last):
  File "t.py", line 1, in <module>
KeyError: 'LOCAL_RANK'
"""


ABORTED = b"""terminate called without an active exception
Fatal Python error: Aborted

Thread 0x01 (most recent call first):
  File "/v/threading.py", line 3 in wait
"""


def test_an_abort_on_the_way_out_does_not_hide_what_began_it(tmp_path: Path) -> None:
    """gloo's threads may abort a process whose script has ended with an exception."""
    code, tail, around = run(tmp_path, "raise ValueError('bad batch')\n")
    assert judged(-6, tail + ABORTED, around)[0] == "ValueError: bad batch"
    assert judged(-6, ABORTED, around)[0] == "terminate called without an active exception"
    script = (
        "import ctypes, traceback\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()\n"
    )
    code, tail, around = run(tmp_path, script + "ctypes.string_at(0)\n")
    assert judged(code, tail, around)[0].startswith("Segmentation fault at train.py line 6")


@pytest.mark.parametrize("text", [real("no-rank"), real("default-group"), NO_LOCAL_RANK])
def test_without_a_process_group_the_distribution_is_named(text: bytes) -> None:
    alone = HERE._replace(undistributed=True)
    assert 'distribution={"torch_distributed": {"enabled": True}}' in judged(1, text, alone)[1]
    local = judged(1, text, alone._replace(isolation="netns"))[1]
    assert local.endswith(": --distribution torch_distributed")
    assert judged(1, text, HERE)[1] == ""  # with a distribution that is the script's own defect


def test_a_module_beside_the_script_s_folder_is_told_how_to_be_packed(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (tmp_path / "helpers.py").touch()
    code, tail, around = run(package, "import pkg.model\n")
    hint = judged(code, tail, around._replace(source=str(package), isolation="netns"))[1]
    assert "--source-dir . pkg/SCRIPT" in hint
    assert "requirements" not in hint
    code, tail, around = run(package, "import helpers\n")
    assert "--source-dir ." in judged(code, tail, around._replace(source=str(package)))[1]
    code, tail, around = run(package, "import neither\n")
    assert "requirements.txt" in judged(code, tail, around._replace(source=str(package)))[1]


@pytest.mark.parametrize(
    ("path", "raised", "fix"),
    [
        (
            "/venv/accelerate/state.py",
            "ZeroDivisionError: integer modulo by zero",
            "takes GPUs for granted",
        ),
        (
            "/venv/transformers/trainer.py",
            "ValueError: DistributedDataParallel device_ids and output_device arguments only work "
            "with single-device/multiple-device GPU modules or CPU modules",
            "use_cpu=True",
        ),
        (
            "/venv/keras/src/trainers/trainer.py",
            "ValueError: Attempt to convert a value (PerReplica:{...}) with an unsupported type",
            "TF_USE_LEGACY_KERAS=1",
        ),
        ("/opt/ml/code/train.py", "ZeroDivisionError: integer modulo by zero", ""),
    ],
)
def test_a_library_that_fails_by_itself_is_told_what_to_do(
    path: str, raised: str, fix: str
) -> None:
    words = f'Traceback (most recent call last):\n  File "{path}", line 9, in f\n{raised}\n'
    found = find_cause(1, raised, words, Surroundings())
    assert found.what == raised
    assert fix in found.fix and bool(found.fix) == bool(fix)


def test_a_package_of_the_vendors_toolkit_is_served_by_a_wheel_of_ours() -> None:
    raised = "ModuleNotFoundError: No module named 'sagemaker_training'"
    found = find_cause(1, raised, raised, Surroundings())
    assert "install the wheel muster_compat" in found.fix


@pytest.mark.parametrize("more", ["", " in muster-compat, which has what training scripts import"])
def test_a_module_that_the_wheel_of_ours_lacks_is_not_said_to_be_in_it(more: str) -> None:
    raised = f"ModuleNotFoundError: No module named 'sagemaker_training.files'{more}"
    found = find_cause(1, raised, raised, Surroundings())
    assert "install the wheel muster_compat" not in found.fix
    assert "muster_compat has no sagemaker_training.files" in found.fix
    assert "pip install sagemaker-training" in found.fix


def test_a_missing_network_is_told_by_where_the_host_is() -> None:
    tail = (
        b"Traceback (most recent call last):\n"
        b'  File "/opt/ml/code/train.py", line 1, in <module>\n'
        b"urllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>\n"
    )
    assert "--internet" in judged(1, tail, HERE._replace(isolation="netns"))[1]
    assert "--internet" not in judged(1, tail, HERE._replace(isolation="process"))[1]
    assert "VPC" in judged(1, tail, HERE)[1]
    ours = tail.replace(b"is unreachable", b"is unreachable: 10.77.0.2")
    assert judged(1, ours, HERE._replace(isolation="netns", addresses=("10.77.0.2",)))[1] == ""


def test_shared_memory_is_named_with_its_size() -> None:
    said = judged(1, real("loader-shm"), HERE._replace(shm_bytes=64 << 20))[1]
    assert said.startswith("/dev/shm has 64 MiB")
    assert "--shm-size=8g" in said
    assert more_shared_memory("docker") == "--shm-size 8g"
    bus = b"Fatal Python error: Bus error\n\nCurrent thread 0x1 (most recent call first):\n"
    bus += b'  File "/x.py", line 3 in f\n'
    assert "/dev/shm has 8 MiB" in judged(-7, bus, HERE._replace(shm_bytes=8 << 20))[1]
    assert "/dev/shm" not in judged(-7, bus, HERE._replace(shm_bytes=8 << 30))[1]


@pytest.mark.parametrize(
    ("name", "lost"),
    [("all-reduce", True), ("in-backward", True), ("store-lost", True), ("database", False)],
)
def test_a_rank_lost_a_peer_where_ranks_speak_and_not_where_it_spoke_to_others(
    name: str, lost: bool
) -> None:
    text = real(name)
    watcher = Watcher()
    watcher.feed(text, 1.0, True)
    evidence = watcher.evidence()
    assert evidence is not None
    assert looks_like_lost_peer(evidence.summary, last_traceback(text)) == lost


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("BrokenPipeError: [Errno 32] Broken pipe", False),
        ("redis.exceptions.ConnectionError: Error 111 connecting to 10.1.2.3:6379. "
         "Connection refused.", False),
        ("requests.ConnectionError: 10.77.0.21:80 Connection refused", False),
        ("RuntimeError: connect to 10.77.0.2:29500: Connection refused", True),
        ("RuntimeError: NCCL communicator was aborted on rank 1", True),
    ],
)  # fmt: skip
def test_an_address_of_the_job_makes_a_lost_connection_a_peer_s(text: str, lost: bool) -> None:
    assert looks_like_lost_peer(text, "", ("10.77.0.1", "10.77.0.2")) == lost


def test_a_shell_s_last_line_is_told() -> None:
    done = subprocess.run(["sh", "-c", "no-such-program"], capture_output=True, check=False)
    said, fix = judged(done.returncode, done.stderr, HERE)
    assert said.startswith("exit(127) without a traceback; its last line: ")
    assert "not found" in said
    assert fix

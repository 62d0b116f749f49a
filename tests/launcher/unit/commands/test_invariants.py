"""The checker of jobs reports each thing that it checks: no check is unable to fail."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.support.invariants import Declared, Left, check_host, check_job, check_tree
from tests.support.traces import Trace, tree
from tests.support.waiting import wait_until

RANK_FAILED = (
    b"UserScriptError: ValueError: bad batch (algo-2 rank 1, exit code 1)\n"
    b"Fix: see the last lines of rank 1\n"
    b"ExecuteUserScriptError: ExitCode 1\n"
    b"ValueError: bad batch\n"
)
LOST = b"PeerError: lost algo-3 (no heartbeat for 2 s)\nFix: look at the log of algo-3\n"
FORCED = b"StoppedError: 1 of 1 ranks did not stop in 3 s (algo-1 rank 0)\n"
CANARY = "canary-123"


def failed(code: int = 1, failure: bytes = RANK_FAILED, name: str = "algo-1") -> Left:
    """A host of a job that failed as it should."""
    return Left(name, code, "", f"FAILED x\nFix: y\nexit code {code}\n", failure, False, Path())


def succeeded(name: str = "algo-1") -> Left:
    return Left(name, 0, "hi\n", "SUCCEEDED all ranks exited 0\n", None, True, Path())


def stopped(failure: bytes | None = None) -> Left:
    err = "STOPPED by SIGTERM on algo-1, exit code 143\n"
    err += failure.decode() if failure else ""
    return Left("algo-1", 143, "", err, failure, False, Path())


KILLED = Left("algo-2", -9, "", "", None, False, Path())


@pytest.mark.parametrize(
    "lefts",
    [
        [succeeded(), succeeded("algo-2")],
        [failed(), failed(name="algo-2")],
        [failed(102, LOST), KILLED],
        [KILLED._replace(name="algo-1"), failed(102, LOST, "algo-2"), succeeded("algo-3")],
        [stopped()],
        [stopped(FORCED)],
        [
            failed(
                1,
                RANK_FAILED.replace(
                    b"exit code 1)", b"exit code 143 of the script, reported as 1)"
                ),
            )
        ],
        [failed(137, b"UserScriptError: the launcher torchrun was killed (on algo-1)\nFix: x\n")],
    ],
)
def test_a_job_that_ended_as_it_should_is_not_complained_of(lefts: list[Left]) -> None:
    assert check_job(lefts, Declared(canary=CANARY)) == []


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (failed(-15), "only SIGKILL may end"),
        (failed(-11), "only SIGKILL may end"),
        (failed(300, failure=LOST), "is no exit code"),
        (failed(105, b"InternalError: KeyError: 1\nFix: report it\n"), "is a defect"),
        (failed(102), "exit code 102 beside 'UserScriptError"),
        (failed(143), "exit code 143 beside 'UserScriptError"),
        (failed(1, LOST), "exit code 1 beside 'PeerError"),
        (failed(106, LOST), "exit code 106 beside 'PeerError"),
        (failed(2), "exit code 2 beside 'UserScriptError"),
        (failed(3, RANK_FAILED.replace(b"exit code 1)", b"exit code 3)")), "for the status 1"),
        (failed(failure=RANK_FAILED.replace(b"ExitCode 1", b"ExitCode -15"), code=137), "beside"),
        (failed(2)._replace(err="Encountered exit_code 1\n"), "says exit_code 1 and exits with 2"),
        (succeeded()._replace(failure=RANK_FAILED), "0 beside a failure file"),
        (succeeded()._replace(success=False), "0 without a success file"),
        (failed()._replace(success=True), "a success file beside exit code 1"),
        (failed()._replace(failure=None), "1 without a failure file"),
        (failed(failure=RANK_FAILED + b"x" * 1000), "the failure file has 1"),
        (failed(failure=RANK_FAILED + b"\xff"), "is not UTF-8"),
        (failed(failure=b"Oops: it broke\nFix: x\n"), "the first line has no class"),
        (failed(failure=b"UserScriptError:\nFix: x\n"), "the first line has no class"),
        (failed(failure=b""), "the first line has no class"),
        (failed(failure=RANK_FAILED.replace(b"Fix", b"Mend")), "the second line is no fix"),
        (failed(failure=RANK_FAILED + CANARY.encode()), "a secret was shown in its failure"),
        (failed()._replace(out=CANARY), "a secret was shown in its stdout"),
        (failed()._replace(err=CANARY), "a secret was shown in its stderr"),
        (succeeded()._replace(took_s=91), "it took 91.0 s, its bound is 90 s"),
    ],
)
def test_what_is_wrong_with_a_host_is_told(left: Left, told: str) -> None:
    assert [what for what in check_host(left, Declared(canary=CANARY)) if told in what]


@pytest.mark.parametrize(
    ("lefts", "told"),
    [
        ([failed(), failed(102, LOST, "algo-2")], "differ in their exit codes"),
        ([succeeded(), failed(name="algo-2")], "differ in their exit codes"),
        (
            [failed(), failed(1, RANK_FAILED.replace(b"bad batch", b"another", 1), "algo-2")],
            "differ in their first lines",
        ),
        ([failed(), KILLED, failed(102, LOST, "algo-3")], "differ in their exit codes"),
        ([succeeded()._replace(err="")], "but it says last ''"),
        ([failed()._replace(err="Traceback\n")], "not the end of the last block"),
        ([failed()._replace(err="exit code 1\nand more\n")], "not the end of the last block"),
        ([failed()._replace(err="exit code 2\n")], "but it says last 'exit code 2'"),
        ([failed(name="algo-1"), succeeded("algo-2")._replace(failure=b"")], "algo-2: exit code 0"),
    ],
)
def test_what_is_wrong_with_a_job_is_told(lefts: list[Left], told: str) -> None:
    assert [what for what in check_job(lefts) if told in what]


@pytest.mark.parametrize(
    ("lefts", "declared"),
    [
        ([failed(failure=b"own failure")], Declared(own_failure=True)),
        ([failed()._replace(failure=None)], Declared(no_status_file=True)),
        ([failed()._replace(err="")], Declared(no_screen=True)),
        ([failed(), failed(102, LOST, "algo-2")], Declared(apart=frozenset({"algo-2"}))),
        ([failed(105, b"InternalError: x y\nFix: z\n")], Declared(internal_error=True)),
        ([failed()._replace(took_s=95)], Declared(limit_s=100)),
        ([failed()._replace(out="canary")], Declared(canary="canary", scripts_show_it=True)),
        ([Left("algo-1", 3, "", "", None, False, Path())], Declared(not_ours=True)),
    ],
)
def test_a_difference_that_is_declared_is_let_pass(lefts: list[Left], declared: Declared) -> None:
    assert check_job(lefts, declared) == []
    assert check_job(lefts) or declared.canary


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass")
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "one.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("output/.muster-reserve", "left over"),
        ("output/data/.muster-x", "left over"),
        (".muster-code-1", "left over"),
        ("code/.muster-code-1", "left over"),
        ("code/train.py", "changed in the code folder"),
        ("code/build", "new in the code folder"),
        ("input/one.json", "changed outside"),
        ("input/two.json", "new outside"),
        ("errors", "new outside"),
        ("model/m.bin", ""),
        ("output/failure", ""),
        ("output/data/muster/summary.json", ""),
        ("checkpoints/1", ""),
    ],
)
def test_a_file_outside_the_folders_that_a_job_may_write_is_told(
    base: Path, path: str, told: str
) -> None:
    before = tree(base)
    (base / path).parent.mkdir(parents=True, exist_ok=True)
    (base / path).write_text("something else")
    wrong = check_tree(before, tree(base))
    assert [told in what for what in wrong] == [True] * bool(told)


def test_a_file_of_the_user_that_is_gone_is_told(base: Path) -> None:
    before = tree(base)
    (base / "code" / "train.py").unlink()
    assert check_tree(before, tree(base)) == [
        "removed in the code folder of the user: code/train.py"
    ]


def test_code_that_muster_unpacked_may_change_and_a_killed_host_leaves_things(base: Path) -> None:
    (base / "code" / "train.py").unlink()
    before = tree(base)
    (base / "code" / "train.py").write_text("new")
    assert check_tree(before, tree(base)) == []
    (base / ".muster-code-1").mkdir()
    assert check_tree(before, tree(base), killed=True) == []


@pytest.fixture
def marked() -> Iterator[tuple[Trace, subprocess.Popen[bytes]]]:
    """A process that carries a mark; it listens, and its child cleaned its environment."""
    script = (
        "import socket, subprocess, sys\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "child = subprocess.Popen(['sleep', '600'], env={})\n"
        "print(child.pid, s.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script],
        env={"A_MARK": "of-this-test"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        yield Trace("A_MARK", "of-this-test"), process
        process.kill()


def test_survivors_zombies_and_open_ports_are_seen(
    marked: tuple[Trace, subprocess.Popen[bytes]],
) -> None:
    trace, process = marked
    assert process.stdout is not None
    child, port = map(int, process.stdout.readline().split())
    assert {process.pid, child} == {one.pid for one in trace.look()}
    assert trace.open_sockets((), ()) == [f"port {port}"]
    assert set(trace.alive()) == {process.pid, child}
    os.kill(child, signal.SIGKILL)  # its parent does not reap it
    wait_until(lambda: trace.zombies() == [child], 5, "the zombie is not seen")
    process.kill()
    wait_until(lambda: process.pid in trace.zombies(), 5, "the zombie of ours is not seen")
    process.wait()
    assert trace.alive() == []
    assert process.pid not in trace.zombies()
    assert trace.open_sockets((), ()) == []


def test_a_port_of_the_job_that_somebody_took_over_is_seen() -> None:
    with socket.create_server(("127.77.0.5", 0)) as server:
        port = server.getsockname()[1]
        trace = Trace("A_MARK", "of-nobody")
        assert trace.open_sockets([port], ["127.77.0.5"]) == [f"port {port}"]
        assert trace.open_sockets([port], ["127.77.0.6"]) == []
        assert trace.open_sockets([port + 1], ["127.77.0.5"]) == []

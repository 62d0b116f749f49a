"""`muster history` and `muster logs` on real runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.commands.parser import main
from tests.launcher.support.local.local_runs import PROCESS
from tests.support.waiting import wait_until

SCRIPT = """\
import os, sys, time
print("ready", sys.argv[1:], os.environ.get("HF_TOKEN"), flush=True)
print("a warning", file=sys.stderr, flush=True)
if "--model" in sys.argv:
    open(os.path.join(os.environ["SM_MODEL_DIR"], "m"), "w").close()
while "--wait" in sys.argv and not os.path.exists(sys.argv[sys.argv.index("--wait") + 1]):
    time.sleep(0.02)
print("done", end="", flush=True)
"""


class Desk:
    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "src").mkdir()
        (home / "src/train.py").write_text(SCRIPT)

    def start(self, *argv: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "muster", *argv],
            cwd=self.home,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str, **environ: str) -> tuple[int, str, str]:
        process = self.start(*argv, **environ)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def must(self, *argv: str, **environ: str) -> str:
        code, out, err = self.run(*argv, **environ)
        assert code == 0, err
        return out

    def listed(self) -> Any:
        return json.loads(self.must("history", "--json"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def running(desk: Desk) -> Iterator[Path]:
    """A run of two hosts that goes on until the file is there."""
    go = desk.home / "go"
    process = desk.start("local", "src/train.py", "--hosts", "2", *PROCESS, "--", "--wait", str(go))
    out = desk.home / "muster-runs/latest/algo-2/logs/rank-1.out"
    try:
        wait_until(lambda: out.exists() and "ready" in out.read_text(), 60)
        yield go
    finally:
        go.touch()
        process.communicate(timeout=60)


def test_runs_are_listed_shown_and_run_again_with_the_same_options(desk: Desk) -> None:
    assert "no runs" in desk.must("history")
    desk.must("local", "src/train.py", *PROCESS, "--env", "HF_TOKEN=sesame-1", "--", "-x", "a b")
    (first,) = desk.listed()
    assert (first["state"], first["code"], first["hosts"]) == ("succeeded", 0, ["algo-1"])
    assert first["command"]["argv"][-2:] == ["-x", "a b"]
    folder = desk.home / "muster-runs" / first["name"]
    kept = (folder / "command.json").read_text()
    assert "sesame" not in kept
    assert (folder / "command.json").stat().st_mode & 0o777 == 0o600
    assert first["name"] in desk.must("history")
    assert "src/train.py" in desk.must("history", "show")
    code, _, err = desk.run("history", "again")
    assert (code, "export HF_TOKEN" in err) == (2, True)
    out = desk.must("history", "again", HF_TOKEN="sesame-2")
    assert "ready ['-x', 'a b'] sesame-2" in out
    assert len(desk.listed()) == 2
    desk.must("local", "src/train.py", *PROCESS, "--", "\033[31m")
    for words in ((), ("show",)):
        assert "\033" not in desk.must("history", *words)


def test_a_failed_run_that_is_run_again_fails_again(desk: Desk) -> None:
    assert desk.run("local", "src/none.py", *PROCESS)[0] == 2
    assert desk.listed() == []
    (desk.home / "src/fail.py").write_text("import sys; sys.exit(7)\n")
    assert desk.run("local", "src/fail.py", *PROCESS)[0] == 7
    assert desk.run("history", "again", "latest")[0] == 7
    assert [run["code"] for run in desk.listed()] == [7, 7]


def test_what_is_in_use_or_holds_a_model_is_not_removed(desk: Desk, running: Path) -> None:
    (run,) = desk.listed()
    assert run["state"] == "running"
    code, _, err = desk.run("history", "remove", run["name"], "--yes")
    assert (code, "in use" in err) == (2, True)
    assert (desk.home / "muster-runs/latest/algo-2/logs/rank-1.out").exists()


def test_models_are_removed_only_when_that_is_asked_for(desk: Desk) -> None:
    desk.must("local", "src/train.py", *PROCESS, "--", "--model")
    desk.must("local", "src/train.py", *PROCESS)
    bare, trained = (run["name"] for run in desk.listed())
    code, _, err = desk.run("history", "remove", trained)
    assert (code, "model: 1" in err, "--yes" in err) == (2, True, True)
    assert (desk.home / "muster-runs" / trained / "model/m").exists()
    desk.must("history", "remove", bare)
    desk.must("history", "remove", trained, "--yes")
    assert sorted(os.listdir(desk.home / "muster-runs")) == [".gitignore"]


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["history", "shwo"], "did you mean 'show'?"),
        (["history", "show", "nothing"], "there are no runs"),
        (["history", "remove"], "which RUN?"),
        (["logs"], "there are no runs"),
        (["logs", "--rank", "x"], "--rank"),
    ],
)
def test_a_slip_is_answered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    answer: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert answer in shown.err


SPOILT = [
    ("summary.json", "{"),
    ("summary.json", '{"outcome": [1], "local": 3}'),
    ("summary.json", '{"outcome": {"result": 5, "headline": [1]}, "local": {"seconds": "a"}}'),
    ("command.json", '{"argv": "abc", "cwd": 1, "started": 0}'),
    ("command.json", '{"argv": [], "cwd": "/", "started": NaN}'),
    ("command.json", '{"argv": [], "cwd": "/", "started": 1e300}'),
    ("command.json", "[" * 100_000),
    ("summary.json", "[" * 100_000),
    ("summary.json", '{"local": {"seconds": 1' + "0" * 400 + "}}"),
    ("summary.json", '{"outcome": {"result": "\\ud800\\u001b[2J"}}'),
]


def test_records_that_jobs_wrote_over_hide_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"spoilt-{number}" for number in range(len(SPOILT))]
    for name, (file, text) in zip([*names, "whole"], [*SPOILT, (".muster-run", "")], strict=True):
        folder = tmp_path / "muster-runs" / name
        folder.mkdir(parents=True)
        (folder / ".muster-run").touch()
        (folder / file).write_text(text)
    assert main(["history"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not [name for name in [*names, "whole"] if name not in out]
    for name in names:
        assert main(["history", "show", name]) == 0
        assert name in capsys.readouterr().out
        assert main(["history", "again", name]) == 2
        assert "no command line" in capsys.readouterr().err


def test_of_several_runs_none_is_removed_where_one_is_unknown(desk: Desk) -> None:
    folder = desk.home / "muster-runs/first"
    folder.mkdir(parents=True)
    (folder / ".muster-run").touch()
    code, _, err = desk.run("history", "remove", "first", "frist")
    assert (code, "no run 'frist', did you mean 'first'?" in err) == (2, True)
    assert folder.exists()


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("history | true", 0, ""),
        ("history > /dev/full", 1, "muster: cannot print: No space left on device\n"),
        ("history remove 2>&1 | true", 2, ""),  # it is an error also where nobody reads it
    ],
)
def test_what_nobody_reads_or_cannot_be_written_is_no_trace(
    desk: Desk, command: str, code: int, said: str
) -> None:
    (desk.home / "muster-runs/first").mkdir(parents=True)
    (desk.home / "muster-runs/first/.muster-run").touch()
    command = f"set -o pipefail; {sys.executable} -m muster {command}"
    end = subprocess.run(
        ["bash", "-c", command], cwd=desk.home, capture_output=True, text=True, check=False
    )
    assert (end.returncode, end.stderr) == (code, said)


def test_logs_are_those_of_the_ranks(desk: Desk) -> None:
    desk.must("local", "src/train.py", "--hosts", "2", *PROCESS)
    code, out, err = desk.run("logs")
    assert code == 0
    assert out.splitlines() == [
        *("[algo-1:0] ready [] None", "[algo-1:0] done"),
        *("[algo-2:1] ready [] None", "[algo-2:1] done"),
    ]
    assert err.splitlines() == ["[algo-1:0] a warning", "[algo-2:1] a warning"]
    assert desk.must("logs", "latest", "--rank", "1") == "ready [] None\ndone"
    code, _, err = desk.run("logs", "--rank", "2")
    assert (code, "no output of rank 2" in err) == (2, True)


def test_logs_follow_a_run_until_it_ends(desk: Desk, running: Path) -> None:
    follower = desk.start("logs", "--rank", "1", "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline().startswith("ready")
    assert follower.poll() is None
    running.touch()
    out, _ = follower.communicate(timeout=60)
    assert out == "done"
    assert follower.returncode == 0

"""The number of a job that Slurm has taken, whatever became of sbatch's answer."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.commands.parser import main
from muster.local.record import runfolder
from muster.submit import command, folder, slurm
from muster.submit.values import Submission, Submitted
from tests.launcher.unit.submit.test_submit_script import sbatch
from tests.support.waiting import wait_until, within

WORDS = ("submit", "train.py", "--on", "slurm", "--output", "run")


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ("echo Project has 1234 core hours left; echo; echo 4711", None),
        ("echo 99; echo '4711;far'; echo 7 hours left", "far"),
        ("echo Submitted", None),
    ],
)
def test_what_a_site_prints_around_the_number_is_not_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, where: str | None
) -> None:
    """And an answer without one is as good as none: the queue is asked."""
    sbatch(tmp_path, monkeypatch)
    program(tmp_path, "sbatch", said)
    program(tmp_path, "squeue", f"echo 4710 /else; echo 4711 {tmp_path}/run")
    assert main([*WORDS]) == 0
    kept = json.loads(Path("run/submitted.json").read_text())
    assert kept["job_id"] == "4711" and kept["where"].get("cluster") == where
    found = folder.submitted("run")
    assert found is not None
    words = slurm.inside(found)  # where `muster ps` asks
    assert words[0] == "srun" and ("--clusters=far" in words) == (where == "far")


def test_an_answer_without_a_number_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch(tmp_path, monkeypatch)
    program(tmp_path, "sbatch", "echo welcome")
    program(tmp_path, "squeue", ":")
    assert main([*WORDS]) == 2
    assert "sbatch said 'welcome', not a job's number" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.parametrize("refused", [False, True])
def test_who_interrupts_the_submission_leaves_no_job_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Slurm has taken the job, and its answer is on the way. One that cannot be ended keeps its
    folder."""
    sbatch(tmp_path, monkeypatch)
    program(tmp_path, "sbatch", "touch taken; exec tail -f /dev/null")
    program(tmp_path, "squeue", f"echo 4711 {tmp_path}/run")
    program(tmp_path, "scancel", "exit 1" if refused else 'echo "$@" >cancelled')
    submit = subprocess.Popen(
        [sys.executable, "-m", "muster", *WORDS],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(Path("taken").exists, 30, lambda: "sbatch was not asked")
    os.killpg(submit.pid, signal.SIGINT)
    _, err = submit.communicate(timeout=within(30))
    if refused:
        assert "the job stays in the queue" in err and "slurm job 4711, in run" in err
        assert Path("run/submitted.json").exists()
    else:
        assert "cancelled slurm job 4711" in err and submit.returncode in (130, -signal.SIGINT)
        assert Path("cancelled").read_text() == "4711\n" and not Path("run").exists()


def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a job that has ended; from now on sbatch takes none."""
    sbatch(tmp_path, monkeypatch)
    assert main([*WORDS]) == 0
    Path("run/n1").mkdir()
    for name, text in {"n1/.muster-run": "", "n1/weights": "mine", "summary.json": "{}"}.items():
        Path("run", name).write_text(text)
    program(tmp_path, "sbatch", "echo invalid partition >&2; exit 1")
    program(tmp_path, "squeue", ":")


def test_a_job_that_was_in_the_folder_before_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has ended, and is in the queue until its nodes have tidied up."""
    ended(tmp_path, monkeypatch)
    program(tmp_path, "squeue", f"echo 4711 {tmp_path}/run")
    assert main([*WORDS, "--overwrite"]) == 2
    assert Path("run/n1/weights").read_text() == "mine"


def test_a_terminal_that_closes_before_the_job_is_kept_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its number is told: nobody would find the job again."""
    sbatch(tmp_path, monkeypatch)
    program(tmp_path, "scancel", 'echo "$@" >cancelled')
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    monkeypatch.setattr(command, "tell", lambda text: os.kill(os.getpid(), signal.SIGHUP))
    try:
        assert main([*WORDS]) == 130
    finally:
        signal.signal(signal.SIGHUP, before)
    assert Path("cancelled").read_text() == "4711\n"


def test_a_job_that_was_kept_has_run_whatever_comes_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As hosts by ssh: the record and the models are there, and Ctrl-C comes once more."""
    sbatch(tmp_path, monkeypatch)

    def run_it(job: Submission, text: str) -> Submitted:
        folder.keep(Submitted("hosts", "7", "train", 1, job.run))
        Path(job.run, "model").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "hand_over", run_it)
    assert main([*WORDS]) == 130
    assert Path("run/model").is_dir()


@pytest.mark.parametrize("name", ["secret", "job.sbatch"])
def test_a_full_disk_is_said_whichever_file_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Here the engine's own, before it has the job; nothing is left of the run."""
    sbatch(tmp_path, monkeypatch)
    real = os.open

    def full(path: str, flags: int, *more: int, **kinds: int) -> int:
        if str(path).endswith(name):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *more, **kinds)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        assert main([*WORDS]) == 2
    assert "the run folder cannot be written: No space left" in capsys.readouterr().err
    assert not Path("run").exists()


def test_what_cannot_be_deleted_of_an_older_run_is_not_the_one_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open files on NFS, folders without the right to write: they stay after the submit."""
    ended(tmp_path, monkeypatch)
    Path("run/.earlier/n1").mkdir(parents=True)
    Path("run/.earlier/n1/weights").write_text("of an older one")
    monkeypatch.setattr(runfolder, "drop_earlier", lambda path: None)
    assert main([*WORDS, "--overwrite"]) == 2
    assert Path("run/n1/weights").read_text() == "mine"


@pytest.mark.parametrize("name", [".earlier", ".earlier-moving"])
def test_a_run_is_removed_with_what_was_set_aside_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As a submit that was killed leaves it."""
    ended(tmp_path, monkeypatch)
    Path("run", name, "n1").mkdir(parents=True)
    Path("run", name, "n1", "weights").write_text("of an older one")
    assert main(["history", "remove", "run", "--yes"]) == 0
    assert not Path("run").exists()


def test_a_job_that_the_queue_may_have_is_to_be_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A busy controller answers neither; a second job in the same folder would be one too many."""
    sbatch(tmp_path, monkeypatch)
    for name in ("sbatch", "squeue"):
        program(tmp_path, name, f"echo {name}: Socket timed out >&2; exit 1")
    assert main([*WORDS]) == 2
    said = capsys.readouterr().err
    assert "sbatch: Socket timed out" in said, said
    assert "look for train in the queue before you submit again" in said, said
    program(tmp_path, "squeue", ":")
    assert main([*WORDS]) == 2
    assert "look for" not in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    assert main([*WORDS]) == 2
    assert "submit from a machine that has it" in capsys.readouterr().err

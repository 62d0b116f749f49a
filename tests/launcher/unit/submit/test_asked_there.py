"""A question about a submitted run is passed on once, to where its leader runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.arguments import UsageError
from muster.submit import folder, follow, slurm
from muster.submit.values import Submitted
from tests.support.waiting import within

SRUN = """\
#!/bin/sh
echo called >>"$SEEN"
[ "$(wc -l <"$SEEN")" -lt 3 ] || exit 99
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


def test_options_are_passed_on_whatever_the_run_is_called(tmp_path: Path) -> None:
    """Also where one has the run's name."""
    run, seen = tmp_path / "0", tmp_path / "seen"
    run.mkdir()
    for name, text in {"srun": 'echo "$@" >"$SEEN"', "squeue": "echo RUNNING None"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    folder.keep(Submitted("slurm", "7", "train", 1, str(run), {"muster": "srun muster"}))
    subprocess.run(
        [sys.executable, "-m", "muster", "stacks", "0", "--ranks", "0", "--all-threads"],
        cwd=tmp_path,
        env={**os.environ, "SEEN": str(seen), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        timeout=within(30),
        check=True,
    )
    assert seen.read_text().split() == (
        ["muster", "stacks", "--ranks=0", "--all-threads", "--here", str(run)]
    )


@pytest.mark.parametrize("command", ["ps", "stacks", "stop"])
def test_a_leader_that_does_not_listen_yet_is_asked_once(tmp_path: Path, command: str) -> None:
    run, seen = tmp_path / "run", tmp_path / "seen"
    run.mkdir()
    for name, text in {"srun": SRUN, "squeue": "#!/bin/sh\necho RUNNING None\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    there = f"srun --overlap {sys.executable} -m muster"
    folder.keep(Submitted("slurm", "7", "train", 1, str(run), {"muster": there}))
    done = subprocess.run(
        [sys.executable, "-m", "muster", command, str(run)],
        env={**os.environ, "SEEN": str(seen), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=within(30),
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "is not running" in done.stderr
    assert seen.read_text().split() == ["called"]


STATES = {  # what squeue says each time; scontrol says what its file holds
    "squeue": 'if rm "$SEEN"; then echo RUNNING None; else echo Invalid job id >&2; exit 1; fi',
    "scontrol": "cat scontrol-says >&2; exit 1",
}


def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> int:
    """The exit code of a job that runs, and at the next look is in no queue any more."""
    for name, text in STATES.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "run").mkdir()
    (tmp_path / "scontrol-says").write_text(says)
    (tmp_path / "seen").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = Submitted("slurm", "7", "train", 1, str(tmp_path / "run"), {"muster": "srun muster"})
    folder.keep(job)
    return follow.follow(slurm, job)


@pytest.mark.parametrize(("within_s", "code"), [(30.0, 143), (0.0, 1)])
def test_a_job_that_nobody_looked_at_for_long_was_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_s: float, code: int
) -> None:
    """The machine of the one who follows slept: the engine forgot a job that ended meanwhile."""
    monkeypatch.setattr(follow, "FORGETS_S", within_s, raising=False)
    assert followed(tmp_path, monkeypatch, "Invalid job id specified") == code
    kept = folder.submitted("run")
    assert kept is not None and kept.code == (code if code == 143 else None)


def test_a_scontrol_that_fails_says_nothing_about_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PATIENCE_S", 0.0)
    with pytest.raises(UsageError, match="scontrol: Unable to contact slurm controller"):
        followed(tmp_path, monkeypatch, "Unable to contact slurm controller")
    kept = folder.submitted("run")
    assert kept is not None and kept.code is None


def test_the_rest_of_a_file_is_read_from_the_file_as_it_is_now(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """On NFS an open file may be seconds old, and one that is opened anew is not."""
    log, now = tmp_path / "engine.log", tmp_path / "now"
    log.write_text("began\n")
    tail = follow.FileTail(str(log))
    tail.more()
    now.write_text("began\nended\n")
    now.replace(log)
    tail.rest()
    assert capfdbinary.readouterr().out == b"began\nended\n"


def test_a_node_that_cannot_see_the_folder_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script never began, and its log is empty: the engine's own answer is all there is."""
    said = "JobState=FAILED Reason=JobLaunchFailure ExitCode=0:53"
    for name, text in {"squeue": "", "scontrol": f"echo {said}"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = slurm.state(Submitted("slurm", "7", "train", 1, str(tmp_path)))
    assert (found.word, found.code) == ("failed", 1)  # kept: the folder is free again
    assert f"the node could not open {tmp_path}/engine.log" in found.why
    assert "all nodes must share the run folder" in found.why

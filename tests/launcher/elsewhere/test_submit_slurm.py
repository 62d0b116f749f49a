"""`muster submit` on a real Slurm of two nodes: the job's own truth, from submission to its end."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launcher.support.slurm import NODES, Slurm, cluster
from tests.support.waiting import wait_until, within

SCRIPT = """\
import json, os, signal, sys, time
print("said", json.dumps([os.environ.get("TOKEN"), sys.argv[1:]]), flush=True)
what, rank = sys.argv[1], os.environ["SM_CURRENT_HOST_RANK"]
if what == "stay":
    def save(*_):
        open(os.path.join(os.environ["SM_MODEL_DIR"], "saved"), "w").close()
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("stays", flush=True)
    while True:
        time.sleep(0.05)
"""


class Desk(NamedTuple):
    """Where a person types: the folder that nodes share, on the first of them."""

    slurm: Slurm
    folder: Path
    environ: Mapping[str, str]

    def muster(self, *words: str, code: int = 0) -> str:
        """What a command says on both streams, which ends with that code."""
        done = subprocess.run(
            self._command(*words),
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=within(120),
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command(*words),
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _command(self, *words: str) -> list[str]:
        typed = f"cd {shlex.quote(str(self.folder))} && exec {shlex.join(['muster', *words])}"
        return [*self.slurm.on_first(), "sh", "-c", typed]

    def submit(self, run: str, *words: str, code: int = 0) -> str:
        return self.muster(
            "submit", "train.py", "--on", "slurm", "--output", run, *words, code=code
        )

    def log(self, run: str) -> str:
        path = self.folder / run / "engine.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, run: str, text: str, times: int = 2) -> None:
        wait_until(lambda: self.log(run).count(text) >= times, 60, lambda: self.log(run))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def desk(slurm: Slurm, tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "train.py").write_text(SCRIPT)
    yield Desk(slurm, tmp_path, slurm.environ)
    slurm.wait_clean()


def test_a_job_runs_as_it_was_typed_and_its_record_is_read_afterwards(desk: Desk) -> None:
    run = "a run"  # whose name sbatch, and its script, have to quote
    words = ["--hosts", "2", "--env", "TOKEN=a b", "--follow", "--", "it's", '"$HOME"']
    said = desk.submit(run, *words)
    told = re.findall(r"said (.*)", said)
    assert [json.loads(one) for one in told] == [["a b", ["it's", '"$HOME"']]] * len(NODES)
    assert "queued" in said and said.rstrip().endswith("succeeded (COMPLETED)")
    assert "succeeded" in desk.muster("submit", "--status", run)
    figures = json.loads(desk.muster("report", run, "--json"))
    assert figures["verdict"]["level"] == "good", figures["verdict"]
    assert figures["facts"]["command"].startswith("muster submit train.py --on slurm")
    shown = desk.muster("history", "show", run)
    assert "succeeded, exit code 0" in shown and "other" not in shown, shown
    kept = {path.name: path.stat().st_mode & 0o077 for path in (desk.folder / run).iterdir()}
    assert not kept["secret"] and not kept["environ.json"]


def test_a_running_job_is_asked_and_stopped_where_it_runs(desk: Desk) -> None:
    desk.submit("asked", "--hosts", "2", "--", "stay")
    desk.wait_for("asked", "stays")
    # a run can be asked a moment after its ranks began
    wait_until((desk.folder / "asked/n1/control").exists, 20, lambda: desk.log("asked"))
    rows = desk.muster("ps", "asked").splitlines()[1:]
    assert [row.split()[0] for row in rows] == list(NODES)
    assert "train.py" in desk.muster("stacks", "asked", "--ranks", "1")
    assert "in use by its job" in desk.muster("history", "remove", "asked", "--yes", code=2)
    assert "is in use by" in desk.submit("asked", "--hosts", "1", "--overwrite", code=2)
    desk.muster("stop", "asked")
    said = desk.muster("submit", "--follow", "asked", code=143)
    assert said.count("saved") == 2 and "stopped, exit code 143" in said
    assert "is not running: slurm job" in desk.muster("ps", "asked", code=2)
    assert sorted((desk.folder / "asked").glob("n?/opt/ml/model/saved"))


def test_a_job_that_waits_can_be_cancelled(desk: Desk) -> None:
    desk.submit("waits", "--hosts", "2", "--set", "begin=now+1hour", "--", "stay")
    assert "queued" in desk.muster("submit", "--status", "waits")
    assert "may begin yet" in desk.muster("history", "remove", "waits", code=2)
    assert "may begin yet" in desk.submit("waits", "--hosts", "1", code=2)
    theirs = {"SCANCEL_STATE": "RUNNING", "SCANCEL_NAME": "another", "POSIXLY_CORRECT": "1"}
    typing = desk._replace(environ={**desk.environ, **theirs})
    assert "queued" in typing.muster("submit", "--status", "waits")
    typing.muster("submit", "--cancel", "waits")
    assert "stopped, exit code 143" in desk.muster("submit", "--status", "waits")
    assert "stopped, exit code 143" in desk.muster("history", "show", "waits")
    desk.muster("history", "remove", "waits")


LOST_ANSWER = """\
#!/bin/sh
{real} "$@" >/dev/null
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2
exit 1
"""


def test_a_job_whose_number_was_lost_on_its_way_is_found(desk: Desk) -> None:
    """A busy controller takes it, and answers too late."""
    real = shutil.which("sbatch", path=desk.slurm.environ["PATH"])
    (desk.folder / "bin").mkdir()
    (desk.folder / "bin/sbatch").write_text(LOST_ANSWER.format(real=real))
    (desk.folder / "bin/sbatch").chmod(0o755)
    path = f"{desk.folder / 'bin'}:{desk.slurm.environ['PATH']}"
    held = desk._replace(environ={**desk.slurm.environ, "PATH": path})
    held.submit("late", "--hosts", "2", "--set", "hold", "--", "stay")
    desk.muster("submit", "--cancel", "late")
    assert not desk.slurm.client("squeue", "--noheader")


SILENT_ONCE = """\
#!/bin/sh
[ -e {seen} ] && exec {real} "$@"
touch {seen}
echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2
exit 1
"""


def test_a_controller_that_does_not_answer_yet_is_asked_again(desk: Desk) -> None:
    """Its words are said, and no state that nobody knows."""
    desk.submit("asked-twice", "--hosts", "2", "--set", "hold", "--", "end")
    real = shutil.which("squeue", path=desk.slurm.environ["PATH"])
    (desk.folder / "bin").mkdir()
    (desk.folder / "bin/squeue").write_text(SILENT_ONCE.format(real=real, seen=desk.folder / "s"))
    (desk.folder / "bin/squeue").chmod(0o755)
    path = f"{desk.folder / 'bin'}:{desk.slurm.environ['PATH']}"
    kept = json.loads((desk.folder / "asked-twice/submitted.json").read_text())
    desk.slurm.client("scancel", kept["job_id"])
    looking = desk._replace(environ={**desk.slurm.environ, "PATH": path})
    said = looking.muster("submit", "--follow", "asked-twice", code=143)
    assert "Unable to contact slurm controller; asking again" in said, said
    assert "unknown" not in said, said


def test_a_host_where_muster_cannot_start_leaves_the_leader_its_word(desk: Desk) -> None:
    """srun sees a task that has ended, and the leader still waits for the host to join."""
    python = desk.folder / "python"
    python.write_text(f'#!/bin/sh\n[ $(uname -n) != n2 ] || exit 127\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = ["--hosts", "2", "--retries", "0", "--grace", "1", "--env", "MUSTER_JOIN_S=25"]
    desk.submit("absent", *words, "--python", str(python))
    said = desk.muster("submit", "--follow", "absent", code=102)
    assert "n2 did not join within 25 s (1 of 2 present)" in said, said
    assert "failed, exit code 102" in desk.muster("history", "show", "absent")


@pytest.mark.promise("E06")
def test_who_stops_looking_does_not_end_the_job(desk: Desk) -> None:
    watcher = desk.start(
        *("submit", "train.py", "--on", "slurm", "--output", "goes-on", "--hosts", "2"),
        *("--follow", "--", "stay"),
    )
    desk.wait_for("goes-on", "stays")
    watcher.send_signal(signal.SIGINT)
    said, _ = watcher.communicate(timeout=within(30))
    assert watcher.returncode == 130 and "the job goes on" in said, said
    assert "running" in desk.muster("submit", "--status", "goes-on")
    desk.muster("submit", "--cancel", "goes-on")
    desk.muster("submit", "--follow", "goes-on", code=143)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "partition=nowhere"), "sbatch --parsable: sbatch: error: invalid partition"),
        (("--set", "frobnicate=1"), "unrecognized option '--frobnicate=1'"),
    ],
)
@pytest.mark.promise("E05")
def test_what_slurm_refuses_is_told_and_leaves_nothing(
    desk: Desk, words: tuple[str, ...], said: str
) -> None:
    assert said in desk.submit("refused", "--hosts", "2", *words, code=2)
    assert not (desk.folder / "refused").exists()


@pytest.mark.long
@pytest.mark.promise("E03")
def test_the_time_limit_stops_with_time_to_save_and_the_job_goes_on(desk: Desk) -> None:
    limits = ["--set", "time=1", "--grace", "5", "--retries", "1"]
    desk.submit("limited", "--hosts", "2", *limits, "--", "stay")
    number = json.loads((desk.folder / "limited/submitted.json").read_text())["job_id"]
    desk.wait_for("limited", "saved")
    state = "queued (BeginTime)"  # Slurm lets two minutes pass first
    wait_until(
        lambda: state in desk.muster("submit", "--status", "limited"),
        60,
        lambda: desk.slurm.story(number),
    )
    desk.slurm.client("scontrol", "update", f"JobId={number}", "StartTime=now")
    desk.wait_for("limited", "saved", 4)
    said = desk.muster("submit", "--follow", "limited", code=143)
    assert said.count("muster stop: stopping") == 2 and "SIGTERM: stopping" not in said, said
    attempts = json.loads(desk.muster("report", "limited", "--json"))["facts"]["attempt"]
    assert attempts == "2"


@pytest.mark.promise("E03")
def test_a_stop_that_the_leader_cannot_be_told_reaches_all_the_same(desk: Desk) -> None:
    deaf = desk.folder / "python"
    deaf.write_text(f'#!/bin/sh\n[ "$3" != stop ] || exit 2\nexec {sys.executable} "$@"\n')
    deaf.chmod(0o755)
    words = ["--hosts", "2", "--retries", "0", "--python", str(deaf), "--", "stay"]
    desk.submit("deaf", *words)
    desk.wait_for("deaf", "stays")
    number = json.loads((desk.folder / "deaf/submitted.json").read_text())["job_id"]
    desk.slurm.client("scancel", "--batch", "--signal=TERM", number)
    desk.wait_for("deaf", "saved")
    said = desk.muster("submit", "--follow", "deaf", code=143)
    assert "SIGTERM: stopping" in said, said


def test_doctor_says_what_the_cluster_lacks(desk: Desk) -> None:
    found = json.loads(desk.muster("doctor", "--engine", "slurm", "--json"))
    levels = {one["name"]: one["level"] for one in found["checks"]}
    assert levels == dict.fromkeys(("commands", "controller", "nodes", "KillWait"), "OK"), found
    assert "2 of 2 nodes" in desk.muster("doctor", "--engine", "slurm")
    assert "did you mean 'slurm'" in desk.muster("doctor", "--engine", "slrum", code=2)

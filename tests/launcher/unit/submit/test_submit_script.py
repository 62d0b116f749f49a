"""The batch script of Slurm: a shell reads every word as it was given, and what cannot be is
refused before anything is made."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from muster.arguments import UsageError
from muster.commands.parser import main
from muster.local.record.layout import BATCH_SCRIPT
from muster.submit import folder, slurm_script
from muster.submit.values import Submission, Submitted
from tests.launcher.unit.submit.test_submit_arguments import base
from tests.support.waiting import within

# stands for every program of Slurm's that the script calls, and writes down what it was given
WITNESS = """\
#!{python}
import json, os, signal, sys, time
name = os.path.basename(sys.argv[0])
with open(os.path.join(os.environ["SEEN"], name), "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if name == "squeue":
    known = dict(os.environ, STATE=os.environ.get("STATE", "RUNNING"))
    said = known.get("STATE" if "%T" in sys.argv else "END", "")
    print(known.get("SQUEUE_FORMAT2", said))
    sys.exit(not said)
if name == "srun" and "sh" in sys.argv:
    print(os.environ.get("BLIND", ""))
    sys.exit(int(os.environ.get("UNABLE", "0")))
if name == "scontrol":
    sys.exit(int(os.environ.get("REFUSED", "0")))
if name == "srun" and "run" in sys.argv:
    run = sys.argv[sys.argv.index("--output") + 1]
    with open(os.path.join(os.environ["SEEN"], "variables"), "w") as file:
        json.dump(dict(os.environ), file)
    with open(os.path.join(run, "summary.json"), "w") as file:
        file.write(os.environ.get("SAID", ""))
    if "NEAR" in os.environ:  # the time limit
        os.kill(os.getppid(), signal.SIGTERM)
        queue, until = os.path.join(os.environ["SEEN"], "squeue"), time.monotonic() + 20
        while "%T" not in open(queue).read() and time.monotonic() < until:
            time.sleep(0.02)
    sys.exit(int(os.environ["CODE"]))
"""


def job(tmp_path: Path, **more: object) -> Submission:
    request = base(tmp_path)._replace(hosts=3)
    run = str(tmp_path / 'a run\'s $HOME "folder"')
    values: dict[str, object] = {"request": request, "name": "train", "run": run, "python": "py"}
    return Submission(**{**values, **more})  # type: ignore[arg-type]


def run_it(tmp_path: Path, made: Submission, code: int, **environ: str) -> tuple[int, Path]:
    """The script's exit code, and the folder that holds what its programs were given."""
    seen = tmp_path / "seen"
    seen.mkdir()
    for name in ("srun", "squeue", "scontrol", "scancel"):
        program = seen / f"bin-{name}" / name
        program.parent.mkdir()
        program.write_text(WITNESS.format(python=sys.executable))
        program.chmod(0o755)
    path = ":".join(str(one) for one in seen.glob("bin-*"))
    os.makedirs(made.run, exist_ok=True)
    script = Path(made.run, BATCH_SCRIPT)
    script.write_text(slurm_script.render(made))
    around = {"SEEN": str(seen), "CODE": str(code), "SLURM_JOB_ID": "7", **environ}
    done = subprocess.run(
        ["bash", str(script)],
        env={**os.environ, **around, "PATH": f"{path}:{os.environ['PATH']}"},
        timeout=within(30),
        check=False,
    )
    return done.returncode, seen


def variables(seen: Path) -> dict[str, str]:
    """Those of the step that runs the job."""
    found: dict[str, str] = json.loads((seen / "variables").read_text())
    return found


def test_every_word_arrives_as_it_was_given(tmp_path: Path) -> None:
    words = ("--text=a b", "it's", '"$HOME"', "`id`", "line\nbreak", "")
    made = job(tmp_path)
    made = made._replace(request=made.request._replace(arguments=words))
    code, seen = run_it(tmp_path, made, 0)
    _, given = (json.loads(line) for line in (seen / "srun").read_text().splitlines())
    assert code == 0
    assert tuple(given[given.index("--") + 1 :]) == words
    assert given[given.index("--output") + 1] == made.run
    assert {"--nodes=3", "--ntasks=3", "--kill-on-bad-exit=0"} < set(given)


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [(0, 0, False), (1, 0, False), (103, 0, False), (143, 0, False),
     (102, 0, True), (106, 1, True), (102, 2, False)],
)  # fmt: skip
def test_a_job_begins_again_where_that_helps(
    tmp_path: Path, code: int, restarts: int, again: bool
) -> None:
    made = job(tmp_path, retries=2)
    found, seen = run_it(tmp_path, made, code, SLURM_RESTART_COUNT=str(restarts))
    assert found == code
    assert (seen / "scontrol").exists() == again


@pytest.mark.parametrize(("grace_s", "told"), [(120.0, "120"), (None, None)])
def test_a_longer_grace_is_the_hosts_time_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace_s: float | None, told: str | None
) -> None:
    """Else it is what KillWait leaves, which they know by themselves."""
    monkeypatch.delenv("MUSTER_STOP_TOTAL_S", raising=False)
    _, seen = run_it(tmp_path, job(tmp_path, grace_s=grace_s), 0)
    assert variables(seen).get("MUSTER_STOP_TOTAL_S") == told


@pytest.mark.parametrize(("said", "found"), [('    "exit_code": 42,', 42), ("", 102)])
def test_a_host_that_was_killed_hides_no_outcome(tmp_path: Path, said: str, found: int) -> None:
    """srun has the killed one's 137; the leader's word counts, and one that left none was lost."""
    made = job(tmp_path)
    code, _ = run_it(tmp_path, made, 137, SAID=f'{{\n  "outcome": {{\n{said}\n')
    assert code == found


@pytest.mark.promise("E04")
def test_nodes_that_do_not_see_the_run_folder_start_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = job(tmp_path)
    code, seen = run_it(tmp_path, made, 0, BLIND="muster-unseen")
    assert code == 100 and len((seen / "srun").read_text().splitlines()) == 1
    assert f"not all nodes see {made.run}: it must be on" in capfd.readouterr().err


def test_a_first_step_that_slurm_could_not_make_is_no_fault_of_the_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A node that died, or was busy: the job begins again."""
    code, seen = run_it(tmp_path, job(tmp_path, retries=2), 0, UNABLE="1")
    assert code == 106 and (seen / "scontrol").exists()
    assert "not all nodes see" not in capfd.readouterr().err


def test_what_a_node_prints_before_each_task_is_no_answer(tmp_path: Path) -> None:
    assert run_it(tmp_path, job(tmp_path), 0, BLIND="welcome, nobody has been here")[0] == 0


@pytest.mark.parametrize(
    ("said", "deadline"),
    [("", ""), ("N/A", ""), ("2031-01-01T00:00:00+00:00", "1924992000")],
)
def test_a_queue_that_does_not_answer_is_no_deadline(
    tmp_path: Path, said: str, deadline: str
) -> None:
    """Of nothing `date` would make the beginning of this day."""
    code, seen = run_it(tmp_path, job(tmp_path), 0, END=said)
    assert code == 0 and variables(seen).get("SLURM_JOB_END_TIME", "") == deadline


@pytest.mark.parametrize(
    ("number", "given", "ports"),
    [
        ("7", {}, ("20056", "20057", "20058", "20059")),
        ("8", {}, ("20064", "20065", "20066", "20067")),
        ("67043327", {}, ("26616", "26617", "26618", "26619")),
        ("7", {"MUSTER_CONTROL_PORT": "7776"}, ("7776", "20057", "20058", "20059")),
        ("7", {"MUSTER_STORE_PORT": "7777"}, ("20056", "7777", "20058", "20059")),
        ("7", {"MUSTER_PS_PORT": "2223"}, ("20056", "20057", "20058", "2223")),
    ],
)
def test_jobs_that_share_a_node_have_ports_of_their_own(
    tmp_path: Path, number: str, given: dict[str, str], ports: tuple[str, ...]
) -> None:
    """The same on all nodes of a job, and below those that the kernel gives away."""
    _, seen = run_it(tmp_path, job(tmp_path), 0, SLURM_JOB_ID=number, **given)
    found = variables(seen)
    names = ("CONTROL", "STORE", "WORKER", "PS")
    assert tuple(found[f"MUSTER_{name}_PORT"] for name in names) == ports


@pytest.mark.promise("E03")
@pytest.mark.parametrize("state", ["RUNNING", "", "CANCELLED"])
def test_only_an_answer_that_says_so_ends_a_job_without_its_stop(
    tmp_path: Path, state: str
) -> None:
    """A queue that is busy may fail: of a job whose limit is near, it says nothing."""
    made = job(tmp_path, retries=2)
    _, seen = run_it(tmp_path, made, 143, NEAR="1", STATE=state)
    stopped = '"stop"' in (seen / "srun").read_text()
    assert (stopped, (seen / "scontrol").exists()) == ((state != "CANCELLED",) * 2)


def test_variables_of_the_clients_change_no_answer_and_lose_no_variable(tmp_path: Path) -> None:
    """Of a person who likes squeue otherwise, or whose site hands on no variables."""
    theirs = {"SQUEUE_FORMAT2": "JobID", "SLURM_TIME_FORMAT": "relative"}
    theirs |= {"SLURM_EXPORT_ENV": "NONE", "SRUN_EXPORT_ENV": "NONE"}
    _, seen = run_it(tmp_path, job(tmp_path), 0, END="2031-01-01T00:00:00+00:00", **theirs)
    found = variables(seen)
    assert found["SLURM_JOB_END_TIME"] == "1924992000"
    assert found["SLURM_EXPORT_ENV"] == "ALL"
    assert not {"SRUN_EXPORT_ENV", "SLURM_TIME_FORMAT"} & found.keys()


def test_an_attempt_does_not_inherit_the_outcome_of_the_one_before(tmp_path: Path) -> None:
    made = job(tmp_path)
    summary = Path(made.run, "summary.json")
    summary.parent.mkdir()
    summary.write_text("{}")
    run_it(tmp_path, made, 137, BLIND="muster-unseen")
    assert not summary.exists()


@pytest.mark.parametrize("refused", [False, True])
def test_a_job_that_begins_again_keeps_its_folder_meanwhile(tmp_path: Path, refused: bool) -> None:
    made = job(tmp_path, retries=2)
    run_it(tmp_path, made, 102, REFUSED=f"{refused:d}")
    assert Path(made.run, "summary.json").exists() == refused


def sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, first: str = ":") -> None:
    """Stands for Slurm's, and keeps the variables that it has. `first`: what it does before."""
    program = folder / "sbatch"
    program.write_text(f"#!/bin/sh\n{first}\nenv > {folder}/variables\necho 4711\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    Path("train.py").write_text("")


def test_a_job_that_the_engine_has_is_told_although_its_folder_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch(tmp_path, monkeypatch, first='mkdir "$(dirname "$2")/submitted.json"')
    assert main(["submit", "train.py", "--on", "slurm", "--output", "run"]) == 2
    said = capsys.readouterr().err
    assert "slurm job 4711, in run" in said and "cannot be written" in said, said


def test_options_of_the_user_win_and_shared_nodes_are_not_taken_whole(tmp_path: Path) -> None:
    whole = slurm_script.sbatch_options(job(tmp_path))
    shared = slurm_script.sbatch_options(
        job(tmp_path, settings={"cpus-per-task": "4", "job-name": "x"}, grace_s=120.0, retries=1)
    )
    assert whole["exclusive"] == "" and whole["mem"] == "0" and "no-requeue" in whole
    by_gpu = slurm_script.sbatch_options(job(tmp_path, settings={"mem-per-gpu": "100M"}))
    assert not {"exclusive", "mem"} & {*shared, *by_gpu} and "requeue" in shared
    assert (shared["cpus-per-task"], shared["job-name"]) == ("4", "x")
    assert shared["signal"] == "B:TERM@135"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"settings": {"nodes": "2"}}, "muster decides it"),
        ({"settings": {"wait": ""}}, "muster decides it"),
        ({"settings": {"chdir": "/else"}}, "muster decides it"),
        ({"settings": {"Partition": "x"}}, "no long option"),
        ({"settings": {"comment": "a\nb"}}, "more than one line"),
        ({"run": "/shared/a\\b"}, "no backslash"),
        ({"run": "/shared/a\tb"}, "line break, printable"),
        ({"run": "/shared/caf\udce9"}, "line break, printable"),
        ({"run": "/shared/a\nb"}, "no line break"),
        ({"kind": "pyxis"}, "says how an image is started"),
        ({"kind": "docker", "image": "x"}, "no way to start an image"),
        ({"image": "x", "run": "/shared/a:b"}, "'/shared/a:b' cannot be mounted"),
        ({"image": "x", "run": "/shared/a,b"}, "'/shared/a,b' cannot be mounted"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, more: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        slurm_script.check(job(tmp_path, **more))


def test_files_are_found_from_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "it.sif"):
        Path(name).write_text("")
    shown = []
    for more in (["--python", "venv/bin/python"], ["--python", "python3"], ["--image", "it.sif"]):
        assert main(["submit", "train.py", "--on", "slurm", "--dry-run", *more]) == 0
        shown.append(capsys.readouterr().out)
    assert f" {tmp_path}/venv/bin/python -m muster run " in shown[0]
    assert " python3 -m muster run " in shown[1]
    assert f" {tmp_path}/it.sif muster run " in shown[2]


@pytest.mark.parametrize("grace", ["0.5", "86401"])
def test_a_grace_that_no_job_can_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], grace: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert main(["submit", "train.py", "--on", "slurm", "--dry-run", "--grace", grace]) == 2
    assert f"--grace {grace}: a stop takes 1 to 86400 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("image", "kind", "words"),
    [
        ("docker://me/image:1", "", "--container-image=docker://me/image:1"),
        ("/images/it.sif", "", "apptainer exec"),
        ("me/image", "apptainer", "apptainer exec"),
    ],
)
def test_an_image_gets_the_folders_of_the_job(
    tmp_path: Path, image: str, kind: str, words: str
) -> None:
    made = job(tmp_path, image=image, kind=kind, run="/shared/run")
    made = made._replace(request=made.request._replace(channels={"train": "/data"}))
    found = " ".join(slurm_script.muster(made))
    assert words in found and "/shared/run:/shared/run,/data:/data" in found
    assert ("--nv" in found) == found.startswith("apptainer")


def test_folders_that_an_image_cannot_mount_are_refused(tmp_path: Path) -> None:
    """Also those of channels and checkpoints; without an image they can be."""
    request = job(tmp_path).request
    for more in ({"channels": {"train": "/data:1"}}, {"checkpoint": "/kept,1"}):
        made = job(tmp_path, run="/run", request=request._replace(**more))
        slurm_script.check(made)
        with pytest.raises(UsageError, match="cannot be mounted into the image"):
            slurm_script.check(made._replace(image="x"))


@pytest.mark.promise("E03")
def test_a_stop_starts_no_container(tmp_path: Path) -> None:
    """To import its image would take longer than the time to save."""
    made = job(tmp_path, image="me/image")
    _, seen = run_it(tmp_path, made, 143, NEAR="1")
    assert '"stop"' not in (seen / "srun").read_text()
    assert json.loads((seen / "scancel").read_text()) == ["--signal=TERM", "7"]


def test_a_checkpoint_folder_is_there_before_a_container_binds_it(tmp_path: Path) -> None:
    kept = tmp_path / "new" / "checkpoints"
    made = job(tmp_path, image="/images/it.sif")
    made = made._replace(request=made.request._replace(checkpoint=str(kept)))
    assert run_it(tmp_path, made, 0)[0] == 0
    assert kept.is_dir()


def test_variables_do_not_overrule_what_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither sbatch's own, nor those of a job in which somebody types this."""
    sbatch(tmp_path, monkeypatch)
    given = {"PARTITION": "cpu", "WAIT": "1", "ARRAY_INX": "1-3", "SIGNAL": "USR1", "ACCOUNT": "me"}
    given = {f"SBATCH_{name}": value for name, value in given.items()}
    given |= {"SLURM_GPUS_PER_NODE": "8", "SLURM_RESTART_COUNT": "3", "SLURM_CONF_X": "1"}
    for name, value in {**given, "SLURM_CONF": "/c", "SLURM_CLUSTERS": "b"}.items():
        monkeypatch.setenv(name, value)
    words = ["submit", "train.py", "--on", "slurm", "--set", "partition=gpu"]
    for more, kept in (([], {"SLURM_CLUSTERS=b"}), (["--set", "clusters=c"], set())):
        assert main([*words, "--output", f"run{len(more)}", *more]) == 0
        lines = Path("variables").read_text().splitlines()
        found = {line for line in lines if line.startswith(("SBATCH_", "SLURM_"))}
        assert found == {"SBATCH_ACCOUNT=me", "SLURM_CONF=/c", *kept}


def test_a_folder_of_a_job_that_may_begin_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody would find the first one again, and both would write there."""
    sbatch(tmp_path, monkeypatch)
    words = ["submit", "train.py", "--on", "slurm", "--output", "run"]
    assert main(words) == 0
    kept = Path("run/submitted.json").read_text()
    assert main([*words, "--overwrite"]) == 2
    assert "muster submit --cancel" in capsys.readouterr().err
    assert Path("run/submitted.json").read_text() == kept


def submitted(place: Path, monkeypatch: pytest.MonkeyPatch) -> Submitted:
    """A job that the stand-in has taken, as its run folder keeps it."""
    sbatch(place, monkeypatch)
    assert main(["submit", "train.py", "--on", "slurm", "--output", "run"]) == 0
    kept = folder.read(str(Path("run").resolve()))
    assert kept is not None
    return kept


def test_a_job_that_has_ended_is_not_looked_up_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another job may have it by now, and be cancelled in its place."""
    kept = submitted(tmp_path, monkeypatch)
    folder.keep_code(kept, 0)
    for client in ("squeue", "scontrol", "scancel"):
        (tmp_path / client).write_text("#!/bin/sh\necho RUNNING None; touch asked\n")
        (tmp_path / client).chmod(0o755)
    assert main(["submit", "--status", "run"]) == 0
    assert main(["submit", "--cancel", "run"]) == 0
    said = capsys.readouterr()
    assert "succeeded" in said.out and "nothing to cancel" in said.err
    assert not Path("asked").exists()


def earlier_run(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Words that submit in place of a run with a model, whose files are those of `left`."""
    sbatch(folder, monkeypatch, first="exit 1")
    for name in ("algo-1/opt/ml/model/weights", "algo-2/opt/ml/model/weights", ".muster-run"):
        Path("run", name).parent.mkdir(parents=True, exist_ok=True)
        Path("run", name).write_text(name)
    return ["submit", "train.py", "--on", "slurm", "--output", "run", "--overwrite"]


def left() -> list[str]:
    return sorted(str(path) for path in Path("run").rglob("*") if path.is_file())


@pytest.mark.parametrize("fails", range(9))
def test_an_earlier_run_is_whole_wherever_the_way_to_the_engine_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """No room, folders of another user, mounts, Ctrl-C; what cannot be put back at once lies
    beside, and the next submit puts it back."""
    words = earlier_run(monkeypatch, tmp_path)
    before, rename, calls = left(), os.rename, itertools.count()

    def refused(source: str, target: str) -> None:
        if next(calls) == fails:
            raise KeyboardInterrupt if fails == 1 else PermissionError(13, "Permission denied")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refused)
        assert main(words) in (2, 130)
    assert sorted(re.sub(r"\.earlier[^/]*/", "", name) for name in left()) == before
    assert main(words) == 2
    assert left() == before


@pytest.mark.parametrize("number", ["TERM", "HUP"])
def test_a_terminal_that_closes_while_sbatch_works_takes_the_job_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    words = earlier_run(monkeypatch, tmp_path)
    before = left()
    sbatch(tmp_path, monkeypatch, first=f"kill -{number} $PPID; exec sleep 30")
    squeue = '#!/bin/sh\necho "4711 $PWD/run"\n'
    for client, does in (("squeue", squeue), ("scancel", '#!/bin/sh\necho "$@" > asked\n')):
        (tmp_path / client).write_text(does)
        (tmp_path / client).chmod(0o755)
    argv = [sys.executable, "-m", "muster", *words]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=within(20))
    assert (done.returncode, Path("asked").read_text()) == (130, "4711\n"), done.stderr
    assert left() == before


def test_an_earlier_run_that_a_killed_submit_left_aside_is_the_one_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = earlier_run(monkeypatch, tmp_path)
    before = left()
    Path("run/.earlier").mkdir()
    for name in ("algo-1", "algo-2"):
        Path("run", name).rename(Path("run/.earlier", name))
    Path("run/secret").write_text("of the one that was killed")
    assert main(words) == 2
    assert left() == before


def test_a_job_is_kept_also_where_nobody_reads_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    submitted(tmp_path, monkeypatch)


def test_a_lost_job_is_settled_by_cancel_also_where_its_engine_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hosts whose `muster submit` was killed: the folder is free again."""
    kept = submitted(tmp_path, monkeypatch)
    folder.keep(kept._replace(engine="hosts", where={"machine": "gone", "process": "1"}))
    assert main(["submit", "--cancel", "run"]) == 0
    assert main(["submit", "--status", "run"]) == 0
    assert "stopped, exit code 143" in capsys.readouterr().out


def test_a_job_is_ended_also_where_its_engine_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(tmp_path, monkeypatch)
    for client, does in (("squeue", "exit 1"), ("scancel", 'echo "$@" > asked')):
        (tmp_path / client).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / client).chmod(0o755)
    assert main(["submit", "--cancel", "run"]) == 0
    assert Path("asked").read_text() == "4711\n"

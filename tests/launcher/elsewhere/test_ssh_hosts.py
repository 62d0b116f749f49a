"""`muster submit --on hosts:FILE`, from a desk to two hosts with a real sshd."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import muster as muster_package
from muster.local import frames
from tests.launcher.elsewhere import trained
from tests.launcher.elsewhere.sshd import Desk, processes, ssh_hosts
from tests.support.waiting import wait_until, within

WAIT_S = 60.0
KEY = "f00dcafe" * 4  # the value of a variable that nobody else may read
NAMES = ("node-a", "node-b")
SCRIPT = """\
import json, os, signal, sys, time
from pathlib import Path
me = os.environ["SM_CURRENT_HOST"]
def save(number, frame):
    Path(os.environ["SM_MODEL_DIR"], f"saved-{me}").write_text("saved")
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
names = ("SM_CURRENT_HOST", "SM_HOSTS", "MASTER_ADDR")
said = [os.environ.get(name) for name in names] + [len(os.environ["TOKEN"])]
print("said", json.dumps(said), flush=True)
Path(os.environ["SM_MODEL_DIR"], f"weights-{me}").write_text(me)
if os.environ.get("FAIL") == me:
    sys.exit(42)
Path(os.environ["SM_OUTPUT_DATA_DIR"], "up").write_text("")
while os.environ.get("STAY"):
    time.sleep(0.05)
"""


class Place(NamedTuple):
    desk: Desk
    folder: Path

    def start(
        self, *options: str, env: dict[str, str] | None = None, file: str = "\n".join(NAMES)
    ) -> subprocess.Popen[str]:
        """`muster submit` at the desk."""
        (self.folder / "hosts.txt").write_text(file + "\n")
        command = [sys.executable, "-m", "muster", "submit", "code/train.py"]
        config = os.path.relpath(self.desk.config, self.folder)
        command += ["--on", "hosts:hosts.txt", "--set", f"F={config}", *options]
        if "--output" not in options:
            command += ["--output", "run"]
        environ = {**os.environ, "TOKEN": KEY, "MUSTER_QUIET": "1", **(env or {})}
        given = ["--env", "TOKEN", *(word for name in env or () for word in ("--env", name))]
        return subprocess.Popen(
            [*self.desk.inside("desk"), f"--wd={self.folder}", *command, *given],
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *options: str, **more: object) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of one that ends by itself; nothing is left on any host."""
        return self.ended(self.start(*options, **more))  # type: ignore[arg-type]

    def ended(self, job: subprocess.Popen[str]) -> tuple[int, str, str]:
        code, out, err = result(job)
        self.nothing_left(err)
        return code, out, err

    def nothing_left(self, story: str) -> None:
        wait_until(
            lambda: not any(self.desk.left(name) for name in NAMES),
            WAIT_S,
            lambda: f"{story}\n{[self.desk.left(name) for name in NAMES]}",
        )


def result(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = job.communicate(timeout=within(WAIT_S))
    return job.returncode, out, err


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with ssh_hosts(tmp_path_factory.mktemp("ssh") / "d", NAMES) as made:
        yield made


@pytest.fixture
def place(desk: Desk, tmp_path: Path) -> Place:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "tmp").mkdir()
    return Place(desk, tmp_path)


def test_hosts_run_one_job_and_their_records_come_back(place: Place) -> None:
    code, out, err = place.run("--set", f"TMPDIR={place.folder / 'tmp'}")
    assert code == 0, err
    said = [json.loads(line.partition("said ")[2]) for line in out.splitlines() if "said" in line]
    names = json.dumps(list(NAMES), separators=(",", ":"))
    assert sorted(said) == [[name, names, "node-a", len(KEY)] for name in NAMES], out
    run = place.folder / "run"
    assert sorted(path.name for path in (run / "model").iterdir()) == [
        f"weights-{name}" for name in NAMES
    ]
    assert (run / "summary.json").exists()
    assert all((run / name / "events.jsonl").exists() for name in NAMES)
    assert list((place.folder / "tmp").iterdir()) == []
    figures = json.loads(muster(place, "report", "run", "--json"))
    assert figures["verdict"]["level"] == "good" and "submit" in figures["facts"]["command"], (
        figures
    )


def test_a_script_that_tidies_up_loses_nothing(place: Place) -> None:
    """The job's private folder lies where files go after some days, or by a script."""
    tidies = 'next(Path(os.environ["SM_MODEL_DIR"]).parents[4].glob("environ.json")).unlink()\n'
    (place.folder / "code" / "train.py").write_text(SCRIPT + tidies)
    code, _, err = place.run(file="node-b")
    assert code == 0, err
    assert (place.folder / "run" / "model" / "weights-node-b").exists()


@pytest.mark.promise("E02")
def test_the_failing_rank_of_the_second_host_is_named(place: Place) -> None:
    code, _, err = place.run(env={"FAIL": "node-b"})
    assert code == 42, err
    first = next(line for line in err.splitlines() if "FAILED" in line)
    assert "node-b rank 1" in first, err
    summary = json.loads((place.folder / "run" / "summary.json").read_text())
    assert summary["outcome"]["exit_code"] == 42
    listed = muster(place, "history", "show", "run")
    assert "42" in listed, listed
    assert "said" in muster(place, "logs", "run"), "of the failed job, too"
    status = muster(place, "submit", "--status", "run")
    assert "failed, exit code 42" in status


def muster(place: Place, *words: str, code: int = 0) -> str:
    """What a command at the desk prints."""
    argv = [*place.desk.inside("desk"), f"--wd={place.folder}", sys.executable, "-m", "muster"]
    done = subprocess.run(
        [*argv, *words], capture_output=True, text=True, timeout=within(WAIT_S), check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def running(
    place: Place, *options: str, file: str = "\n".join(NAMES), count: int = 2
) -> tuple[subprocess.Popen[str], Path]:
    """A job whose scripts all wait, and the hosts' folder for temporary files."""
    there = place.folder / "tmp"
    job = place.start("--set", f"TMPDIR={there}", *options, env={"STAY": "1"}, file=file)
    up = "muster-job-*/run/node-*/opt/ml/output/data/up"
    wait_until(lambda: len(list(there.glob(up))) == count or job.poll() is not None, WAIT_S)
    assert job.poll() is None, job.communicate()
    assert all(place.desk.left(name) for name in NAMES[-count:]), "what counts survivors sees a job"
    lines = [line for holder in place.desk.net.holders.values() for _, line in processes(holder)]
    assert len(lines) > 6 and not [line for line in lines if KEY in line], lines
    assert stat.S_IMODE(next(there.iterdir()).stat().st_mode) == 0o700
    return job, there


def holds(file: Path, text: str) -> bool:
    return text.encode() in file.read_bytes()


@pytest.mark.promise("E06")
@pytest.mark.promise("S09")
def test_ctrl_c_stops_with_time_to_save(place: Place) -> None:
    """Also what is asked of the job meanwhile is answered by its leader; from any folder, although
    options of ssh name files of the one in which it was submitted."""
    job, there = running(place)
    assert "running (attended by process" in muster(place, "submit", "--status", "run")
    (place.folder / "away").mkdir()
    listed = muster(place._replace(folder=place.folder / "away"), "ps", "../run")
    assert "node-a" in listed and "node-b" in listed, listed
    assert "goes to process" in muster(place, "submit", "--follow", "run", code=2)
    job.send_signal(signal.SIGINT)
    code, out, err = place.ended(job)
    assert (code, out.count("saved")) == (143, 2), out + err
    assert not [file for file in place.folder.rglob("*") if file.is_file() and holds(file, KEY)]
    made = {path.name for path in (place.folder / "run" / "model").iterdir()}
    assert {f"saved-{name}" for name in NAMES} <= made
    assert list(there.iterdir()) == []


@pytest.mark.promise("E01")
def test_cancel_is_told_to_who_attends(place: Place) -> None:
    job, _ = running(place)
    assert "cancelled" in muster(place, "submit", "--cancel", "run")
    assert place.ended(job)[0] == 143
    assert "stopped" in muster(place, "submit", "--status", "run")


@pytest.mark.promise("E06")
def test_a_cut_connection_stops_the_job_with_time_to_save(place: Place) -> None:
    job, there = running(place)
    holder = place.desk.net.holders["desk"]
    client = next(
        pid for pid, line in processes(holder) if "node-b sh" in line or "node-b exec" in line
    )
    os.kill(client, signal.SIGKILL)
    code, _, err = place.ended(job)
    assert code == 143, err
    assert "node-b: the connection ended" in err
    assert "node-b: record not complete" in err
    (left,) = there.iterdir()  # the record that nobody has taken over
    assert f"node-b:{left}/run" in err
    assert (left / "run/node-b/opt/ml/model/saved-node-b").exists()


@pytest.mark.promise("E06")
def test_a_desk_that_is_killed_stops_the_job(place: Place) -> None:
    job, there = running(place)
    job.kill()
    job.communicate()
    place.nothing_left("the desk was killed")
    assert len(list(there.glob("*/run/node-*/opt/ml/model/saved-*"))) == 2
    assert "lost" in muster(place, "submit", "--status", "run")


def test_a_second_ctrl_c_ends_ranks_that_ignore_the_stop(place: Place) -> None:
    ignoring = SCRIPT.replace("SIGTERM, save", "SIGTERM, signal.SIG_IGN")
    (place.folder / "code" / "train.py").write_text(ignoring)
    job, there = running(place, "--grace", "300")
    job.send_signal(signal.SIGINT)
    assert job.stderr is not None
    while "stopping; ranks have time" not in job.stderr.readline():
        pass
    job.send_signal(signal.SIGINT)
    code, _, err = place.ended(job)
    assert code == 143 and "ending the ranks at once" in err
    assert (place.folder / "run/node-a/events.jsonl").exists()
    assert list(there.iterdir()) == []


def test_a_host_whose_part_cannot_begin_ends_the_others(place: Place) -> None:
    """The folder of a channel is on the desk and on one host."""
    data = place.folder / "data" / "set"
    data.mkdir(parents=True)
    with mounted(place, "node-b", data.parent):
        code, _, err = place.run("--channel", f"set={data}")
    assert code == 2, err
    assert f"muster run on node-b: --channel set: no folder '{data}'" in err
    assert "node-b has ended with exit code 2: stopping the others" in err


@contextmanager
def mounted(place: Place, host: str, folder: Path) -> Iterator[None]:
    """A small, empty disk of the host in the place of a folder."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(folder)]
    subprocess.run([*place.desk.inside(host), *mount], check=True)
    try:
        yield
    finally:
        subprocess.run([*place.desk.inside(host), "umount", str(folder)], check=True)


def test_a_full_disk_of_a_host_is_said_before_anything_starts(place: Place) -> None:
    (place.folder / "code" / "weights").write_bytes(os.urandom(3 << 20))
    there = place.folder / "tmp"
    with mounted(place, "node-b", there):
        code, out, err = place.run("--set", f"TMPDIR={there}")
    assert (code, out) == (2, ""), err
    assert "node-b: the job cannot be put there" in err and "No space left on device" in err
    assert "--set TMPDIR=DIR" in err
    assert list(there.iterdir()) == [] and not (place.folder / "run").exists()


def test_a_disk_of_a_host_that_fills_up_later_is_its_ranks_error(place: Place) -> None:
    text = SCRIPT.replace("write_text(me)", "write_bytes(os.urandom(3 << 20))")
    (place.folder / "code" / "train.py").write_text(text)
    there = place.folder / "tmp"
    with mounted(place, "node-b", there):
        code, _, err = place.run("--set", f"TMPDIR={there}")
    assert code == 1, err
    first = next(line for line in err.splitlines() if "FAILED" in line)
    assert "node-b rank 1" in first and "No space left on device" in first, err
    assert (place.folder / "run/node-b/logs/rank-1.err").exists()


@pytest.mark.promise("E05")
@pytest.mark.parametrize(
    ("hosts", "options", "said"),
    [
        ("node-a\n10.78.0.77", (), "10.78.0.77: ssh: connect to host 10.78.0.77 port 22: "),
        ("node-a\ndesk", (), "desk: ssh: connect to host desk port 22: Connection refused"),
        ("node-a\nnobody@node-b", (), "node-b: nobody@node-b: Permission denied (publickey)."),
        ("node-a", ("UserKnownHostsFile=/dev/null",), "node-a: Host key verification failed."),
        ("node-a\nnode-b", ("TMPDIR=/nowhere",), "the job cannot be put there: "),
    ],
)
def test_what_ssh_refuses_is_said_in_its_words(
    place: Place, hosts: str, options: tuple[str, ...], said: str
) -> None:
    """Nothing was started, and no run folder is left."""
    code, out, err = place.run(*(word for one in options for word in ("--set", one)), file=hosts)
    assert (code, out) == (2, ""), err
    assert said in err and "nothing was started" in err
    assert not (place.folder / "run").exists()


def test_a_host_without_muster_is_told_how_to_get_it(place: Place) -> None:
    python = place.folder / "python"  # without what PYTHONPATH names
    python.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -I "$@"\n')
    python.chmod(0o755)
    code, _, err = place.run("--python", str(python))
    assert code == 2
    assert "no muster there (" in err and "--python FILE" in err and "nothing was started" in err


def test_a_muster_on_the_path_of_a_login_will_do(place: Place) -> None:
    """The Python of the desk is not there."""
    there = place.folder / "bin" / "muster"
    there.parent.mkdir()
    package = Path(muster_package.__file__).parents[1]
    there.write_text(
        f'#!/bin/sh\nPYTHONPATH={package} exec {sys.base_prefix}/bin/python3 -m muster "$@"\n'
    )
    there.chmod(0o755)
    profile = place.desk.home / ".profile"
    profile.write_text(f"echo Hello; PATH={there.parent}:$PATH\n")
    try:
        with mounted(place, "node-b", Path(sys.executable).parent):
            code, out, err = place.run(file="node-b")
            assert (code, out.count("said")) == (0, 1), err
            profile.unlink()
            code, _, err = place.run("--output", "again", file="node-b")
            assert code == 2 and "no muster there (" in err and "not found" in err
    finally:
        profile.unlink(missing_ok=True)


def test_what_finds_no_room_here_stays_on_the_host(place: Place) -> None:
    text = SCRIPT.replace("write_text(me)", "write_bytes(os.urandom(3 << 20))")
    (place.folder / "code" / "train.py").write_text(text)
    small, there = place.folder / "small", place.folder / "tmp"
    small.mkdir()
    with mounted(place, "desk", small):
        code, _, err = place.run("--set", f"TMPDIR={there}", "--output", "small/run", file="node-b")
        assert "succeeded" in muster(place, "submit", "--status", f"{small}/run")
        assert "said" in muster(place, "logs", f"{small}/run"), "the record came first"
    assert code == 0, err
    (left,) = there.iterdir()
    assert "record not complete (" in err and "No space left on device" in err
    assert f"see node-b:{left}/run" in err
    assert len(list(left.glob("run/node-b/opt/ml/model/*"))) == 1


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("distribution", trained.EXAMPLES)
def test_ranks_of_both_hosts_train_together(place: Place, distribution: str) -> None:
    """As on Slurm."""
    (place.folder / "code" / "train.py").write_text(trained.script(distribution))
    job = place.start(*trained.options(distribution))
    out, err = job.communicate(timeout=within(300))
    assert job.returncode == 0, err
    assert trained.accuracy(out) > trained.GOOD, out
    place.nothing_left(err)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_connection_that_falls_silent_is_a_stop_at_both_ends(place: Place) -> None:
    """Nobody is told that the cable is out; hosts and desk wait for one another for two minutes,
    also while what the rank prints has nowhere to go."""
    chatty = SCRIPT.replace("time.sleep(0.05)", "print('x' * 10_000); time.sleep(0.005)")
    (place.folder / "code" / "train.py").write_text(chatty)
    job, there = running(place, file="node-b", count=1)
    cable = [*place.desk.inside("node-b"), "ip", "link", "set", "eth0"]
    subprocess.run([*cable, "down"], check=True)
    try:
        _, err = job.communicate(timeout=within(frames.SILENCE_S + WAIT_S))
        wait_until(lambda: not place.desk.left("node-b"), WAIT_S)
    finally:
        subprocess.run([*cable, "up"], check=True)
    assert job.returncode == 102 and "node-b: the connection ended" in err
    assert len(list(there.glob("*/run/node-b/opt/ml/model/saved-node-b"))) == 1


@pytest.mark.long
def test_a_second_job_at_once_is_told_which_port_to_take(place: Place) -> None:
    """And the first one does not notice."""
    first, _ = running(place)
    code, _, err = result(place.start("--output", "second"))
    assert code == 102 and "set MUSTER_CONTROL_PORT" in err, err
    port = ("--env", "MUSTER_CONTROL_PORT=7790")
    assert result(place.start("--output", "third", *port))[0] == 0
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    assert place.ended(first)[0] == 143

"""`muster local --fault` on hosts in namespaces, as root and rootless: they are cut off from one
another, unplugged and frozen; skipped where the kernel does not allow such hosts."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from muster.local.hosts import why_not_isolated
from tests.launcher.support.local.local_runs import LocalRun, Result, Start, start
from tests.launcher.support.local.unprivileged import as_nobody, readable_python
from tests.support.waiting import wait_until, within

__all__ = ["start"]

# each of two hosts tells the other that it lives, by packets that nobody repeats
SCRIPT = """\
import os, socket, time
me = os.environ["SM_CURRENT_HOST"]
other = {"algo-1": "algo-2", "algo-2": "algo-1"}[me]
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 4000))
sock.settimeout(0.02)
last = None
silence = 0.0
until = time.monotonic() + float(os.environ.get("SM_HP_SECONDS", "60"))
print("ready on", me, flush=True)
while time.monotonic() < until:
    sock.sendto(b"x", (other, 4000))
    try:
        sock.recv(1)
    except OSError:
        continue
    now = time.monotonic()
    silence = max(silence, now - (last or now))
    last = now
print("silence", me, round(silence, 3), flush=True)
"""

# saves at each step; what failed is tried again where `retries` is set
SAVES = """\
import os, time
import muster
for step in range(1, 1000):
    part, saved = ("/opt/ml/checkpoints/" + name for name in (f"{step}.part", "last"))
    while True:
        try:
            with open(part, "wb") as file:
                file.write(bytes([step % 256]) * 65536)
            break
        except OSError as error:
            print("full", error.errno, flush=True)
            if not int(os.environ["SM_HP_RETRIES"]):
                raise
            time.sleep(0.05)
    os.replace(part, saved)
    muster.metrics(step=step)
    if step >= int(os.environ["SM_HP_STEPS"]):
        break
    time.sleep(0.02)
"""


@pytest.fixture(scope="module", autouse=True)
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    reason = why_not_isolated(str(tmp_path_factory.mktemp("trial")))
    if reason:
        pytest.skip(f"this machine allows no namespaces: {reason}")


def fill(home: Path) -> None:
    (home / "train.py").write_text(SCRIPT)


def argv(*faults: str, seconds: float = 60) -> list[str]:
    found = ["train.py", "--hosts", "2", "--isolation", "netns"]
    found += ["--hyperparameter", f"seconds={seconds}"]
    return [*found, *(word for text in faults for word in ("--fault", text))]


def check_a_cut(run: LocalRun) -> None:
    result = run.wait()
    assert result.code == 0, result.err
    assert "fault: cut algo-1 and algo-2 off from one another" in result.err
    silences = dict(re.findall(r"silence (\S+) ([0-9.]+)", result.out))
    assert sorted(silences) == ["algo-1", "algo-2"], result.err
    assert all(float(silence) > 0.9 for silence in silences.values()), silences


@pytest.mark.promise("F80")
def test_what_hosts_that_are_cut_send_is_lost_for_as_long(home: Path, start: Start) -> None:
    check_a_cut(start(home, argv("cut:algo-1/algo-2@0.5s+1s", seconds=3)))


@pytest.mark.promise("F80")
def test_a_user_without_privileges_can_do_the_same(nobodys_home: Path, start: Start) -> None:
    run = start(
        nobodys_home,
        argv("cut:algo-1/algo-2@0.5s+1s", seconds=3),
        wrapper=as_nobody(),
        python=readable_python(),
    )
    check_a_cut(run)


@pytest.mark.promise("F80")
@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("kill:rank=1@0.3s", 137, "killed rank 1 (pid "),
        ("freeze:rank=0@0.3s+0.3s", 0, "froze rank 0 (pid "),
        ("slow:rank=0:50%@0.3s+0.3s", 0, "slowed rank 0 (pid "),
    ],
)
def test_rootless_ranks_are_hit_by_their_number(
    nobodys_home: Path, start: Start, fault: str, code: int, said: str
) -> None:
    run = start(
        nobodys_home, argv(fault, seconds=1.5), wrapper=as_nobody(), python=readable_python()
    )
    result = run.wait()
    assert result.code == code, result.err
    assert f"fault: {said}" in result.err


@pytest.mark.promise("F80")
def test_hosts_that_stay_cut_off_lose_one_another(home: Path, start: Start) -> None:
    run = start(home, argv("cut:algo-1/algo-2@0.3s"))
    run.expect(apart=frozenset({"algo-2"}))
    result = run.wait()
    assert result.code == 102, result.err
    assert "FAILED PeerError: lost algo-2 (no heartbeat for 2 s)" in result.err


@pytest.mark.promise("F80")
def test_a_host_that_is_killed_falls_silent_like_a_machine(home: Path, start: Start) -> None:
    """Nothing tells the others: its connections stay open until nobody answers."""
    result = start(home, argv("kill:host=algo-2@0.3s")).wait()
    assert result.code == 102, result.err
    assert "FAILED PeerError: lost algo-2 (no heartbeat for 2 s)" in result.err
    assert [h["status"] for h in result.summary["local"]["hosts"]] == [102, -signal.SIGKILL]


@pytest.mark.promise("F80")
def test_a_host_that_is_frozen_for_a_while_is_heard_again(home: Path, start: Start) -> None:
    result = start(home, argv("freeze:host=algo-1@0.3s+1s", seconds=3)).wait()
    assert result.code == 0, result.err
    assert "fault: froze algo-1 0." in result.err


def saving(home: Path, fault: str, steps: int, retries: int) -> list[str]:
    (home / "train.py").write_text(SAVES)
    values = [f"--hyperparameter=steps={steps}", f"--hyperparameter=retries={retries}"]
    return ["train.py", "--hosts", "2", "--isolation", "netns", *values, "--fault", fault]


@pytest.mark.promise("F80")
def test_a_checkpoint_does_not_fit_on_a_disk_that_is_full(nobodys_home: Path, start: Start) -> None:
    """That of one host: it says so, and its last checkpoint is whole."""
    argv = saving(nobodys_home, "disk:algo-2@step=5", 1000, 0)
    run = start(nobodys_home, argv, wrapper=as_nobody(), python=readable_python())
    result = run.wait()
    assert result.code == 1, result.err
    assert "fault: filled the disk of algo-2 " in result.err
    said = "UserScriptError: OSError: [Errno 28] No space left on device (algo-2 rank 1, exit code"
    assert f" after the fault: {said}" in result.err
    assert "left of this run: checkpoints/" in result.err
    left = run.base("algo-2") / "checkpoints"
    last = (left / "last").read_bytes()
    assert len(last) == 65536 and len(set(last)) == 1 and last[0] >= 5
    assert (run.base("algo-1") / "checkpoints/last").exists()


@pytest.mark.promise("F80")
def test_a_disk_that_has_room_again_takes_the_next_checkpoint(home: Path, start: Start) -> None:
    run = start(home, saving(home, "disk:algo-2@step=3+500ms", 40, 1))
    result = run.wait()
    assert result.code == 0, result.err
    assert "fault: disk:algo-2@step=3+500ms is over after " in result.err
    assert "[algo-2:1] full 28" in result.out and "[algo-1:0] full" not in result.out
    assert (run.base("algo-2") / "checkpoints/last").read_bytes() == bytes([40]) * 65536


# leaves a pipe and files in what is saved, once it may
LEAVES = """\
import os, time
until = time.monotonic() + 30
print("waits", flush=True)
while not os.path.exists("/opt/ml/go") and time.monotonic() < until:
    time.sleep(0.02)
os.mkfifo("/opt/ml/model/pipe")
os.mkdir("/opt/ml/model/deep")
for name in ("model/deep/file", "checkpoints/file", "output/data/file"):
    with open("/opt/ml/" + name, "w") as file:
        file.write("saved")
"""
SAVED = ("model/deep/file", "checkpoints/file", "output/data/file")


def kept(home: Path, start: Start, in_the_way: str) -> tuple[Result, set[str]]:
    """What a run folder has of files on a disk, with another file there."""
    (home / "train.py").write_text(LEAVES)
    words = ["train.py", "--hosts", "1", "--isolation", "netns", "--fault", "disk:algo-1@50s"]
    run = start(home, words)
    # what is lost after the job's end is no host's failure
    run.expect(apart=frozenset({"algo-1"}))
    wait_until(lambda: "waits" in run.out, within(20))
    base = run.base("algo-1")
    (base / in_the_way).touch()
    (base / "go").touch()
    return run.wait(), {name for name in SAVED if (base / name).is_file()}


@pytest.mark.promise("F80")
def test_a_disk_is_kept_but_for_what_holds_nothing(home: Path, start: Start) -> None:
    result, found = kept(home, start, "model/other")
    assert result.code == 0, result.err
    assert "could be kept" not in result.err
    assert found == set(SAVED)


@pytest.mark.promise("F80")
def test_a_run_that_loses_what_it_saved_has_failed(home: Path, start: Start) -> None:
    """The other folders are kept all the same."""
    result, found = kept(home, start, "model/deep")
    assert result.code == 106, result.err
    assert "not all of what algo-1 saved could be kept: " in result.err
    assert "File exists" in result.err
    assert found == set(SAVED) - {"model/deep/file"}


@pytest.mark.promise("F80")
def test_a_disk_that_hosts_share_is_not_filled(home: Path, start: Start) -> None:
    argv = [*saving(home, "disk:algo-2", 1, 0), "--checkpoint", str(home / "saved")]
    result = start(home, argv).wait()
    assert result.code == 2, result.err
    assert "leave out --checkpoint: each host then has checkpoints of its own" in result.err

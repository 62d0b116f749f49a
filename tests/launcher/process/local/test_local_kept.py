"""`muster local` loses nothing that a job made: not to the next run, not to a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.support.local.local_runs import PROCESS, SCRIPT, Start

# goes on where the last run of it stopped
STEPS = """\
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["SM_MODEL_DIR"]).parent / "checkpoints"
mine = folder / os.environ["SM_CURRENT_HOST"]
first = int(mine.read_text()) if mine.exists() else 0
print("starting at", first, flush=True)
def stop(number, frame):
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
for step in range(first + 1, first + 4):
    mine.write_text(str(step))
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
time.sleep(0 if first else 60)
open("notes.txt", "w").write("beside the code")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text(SCRIPT)
    (tmp_path / "src/steps.py").write_text(STEPS)
    return tmp_path


@pytest.mark.promise("F64")
def test_no_later_run_empties_the_folder_of_an_earlier_one(start: Start, home: Path) -> None:
    """Not unasked, and with --overwrite not before it can begin itself."""
    first = start(home, ("src/train.py", *PROCESS)).wait()
    assert first.code == 0, first.err
    model = first.folder / "algo-1/opt/ml/model/model.txt"
    before = sorted(first.folder.rglob("*"))

    def again(*options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "muster", "local", "src/train.py", *options]
        environ = {**os.environ, "DOCKER_HOST": "unix:///nonexistent"}
        done = subprocess.run(
            [*command, "--output", str(first.folder)],
            cwd=home, env=environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert model.read_text() == "algo-1", done.stderr
        assert sorted(first.folder.rglob("*")) == before
        return done.returncode, done.stderr

    code, said = again(*PROCESS)
    assert code == 2
    assert "is an earlier run and holds a model" in said
    assert "--overwrite" in said
    docker = ("--isolation", "docker", "--image", "no-such-image:typo")
    assert again(*docker, "--overwrite")[0] != 0
    assert again(*PROCESS, "--internet", "--overwrite")[0] != 0
    with open(home / "src/huge.bin", "wb") as file:
        file.truncate((1 << 30) + 1)
    assert again(*PROCESS, "--overwrite")[0] != 0


def test_a_stopped_job_goes_on_from_its_checkpoints(start: Start, home: Path) -> None:
    """All hosts share the folder, as on the platform; it lies beside the code and is not packed."""
    argv = ("src/steps.py", "--hosts", "2", "--checkpoint", "src/ckpt", *PROCESS)
    run = start(home, argv)
    run.wait_ready(2)
    run.signal(signal.SIGTERM)
    stopped = run.wait()
    assert stopped.code == 143, stopped.err
    assert sorted(path.name for path in (home / "src/ckpt").iterdir()) == ["algo-1", "algo-2"]
    result = start(home, argv).wait()
    assert result.code == 0, result.err
    assert sorted(line for line in result.out.splitlines() if "starting" in line) == [
        "[algo-1:0] starting at 3",
        "[algo-2:1] starting at 3",
    ]
    assert not (result.folder / "algo-1/opt/ml/code/ckpt").exists()
    words = [line.split(maxsplit=1) for line in result.err.splitlines()]
    told = {pair[0]: pair[1] for pair in words if len(pair) == 2}
    assert told["checkpoints"] == "src/ckpt (2 files)"
    assert "(2 files that the script wrote there)" in told["code"]


@pytest.mark.promise("F64")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_full_before_the_start_is_one_sentence(home: Path) -> None:
    small = home / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=True)
    try:
        (small / "muster-runs").mkdir()
        with (
            (small / "fill").open("wb", buffering=0) as file,
            pytest.raises(OSError, match="No sp"),
        ):
            while True:
                file.write(b"x" * 512)
        for output in ([], ["--output", "out"]):
            command = [sys.executable, "-m", "muster", "local", str(home / "src/train.py"), *output]
            done = subprocess.run(
                command, cwd=small, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 2
            assert "No space left on device" in done.stderr
            assert "Traceback" not in done.stderr
            assert "--output DIR" in done.stderr
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.parametrize("files", [9, 11, 20])
def test_too_few_open_files_are_one_error_at_whatever_step(
    start: Start, home: Path, files: int
) -> None:
    """The record of a run whose hosts could not be started says so; no disk is blamed."""
    options = ("--hosts", "8", "--oversubscribe", *PROCESS)
    wrapper = ("prlimit", f"--nofile={files}:{files}")
    result = start(home, ("src/train.py", *options), wrapper=wrapper).wait()
    assert "Traceback" not in result.err
    assert "raise the limit of files (ulimit -n)" in result.err, result.err
    if result.code == 106:
        told = "LaunchError: the hosts could not be started: the limit of open files is reached"
        assert f"FAILED {told}" in result.err
        assert result.summary["outcome"]["headline"] == told
    else:
        assert result.code == 2
        assert not result.folder.exists()


@pytest.mark.promise("F64")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_fills_meanwhile_loses_no_model_and_leaves_no_half_file(
    home: Path, start: Start
) -> None:
    small = home / "small"
    small.mkdir()
    (home / "src/fill.py").write_text(
        "import os, sys\n"
        "with open(os.path.join(os.environ['SM_MODEL_DIR'], 'model.pt'), 'w') as file:\n"
        "    file.write('weights')\n"
        "print('ready on', flush=True)\n"
        "try:\n"
        "    with open(os.path.join(os.environ['SM_OUTPUT_DATA_DIR'], 'big'), 'wb', 0) as file:\n"
        "        while True:\n"
        "            file.write(b'x' * 512)\n"
        "except OSError:\n"
        "    sys.exit(6)\n"
    )
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(small)], check=True)
    try:
        run = start(home, ("src/fill.py", *PROCESS), output=small / "run")
        result = run.wait()
        assert result.code == 6, result.err
        assert {path.read_text() for path in (small / "run").rglob("model.pt")} == {"weights"}
        assert not list((small / "run").glob("summary.json.*"))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_with_json_a_reader_that_is_gone_changes_no_code(home: Path) -> None:
    command = [sys.executable, "-m", "muster", "local", "src/train.py", "--json", *PROCESS]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command, cwd=home, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert "Broken" not in done.stderr
    record = next(home.glob("muster-runs/*/summary.json"))
    assert json.loads(record.read_text())["outcome"]["result"] == "Succeeded"

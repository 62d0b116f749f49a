"""`train` called the wrong way or where it cannot run: told in a line, and nothing is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import muster
from muster.version import __version__
from tests.launcher.support.cluster import Cluster, Result
from tests.support.mltree import write_tree

Make = Callable[..., Cluster]
SOURCE = Path(muster.__file__).parents[1]
TRAIN = [sys.executable, "-m", "muster", "train"]
SCRIPT = "print('the script ran', flush=True)\n"
OLD = ("3.6", "3.7", "3.8", "3.9")
# the interpreter is told that it is another one just before `train` asks
PRETEND = """\
import sys
from muster.cli import {entry}
{pretence}
sys.argv = {argv}
before = set(sys.modules)
try:
    {entry}()
finally:
    print(sorted(name for name in set(sys.modules) - before if name.startswith("muster")))
"""


def train(make: Make, *arguments: str) -> Result:
    job = make(SCRIPT, hosts=1)
    job.start("algo-1", command=[*TRAIN, *arguments])
    return job.wait(20)["algo-1"]


@pytest.mark.promise("B49")
@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        (["serve"], "'serve'"),
        (["--epochs", "3"], "'--epochs'"),
        (["train", "train"], "'train'"),
        ([""], "''"),
        (["--help", "me"], "'--help'"),
        (["-" * 500], "'---"),
    ],
)
def test_unknown_arguments_are_answered_with_usage_and_code_100(
    cluster: Make, arguments: list[str], got: str
) -> None:
    result = train(cluster, *arguments)
    assert result.code == 100
    assert result.first_line.startswith(f"ConfigError: arguments: `train` takes none, got {got}")
    assert result.failure.splitlines()[1].startswith("Fix: ")
    assert "usage: train\n" in result.err
    assert "the script ran" not in result.out + result.err
    assert not result.success


@pytest.mark.promise("B49", "S08")
def test_a_secret_on_the_command_line_is_not_repeated(cluster: Make) -> None:
    for arguments in (["--api-key=s3cr3t-value"], ["--api-key", "s3cr3t-value"]):
        result = train(cluster, *arguments)
        assert "'--api-key'" in result.first_line
        assert "s3cr3t" not in result.failure + result.out + result.err


@pytest.mark.promise("B49")
@pytest.mark.parametrize("arguments", [[], ["train"]])
def test_with_and_without_the_word_train_the_job_runs(cluster: Make, arguments: list[str]) -> None:
    result = train(cluster, *arguments)
    assert (result.code, result.out) == (0, "the script ran\n")


@pytest.mark.parametrize(
    ("argument", "answer"),
    [("--help", "usage: train"), ("-h", "usage: train"), ("--version", f"muster {__version__}")],
)
def test_help_and_version_start_no_job(tmp_path: Path, argument: str, answer: str) -> None:
    write_tree(tmp_path)
    done = started([*TRAIN, argument], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(answer)
    assert not (tmp_path / "output").exists()


@pytest.mark.promise("B49")
def test_a_wrong_command_of_muster_is_code_2(tmp_path: Path) -> None:
    done = started([sys.executable, "-m", "muster", "trainn"], tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.promise("B50")
@pytest.mark.parametrize(
    ("pretence", "told"),
    [
        ("sys.version_info = (3, 9, 18, 'final', 0)", "needs Python 3.10 or newer, this is 3.9"),
        ("sys.version_info = (2, 7, 18, 'final', 0)", "needs Python 3.10 or newer, this is 2.7"),
        ("sys.platform = 'darwin'", "runs on Linux only, this is darwin"),
        ("sys.platform = 'win32'", "runs on Linux only, this is win32"),
    ],
)
@pytest.mark.parametrize(
    ("entry", "argv"), [("train", ["train"]), ("main", ["muster", "plan"])], ids=["train", "muster"]
)
def test_the_wrong_ground_is_one_line_before_anything_is_imported(
    tmp_path: Path, pretence: str, told: str, entry: str, argv: list[str]
) -> None:
    code = PRETEND.format(entry=entry, pretence=pretence, argv=argv)
    if entry == "train":  # leaves without coming back
        code = code.replace(f"    {entry}()", f"    import os; os._exit = sys.exit; {entry}()")
    done = started([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 100
    check_one_line(done.stderr, told)


@pytest.mark.promise("B50")
@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_an_old_python_is_told_in_one_line(tmp_path: Path, version: str, command: str) -> None:
    done = started([old_python(version), "-m", "muster", command], tmp_path)
    assert done.returncode == 100
    check_one_line(done.stderr, f"needs Python 3.10 or newer, this is {version}")


@pytest.mark.promise("B50")
@pytest.mark.parametrize("version", OLD[1:])
def test_the_hook_tells_an_old_python_by_its_exception(tmp_path: Path, version: str) -> None:
    code = "from muster.contract.hook import main; main()"
    done = started([old_python(version), "-c", code], tmp_path)
    assert done.returncode == 1  # the vendor's toolkit makes of it what it likes
    last = done.stderr.splitlines()[-1]
    assert f"TrainingFailedError: muster needs Python 3.10 or newer, this is {version}" in last


def check_one_line(stderr: str, told: str) -> None:
    (line,) = stderr.splitlines()
    assert line.startswith(f"ConfigError: muster {told}")
    assert "Fix: " in line


def old_python(version: str) -> str:
    """An interpreter of that version on this machine; skips the test when there is none."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [shutil.which(f"python{version}"), *home.glob(f"versions/{version}.*/bin/python")]
    for python in map(str, filter(None, found)):
        if subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0:
            return python
    pytest.skip(f"Python {version} is not on this machine")


def started(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(SOURCE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SAGEMAKER_BASE_DIR": str(folder),
    }
    return subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, timeout=30, check=False
    )

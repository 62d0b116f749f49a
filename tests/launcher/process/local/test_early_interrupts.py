"""Ctrl-C while a command still starts, as early as a line of ours has run: no traceback of ours,
one last line, one code. What comes before that, while Python itself starts, is Python's to answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.local.local_runs import PROCESS

# the signal comes with the import of a module, so at the same step on a machine of any speed
AT_AN_IMPORT = """\
import os, signal, sys
from muster import cli
def look(event, arguments):
    if event == "import" and arguments[0] == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(look)
sys.argv = {argv!r}
cli.{entry}()
"""
TRAIN = (
    "muster.contract.support",
    "muster.train",
    "muster.run.job.coordinator",
    "muster.run.child.ranks",
)
LOCAL = ("muster.contract.support", "muster.commands.parser", "muster.local.request")


def interrupted(module: str, entry: str, *argv: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        AT_AN_IMPORT.format(module=module, entry=entry, argv=["muster", *argv]),
    ]


@pytest.mark.promise("F06")
@pytest.mark.parametrize("module", TRAIN)
def test_train_answers_an_early_interrupt_as_any_other(
    cluster: Callable[..., Cluster], module: str
) -> None:
    job = cluster("print('it ran')\n", hosts=1)
    job.start(command=interrupted(module, "train"))
    result = job.wait(60)["algo-1"]
    assert result.code == 143, result.err
    assert result.err.rstrip().splitlines()[-1] == "STOPPED by SIGINT on algo-1, exit code 143"
    assert "Traceback" not in result.err
    assert "it ran" not in result.out


@pytest.mark.parametrize("module", LOCAL)
def test_muster_local_ends_an_early_interrupt_without_a_trace(tmp_path: Path, module: str) -> None:
    (tmp_path / "job.py").write_text("raise SystemExit('it ran')\n")
    end = subprocess.run(
        interrupted(module, "main", "local", "job.py", *PROCESS),
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (end.returncode, end.stderr) in (
        (-signal.SIGINT, ""),
        (130, "muster local: interrupted\n"),
    )
    assert os.listdir(tmp_path) == ["job.py"]

"""`muster.runtime.facts`: what a job's file says, and nothing where there is no job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import muster
from muster.runtime import RunFacts, facts
from muster.train.environment import without_own_variables

VARIABLES = ("RUN_FACTS", "RANK", "LOCAL_RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_without_a_job_nothing_is_known() -> None:
    assert facts() == RunFacts() == RunFacts(None, None, (), None, None, None, None, None, None)


def test_under_another_launcher_its_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES[1:], ("3", "1", "8"), strict=True):
        monkeypatch.setenv(name, value)
    assert facts() == RunFacts(world_size=8, rank=3, local_rank=1)


def test_the_file_says_who_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "facts.json"
    known = {
        "job": "j", "host": "algo-2", "hosts": ["algo-1", "algo-2"], "attempt": 2, "spot": True,
        "deadline": 99.5, "world_size": 4, "ranks": [2, 3], "new": {"of a": "later version"},
    }  # fmt: skip
    path.write_text(json.dumps(known))
    monkeypatch.setenv("RUN_FACTS", str(path))
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    hosts = ("algo-1", "algo-2")
    assert facts() == RunFacts("j", "algo-2", hosts, 2, True, 99.5, 4, 3, 1)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"job": 3, "hosts": [1, "a"], "ranks": ["x"], "deadline": ""}']
)
def test_a_file_of_another_shape_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    monkeypatch.setenv("RUN_FACTS", str(path))
    assert facts().job is None
    assert facts().rank is None


def test_a_variable_of_another_job_reaches_no_rank() -> None:
    environ = {"RUN_FACTS": "/of/another", "RUN_FACTS_OF_MINE": "1", "MUSTER_RUN_DIR": "/r"}
    assert without_own_variables(environ) == {"RUN_FACTS_OF_MINE": "1"}


def test_the_package_costs_nothing_until_it_is_used() -> None:
    script = (
        "import sys, muster\n"
        "assert not [name for name in sys.modules if name.startswith('muster.')]\n"
        "assert muster.runtime.facts() is not None and callable(muster.metrics)\n"
        "assert muster.runtime.metrics.progress() is None\n"
        "heavy = {'re', 'typing', 'threading', 'socket', 'logging', 'muster.run'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    words = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys\nsys.path.insert(0, sys.argv[1])\n{script}",
    ]
    source = str(Path(muster.__file__).parents[1])
    found = subprocess.run([*words, source], capture_output=True, text=True, check=False)
    print(found.stdout)
    assert found.returncode == 0, found.stderr
    with pytest.raises(AttributeError, match="no attribute 'metric'"):
        _ = muster.metric  # type: ignore[attr-defined]

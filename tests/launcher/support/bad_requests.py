"""Parts of bad requests, and how their problems are worded."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.contract.request.read import read_job
from muster.contract.wording import MAX_FAILURE_BYTES, failure_text
from muster.run.job.context import host_error_of
from muster.run.job.verdict import from_host_error
from muster.types.errors import ConfigError
from muster.types.masking import Masker
from tests.support.mltree import ONE_HOST, PROGRAM, TWO_HOSTS, write_tree

CANARY = "canary-3f1c94e0"  # a secret that stands in every request under a secret-looking name
LEVEL = "sagemaker_container_log_level: "
NOT_BELOW = "sagemaker_program: program must be relative to the code folder, got "
NAMES = "hosts: need a non-empty list of names, got "
BAD_NAME = "hyperparameters.json[1]: a name cannot hold "
SECONDS = "expected a number of seconds"
MPI = "sagemaker_mpi_enabled"
TORCH = "sagemaker_torch_distributed_enabled"
PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
NAMES_A_PLACE = re.compile(r"\w+\.json|\b[A-Z]+(_[A-Z]+)+\b|\bsagemaker_\w+")


class Bad(NamedTuple):
    """One mistake: `tree` is what `write_tree` writes, `text` how its one problem begins."""

    row: str
    text: str
    tree: Mapping[str, Any]

    @property
    def planted(self) -> dict[str, Any]:
        """The tree with the canary in it, where there is a place that does not change the case."""
        parameters = self.tree.get("hyperparameters", PROGRAM)
        tree = {**self.tree, "MY_API_TOKEN": CANARY}
        if isinstance(parameters, dict):
            tree["hyperparameters"] = {**parameters, "my_password": CANARY}
        return tree


def hp(**values: object) -> dict[str, object]:
    return {**PROGRAM, **values}


def hosts(*names: object, **values: object) -> dict[str, object]:
    return {**ONE_HOST, "hosts": list(names), **values}


def groups(*entries: object) -> dict[str, object]:
    return {**TWO_HOSTS, "instance_groups": list(entries)}


def group(name: str, *members: str) -> dict[str, object]:
    return {"instance_group_name": name, "instance_type": "t", "hosts": list(members)}


def nested(depth: int) -> str:
    """A JSON text of lists in lists."""
    return "[" * depth + "]" * depth


def error_of(tmp_path: Path, **tree: Any) -> ConfigError:
    environ = write_tree(tmp_path, **tree)
    began_s = time.process_time()
    with pytest.raises(ConfigError) as caught:
        read_job(environ)
    assert time.process_time() - began_s < 1
    assert caught.value.exit_code == 100
    return caught.value


def told(error: ConfigError) -> str:
    """The failure file, with nothing masked that the reader has not masked itself."""
    return failure_text(from_host_error(host_error_of(error)), Masker())


def case(row: str, text: str, **tree: Any) -> Bad:
    """One mistake and how its one problem begins."""
    return Bad(row, text, tree)


def each(cases: Sequence[Bad]) -> list[Any]:
    """The cases as parameters, marked with their rows."""
    return [
        pytest.param(bad, marks=pytest.mark.promise(bad.row), id=f"{bad.row}-{bad.text[:40]}")
        for bad in cases
    ]


def check(tmp_path: Path, bad: Bad) -> None:
    """What holds for every mistake: one problem, said whole, with a place, a cure and no secret."""
    error = error_of(tmp_path, **bad.planted)
    (problem,) = error.problems
    assert str(problem).replace(str(tmp_path), "BASE").startswith(bad.text)
    assert all(problem), "where, what and fix"
    assert NAMES_A_PLACE.search(f"{problem} {problem.fix}"), "no file and no variable"
    assert len(str(problem)) < 300 + len(str(tmp_path))
    text = told(error)
    first, second, *rest = text.splitlines()
    assert (first, second, rest) == (f"ConfigError: {problem}", f"Fix: {problem.fix}", [])
    assert len(text.encode()) <= MAX_FAILURE_BYTES
    assert CANARY not in text

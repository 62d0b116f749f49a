"""SDK v3: what `Muster` sends and refuses, and what `train` makes of every `distributed=`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from muster.contract.read import read_cluster, read_job
from muster.sdk import RequestError
from muster.sdk.request import distributed_fields
from muster.spec.distribution import MODEL_PARALLEL, Distribution, Mpi, Single, Torchrun
from muster.spec.errors import ConfigError
from tests.support.mltree import TWO_GROUPS, write_tree

ON = {"enabled": True}
MPI = {"process_count_per_node": None, "mpi_additional_options": None}
TORCHRUN = {"process_count_per_node": None, "smp": None}
ENTRY = {"SM_ENTRY_SCRIPT": "train.py"}


def fields(
    distribution: Any, count: int | None = None, text: str | None = None, **more: Any
) -> Any:
    return distributed_fields(distribution, count, text, more)


def through_the_sdk(config: object) -> dict[str, str]:
    """The variable as the SDK makes it: a line for a shell, between apostrophes."""
    line = f"SM_DISTRIBUTED_CONFIG='{json.dumps(config)}'"
    (word,) = shlex.split(line)
    return dict([word.split("=", 1)])


def read(tmp_path: Path, config: object, **hyperparameters: str) -> Any:
    return read_job(write_tree(tmp_path, hyperparameters, **ENTRY, **through_the_sdk(config)))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (fields("none"), Single()),
        (fields("torch_distributed", 2), Torchrun(processes_per_host=2)),
        (fields("mpi", 2, "-x A='b c'"), Mpi("mpi", 2, custom_options="-x A='b c'")),
        (fields("smddp"), Mpi("smdistributed.dataparallel")),
        (
            fields({"torch_distributed": ON, "smdistributed": {
                "modelparallel": {**ON, "parameters": {"partitions": 2, "pipeline": "simple"}}}}),
            Torchrun(MODEL_PARALLEL),
        ),
    ],
)  # fmt: skip
def test_what_muster_sends_is_what_train_runs(
    tmp_path: Path, asked: dict[str, str], expected: Distribution
) -> None:
    job = read(tmp_path, {"muster": asked}, lr="0.1")
    assert job.distribution == expected
    assert job.warnings == ()
    assert job.arguments[:2] == ("--lr", "0.1")
    assert not [word for word in job.arguments if "sagemaker" in word]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({**TORCHRUN, "process_count_per_node": 2}, Torchrun(processes_per_host=2)),
        (TORCHRUN, Torchrun()),
        (MPI, Mpi()),
        (
            {"process_count_per_node": 2, "mpi_additional_options": ["-x", "A=b c"]},
            Mpi("mpi", 2, custom_options="-x 'A=b c'"),
        ),
        ({}, Single()),
    ],
)
def test_the_sdks_own_classes_are_understood_where_a_command_has_displaced_their_drivers(
    tmp_path: Path, config: object, expected: Distribution
) -> None:
    if expected == Mpi("mpi", 2, custom_options="-x 'A=b c'"):
        # no apostrophe stands in the SDK's own line: only ours are put around the words
        assert "'" not in json.dumps(config)
    job = read(tmp_path, config)
    assert job.distribution == expected
    assert job.warnings == ()


def test_smp_of_torchrun_comes_as_a_hyperparameter_beside_it(tmp_path: Path) -> None:
    config = {**TORCHRUN, "smp": {"tensor_parallel_degree": 1}}
    job = read(tmp_path, config, mp_parameters='{"tensor_parallel_degree": 1}')
    assert job.distribution == Torchrun(MODEL_PARALLEL)


def test_another_class_is_named_and_ignored(tmp_path: Path) -> None:
    job = read(tmp_path, {"nodes": 3})
    assert job.distribution == Single()
    assert job.warnings == ("SM_DISTRIBUTED_CONFIG: nothing is known of nodes; it is ignored",)


@pytest.mark.parametrize("text", ["[1]", "{", '{"muster": {"a": 1}}', '{"muster": 2}'])
def test_a_variable_that_nobody_can_have_meant_is_refused(tmp_path: Path, text: str) -> None:
    environ = write_tree(tmp_path, {}, **ENTRY, SM_DISTRIBUTED_CONFIG=text)
    with pytest.raises(ConfigError) as caught:
        read_job(environ)
    assert caught.value.problems[0].where == "SM_DISTRIBUTED_CONFIG"
    read_cluster(environ)  # the host can still join, and tell the others


def test_one_key_with_two_values_is_refused_and_with_one_is_not(tmp_path: Path) -> None:
    asked = {"muster": fields("mpi", 2)}
    count = "sagemaker_mpi_num_of_processes_per_host"
    assert read(tmp_path, asked, **{count: "2"}).distribution == Mpi("mpi", 2)
    with pytest.raises(ConfigError, match=f"{count}: the hyperparameters have one value for it"):
        read(tmp_path, asked, **{count: "3"})


def test_an_absent_host_of_the_groups_is_known_to_a_host_with_bad_input(tmp_path: Path) -> None:
    asked = {"muster": fields({"torch_distributed": ON, "instance_groups": ["gpu"]})}
    environ = write_tree(tmp_path, {}, TWO_GROUPS, **ENTRY, **through_the_sdk(asked))
    cluster, _, _ = read_cluster(environ)
    assert cluster.distribution == (1, 2)


@pytest.mark.promise("B24")
@pytest.mark.parametrize(
    ("arguments", "more", "text"),
    [
        ((None,), {"distributon": "mpi"}, "'distributon', did you mean 'distribution'?"),
        ((None,), {}, "no distribution is given"),
        (("torchdistributed",), {}, "did you mean 'torch_distributed'?"),
        (("mpi",), {"processes_per_hosts": 2}, "did you mean 'processes_per_host'?"),
        (("mpi",), {"process_count_per_node": 2}, "did you mean processes_per_host?"),
        (("mpi",), {"mpi_additional_options": []}, "did you mean custom_mpi_options, one text?"),
        (("mpi", None, "--bind-too none"), {}, "unknown option --bind-too, did you mean --bind-to"),
        (("smddp", None, "--hostfile f"), {}, "--hostfile"),
        (("mpi", 0), {}, "expected a positive integer up to 1,024, got 0"),
        (("torch_distributed", None, "-x A=1"), {}, "torch_distributed does not run mpirun"),
    ],
)
def test_muster_refuses_on_the_client_what_could_not_run(
    arguments: tuple[Any, ...], more: dict[str, Any], text: str
) -> None:
    with pytest.raises(RequestError) as caught:
        fields(*arguments, **more)
    assert text in str(caught.value)


def test_no_apostrophe_leaves_the_client() -> None:
    assert "'" not in json.dumps(fields("mpi", None, "-x A='b c'"))

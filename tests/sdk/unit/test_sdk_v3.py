"""SDK v3: what `Muster` sends and refuses, and what `train` makes of every `distributed=`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from muster.contract.request.modeltrainer import REQUEST_KEYS
from muster.contract.request.read import read_cluster, read_job
from muster.sdk import RequestError, hyperparameters
from muster.sdk.request import distributed_fields
from muster.types.distribution import MODEL_PARALLEL, Distribution, Mpi, Single, Torchrun
from muster.types.errors import ConfigError
from tests.support.mltree import ONE_HOST, TWO_GROUPS, write_tree

ON = {"enabled": True}
MPI = {"process_count_per_node": None, "mpi_additional_options": None}
TORCHRUN = {"process_count_per_node": None, "smp": None}
MODEL = {
    "torch_distributed": ON,
    "smdistributed": {
        "modelparallel": {**ON, "parameters": {"partitions": 2, "pipeline": "simple"}}
    },
}
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


def refused(tmp_path: Path, config: object, text: str) -> str:
    """The fix of the one problem, which is `text`."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, config)
    (problem,) = caught.value.problems
    assert str(problem) == text
    return problem.fix


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (fields("none"), Single()),
        (fields("torch_distributed", 2), Torchrun(processes_per_host=2)),
        (fields("mpi", 2, "-x A='b c'"), Mpi("mpi", 2, custom_options="-x A='b c'")),
        (fields("smddp"), Mpi("smdistributed.dataparallel")),
        (
            fields(MODEL),
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
        ({**MPI, "mpi_additional_options": "-x A=b"}, Mpi(custom_options="-x A=b")),
        ({"mpi_additional_options": None}, Mpi()),
        ({"smp": None}, Torchrun()),
        ({"process_count_per_node": 2}, Torchrun(processes_per_host=2)),
        ({}, Single()),
    ],
)
def test_the_sdks_own_classes_are_understood_where_a_command_has_displaced_their_drivers(
    tmp_path: Path, config: object, expected: Distribution
) -> None:
    job = read(tmp_path, config)
    assert job.distribution == expected
    assert job.warnings == ()


def test_smp_of_torchrun_comes_as_a_hyperparameter_beside_it(tmp_path: Path) -> None:
    config = {**TORCHRUN, "smp": {"tensor_parallel_degree": 1}}
    job = read(tmp_path, config, mp_parameters='{"tensor_parallel_degree": 1}')
    assert job.distribution == Torchrun(MODEL_PARALLEL)


@pytest.mark.parametrize(
    ("config", "kind", "expected"),
    [
        ({**MPI, "process_count_per_node": 2}, "MPI", Mpi("mpi", 2)),
        ({**TORCHRUN, "process_count_per_node": 2}, "Torchrun", Torchrun(processes_per_host=2)),
        ({"muster": fields("mpi", 2)}, "Muster", Mpi("mpi", 2)),
    ],
)
def test_a_field_more_is_named_and_the_job_stays_distributed(
    tmp_path: Path, config: dict[str, object], kind: str, expected: Distribution
) -> None:
    job = read(tmp_path, {**config, "rdzv_backend": "c10d"})
    assert job.distribution == expected
    assert job.warnings == (
        f"SM_DISTRIBUTED_CONFIG: {kind} has no field 'rdzv_backend' here; it is ignored",
    )


@pytest.mark.promise("B24")
@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"nodes": 3}, "'nodes'"),
        ({"process_count_per_node": 2, "backend": "gloo"}, "'process_count_per_node', 'backend'"),
        ({**MPI, **TORCHRUN}, "'process_count_per_node', 'mpi_additional_options', 'smp'"),
    ],
)
def test_a_class_that_nobody_knows_is_refused_by_its_fields_and_never_run_undistributed(
    tmp_path: Path, config: object, names: str
) -> None:
    text = f"SM_DISTRIBUTED_CONFIG: no distributed= that is known has the fields {names}"
    fix = refused(tmp_path, config, text)
    assert "use muster.sdk.v3.Muster, or no distributed= and muster.sdk.hyperparameters" in fix
    assert "a driver that calls `train` itself unsets the variable first" in fix


@pytest.mark.parametrize(
    ("options", "got"),
    [
        (5, "int"),
        (False, "bool"),
        ({"-x": "TOKEN=abc"}, "dict"),
        (["-x", 5], "a list that holds int"),
    ],
)
def test_options_of_mpirun_are_texts_and_not_shown(
    tmp_path: Path, options: object, got: str
) -> None:
    text = "mpi_additional_options: expected a list of texts or one text, got "
    refused(
        tmp_path,
        {**MPI, "mpi_additional_options": options},
        f"SM_DISTRIBUTED_CONFIG: {text}{got}",
    )


@pytest.mark.promise("B24")
@pytest.mark.parametrize(
    ("key", "guess"),
    [
        ("sagemaker_program", ""),
        ("lr", ""),
        ("sagemaker_mpi_enbled", ", did you mean 'sagemaker_mpi_enabled'?"),
    ],
)
def test_a_request_holds_only_what_muster_makes(tmp_path: Path, key: str, guess: str) -> None:
    text = f"SM_DISTRIBUTED_CONFIG: 'muster' cannot hold the key {key!r}{guess}"
    fix = refused(tmp_path, {"muster": {**fields("mpi"), key: "1"}}, text)
    assert fix.startswith("make it with muster.sdk.v3.Muster, in the version of the image")


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


@pytest.mark.parametrize(
    ("distribution", "text", "hosts"),
    [
        ("mpi", None, ONE_HOST),
        ("mpi", "-x A=1", ONE_HOST),
        ("smddp", "-x A=1", ONE_HOST),
        ("torch_distributed", None, ONE_HOST),
        ({**MODEL, "instance_groups": ["gpu"]}, None, TWO_GROUPS),
    ],
)
def test_the_same_request_in_both_ways_of_ours_is_one_request(
    tmp_path: Path, distribution: Any, text: str | None, hosts: object
) -> None:
    keys = hyperparameters(distribution, processes_per_host=2, custom_mpi_options=text)
    environ = write_tree(tmp_path, keys, hosts, **ENTRY)
    asked = through_the_sdk({"muster": fields(distribution, 2, text)})
    job = read_job({**environ, **asked})
    assert job.distribution == read_job(environ).distribution != Single()
    assert job.warnings == ()


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
        (("mpi", None, "-np 3"), {}, "-np is not allowed"),
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


EVERY = [
    fields("none"),
    fields("torch_distributed", 2),
    fields("mpi", 2, "-x A='b c'"),
    fields("smddp", None, "-x A=1"),
    fields("parameter_server"),
    fields("multi_worker_mirrored_strategy"),
    fields({**MODEL, "instance_groups": ["gpu"]}),
]


def test_the_keys_that_train_takes_are_those_that_muster_makes() -> None:
    assert {name for made in EVERY for name in made} == set(REQUEST_KEYS)


@pytest.mark.parametrize("made", EVERY)
def test_a_request_that_was_dumped_makes_the_same_again(made: dict[str, str]) -> None:
    assert fields(None, muster=made) == made


def test_a_text_of_a_hand_made_request_travels_without_an_apostrophe(tmp_path: Path) -> None:
    made = {**fields("mpi"), "sagemaker_mpi_custom_mpi_options": "-x A='b c'"}
    again = fields(None, muster=made)
    assert "'" not in json.dumps(again)
    job = read(tmp_path, {"muster": again})
    assert job.distribution == Mpi(custom_options="-x A='b c'")


@pytest.mark.parametrize(
    ("arguments", "more", "text"),
    [
        (("mpi",), {"muster": {}}, "Muster: muster= is a whole request"),
        ((None, 2), {"muster": {}}, "Muster: muster= is a whole request"),
        ((None,), {"muster": {}, "smp": None}, "Muster: muster= is a whole request"),
        ((None,), {"muster": None}, "Muster: expected an object of texts in 'muster'"),
        ((None,), {"muster": {"lr": "1"}}, "Muster: 'muster' cannot hold the key 'lr'"),
        ((None,), {"muster": {"sagemaker_mpi_enabled": "maybe"}}, "expected true or false"),
        (
            (None,),
            {"muster": {**fields("mpi"), "sagemaker_mpi_custom_mpi_options": "--hostfile f"}},
            "--hostfile",
        ),
    ],
)
def test_a_request_that_is_handed_in_whole_is_checked_as_any_other(
    arguments: tuple[Any, ...], more: dict[str, Any], text: str
) -> None:
    with pytest.raises(RequestError) as caught:
        fields(*arguments, **more)
    assert text in str(caught.value)

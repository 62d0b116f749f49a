"""Odd input that is accepted, with a warning where a person should know."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from muster.contract.request.read import read_job
from muster.types.job import Job
from tests.launcher.support.bad_requests import MPI, PER_HOST, hp, nested
from tests.support.mltree import ONE_HOST, write_tree


def read(tmp_path: Path, **tree: Any) -> Job:
    return read_job(write_tree(tmp_path, **tree))


@pytest.mark.promise("B05")
def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    resources = b"\xef\xbb\xbf" + json.dumps(ONE_HOST).encode()
    assert read(tmp_path, resources=resources).cluster.me.name == "algo-1"


@pytest.mark.promise("B15")
def test_values_that_are_not_text_are_accepted_with_one_warning(tmp_path: Path) -> None:
    job = read(tmp_path, hyperparameters=hp(n=3, o={"z": 1}, on=True, **{MPI: True, PER_HOST: 2}))
    assert job.documents.hyperparameters == {"n": 3, "o": {"z": 1}, "on": True}
    assert job.arguments == ("-n", "3", "-o", "z=1", "--on", "True")
    assert len([text for text in job.warnings if "JSON string" in text]) == 1


@pytest.mark.promise("B21")
@pytest.mark.parametrize(
    ("wire", "level"),
    [
        ("20", 20),
        ('"DEBUG"', 10),
        ("INFO", 20),
        ("warning", 30),
        ('"30"', 30),
        ("null", 20),
        ("0", 0),
    ],
)
def test_log_levels_are_accepted_by_name_and_number(tmp_path: Path, wire: str, level: int) -> None:
    assert read(tmp_path, hyperparameters=hp(sagemaker_container_log_level=wire)).log_level == level


@pytest.mark.promise("B15")
def test_a_key_that_stands_twice_is_a_warning_and_the_last_one_counts(tmp_path: Path) -> None:
    twice = b'{"sagemaker_program": "a.py", "lr": "1", "sagemaker_program": "b.py", "lr": "2"}'
    job = read(tmp_path, hyperparameters=twice)
    assert (job.program, job.documents.hyperparameters) == ("b.py", {"lr": 2})
    assert job.warnings == (
        "hyperparameters.json: keys that stand twice, the last one counts: "
        "'sagemaker_program', 'lr'",
    )


@pytest.mark.promise("B15")
def test_numbers_truth_values_and_constants_off_json_reach_the_script(tmp_path: Path) -> None:
    document = b'{"sagemaker_program": "t.py", "a": NaN, "b": 1e999, "c": null, "d": [1, {"e": 2}]}'
    job = read(tmp_path, hyperparameters=document)
    assert job.arguments == ("-a", "NaN", "-b", "Infinity", "-c", "", "-d", "[1, {'e': 2}]")
    assert json.loads(json.dumps(job.documents.hyperparameters, allow_nan=False))["a"] == "NaN"


@pytest.mark.promise("B23")
def test_an_unknown_platform_key_is_a_warning_with_the_nearest_name(tmp_path: Path) -> None:
    job = read(tmp_path, hyperparameters=hp(sagemaker_mpi_enabld="true", sagemaker_brand_new="1"))
    assert job.warnings == (
        "unknown hyperparameter 'sagemaker_mpi_enabld', did you mean 'sagemaker_mpi_enabled'?",
        "unknown hyperparameter 'sagemaker_brand_new' is passed on",
    )
    assert job.documents.framework_parameters["sagemaker_brand_new"] == 1


@pytest.mark.promise("B23")
def test_of_many_unknown_keys_the_first_are_named_and_the_others_counted(tmp_path: Path) -> None:
    unknown = {f"sagemaker_mpi_x{i}": "1" for i in range(5_000)}
    began_s = time.process_time()
    job = read(tmp_path, hyperparameters=hp(**unknown))
    assert time.process_time() - began_s < 10
    assert len(job.warnings) == 21
    assert job.warnings[-1] == "... and 4980 more unknown hyperparameters"


@pytest.mark.promise("B35")
def test_names_with_dash_dot_and_unicode_are_good(tmp_path: Path) -> None:
    job = read(tmp_path, hyperparameters=hp(**{"learning-rate": "1", "opt.lr": "2", "größe": "3"}))
    assert set(job.documents.hyperparameters) == {"learning-rate", "opt.lr", "größe"}


@pytest.mark.promise("B36")
@pytest.mark.parametrize("text", ["héllo", "😀", "\u202eright to left", "tab\tand\nnewline"])
def test_unicode_values_pass_unchanged(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, hyperparameters=hp(note=text)).arguments == ("--note", text)


@pytest.mark.promise("B37")
@pytest.mark.parametrize(
    "text",
    ["NaN", "Infinity", "-Infinity", "1e999", "12345678901234567890.123", "[NaN, 1]", "1e-999",
     "9" * 5000],
)  # fmt: skip
def test_numbers_that_a_double_cannot_hold_stay_text(tmp_path: Path, text: str) -> None:
    job = read(tmp_path, hyperparameters=hp(x=text))
    assert job.arguments == ("-x", text)
    assert json.loads(json.dumps(job.documents.hyperparameters, allow_nan=False))["x"] == text


@pytest.mark.promise("B37")
def test_a_hundred_levels_and_sixteen_mebibytes_are_accepted(tmp_path: Path) -> None:
    document = json.dumps(hp(deep=nested(100), deeper=json.loads(nested(99))))
    job = read(tmp_path, hyperparameters=document.encode().ljust(16 << 20))
    assert json.dumps(job.documents.hyperparameters["deep"]) == nested(100)


@pytest.mark.promise("B38")
def test_channels_that_share_a_variable_are_a_warning_with_both_names(tmp_path: Path) -> None:
    job = read(tmp_path, inputs={"train": {}, "Train": {}, "my data": {}})
    assert "channels 'train' and 'Train' share one" in job.warnings[1]
    assert "channel 'my data': a name with a space" in job.warnings[0]


@pytest.mark.promise("S04")
def test_hostile_values_reach_the_script_as_they_are(tmp_path: Path) -> None:
    values = ["'", '"x', "$(id)", "a;b", "`id`", "a\nb", "-x", "--", "*", "\\", " lead", "%s {}"]
    hostile = {f"v{i:02}": json.dumps(value) for i, value in enumerate(values)}
    job = read(tmp_path, hyperparameters=hp(**hostile))
    assert list(job.arguments[1::2]) == values


def test_a_hundred_values_of_full_length_take_no_time(tmp_path: Path) -> None:
    began_s = time.process_time()
    job = read(tmp_path, hyperparameters=hp(**{f"key_{i:03}": "v" * 2500 for i in range(99)}))
    assert time.process_time() - began_s < 10
    assert sum(map(len, job.arguments[1::2])) == 99 * 2500

"""`muster sdk metric-definitions`: expressions that match what `muster.metrics` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from muster.commands.parser import main
from muster.runtime.metrics import metrics
from muster.sdk import RequestError
from muster.sdk.metric_definitions import expression_for, metric_definitions

PREFIXES = ("", "[algo-1:0] ", "2026-11-28T12:00:00.123Z ", "\x1b[34m", "algo-1-abcd | ")
VALUES = (0, 7, -3, 640, 0.25, -0.5, 1e-05, 2.5e300, 1e16, float("nan"), float("inf"), -1e-7)
Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    def call(**values: float) -> str:
        metrics(**values)
        return capsys.readouterr().out.rstrip("\n")

    return call


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("value", VALUES)
def test_the_whole_number_is_captured_whatever_is_before_the_line(
    printed: Printed, prefix: str, value: float
) -> None:
    line = prefix + printed(step=10, samples=640, val_loss=3.5, loss=value, after=1)
    for name, number in {"loss": value, "val_loss": 3.5, "step": 10, "samples": 640}.items():
        match = re.search(expression_for(name), line)
        assert match is not None, (name, line)
        assert repr(float(match[1])) == repr(float(number))


def test_a_name_matches_neither_another_that_ends_so_nor_another_line(printed: Printed) -> None:
    assert re.search(expression_for("loss"), printed(val_loss=1, loss_1=2)) is None
    assert re.search(expression_for("loss"), "epoch 3 loss=0.5") is None
    assert re.search(expression_for("loss"), printed(loss=1)) is not None


def test_an_expression_fits_the_platform_and_cannot_run_away() -> None:
    expression = expression_for("x" * 255)
    assert len(expression) <= 500
    assert re.search(expression, "muster metrics" + " a=1" * 20000) is None


def test_both_sdks_get_their_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sdk", "metric-definitions", "loss", "accuracy"]) == 0
    text = capsys.readouterr().out
    seen: dict[str, object] = {}
    v2, v3 = text.split("# SDK v3", 1)
    exec(v2, seen)
    expected = metric_definitions(["loss", "accuracy"])
    assert seen["metric_definitions"] == expected
    made: dict[str, object] = {
        "MetricDefinition": lambda name, regex: {"Name": name, "Regex": regex}
    }
    code = v3.partition("\n")[2].replace("from sagemaker.train.configs import MetricDefinition", "")
    exec(code, made)
    assert made["metric_definitions"] == expected
    assert main(["sdk", "metric-definitions", "loss", "accuracy", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["metric-definition", "loss"], "did you mean 'metric-definitions'"),
        (["metric-definitions"], "is missing"),
        (["metric-definitions", "val/loss"], "letters, digits and _ only"),
        (["metric-definitions", "loss", "loss"], "loss is there twice"),
        (["metric-definitions", "loss", "--fromat", "v2"], "did you mean '--format'"),
        (["metric-definitions", "loss", "--format", "v4"], "v4"),
        (["metric-definitions", *(f"m{n}" for n in range(41))], "41 names"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["sdk", *words]) == 2
    assert said in capsys.readouterr().err


def test_from_python_the_error_names_all_that_is_wrong() -> None:
    with pytest.raises(RequestError, match=r"(?s)'a b'.*'c-d'.*Fix"):
        metric_definitions(["a b", "c-d"])

"""What users import and start: these names stay, or the changelog names their successor."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

IMPORTED = {
    "muster.contract.hook": ("main",),
    "muster": ("metrics", "runtime"),
    "muster.runtime": ("facts", "RunFacts"),
    "muster.sdk.metric_definitions": ("metric_definitions",),
    "muster_collectives.core": ("init", "CollectiveError", "CollectiveTimeout"),
    "muster_parameter_server": (
        "ParameterServer",
        "ServerOptimizer",
        "sgd",
        "adam",
        "adamw",
    ),
}
STARTED = (
    "muster",
    "muster_collectives.bench",
    "muster_collectives.doctor",
    "muster_collectives.summary",
    "muster_parameter_server",
)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(module, marks=[pytest.mark.torch] * (module == "muster_parameter_server"))
        for module in IMPORTED
    ],
)
def test_names_that_users_import_are_there(module: str) -> None:
    home = importlib.import_module(module)
    for name in {*IMPORTED[module], *getattr(home, "__all__", ())}:
        assert getattr(home, name) is not None, name


@pytest.mark.parametrize("module", STARTED)
def test_modules_that_users_start_are_there(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        assert importlib.util.find_spec(f"{module}.__main__") is not None


@pytest.mark.torch
def test_the_layer_for_torch_is_there() -> None:
    home = importlib.import_module("muster_collectives.torch")
    for name in home.__all__:
        assert getattr(home, name) is not None, name

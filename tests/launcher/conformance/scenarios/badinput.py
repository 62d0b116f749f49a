"""Requests that cannot be run."""

from __future__ import annotations

from tests.launcher.conformance.scenario import Scenario
from tests.launcher.conformance.scenarios.meant import FITS, NO_FRAMEWORK_ERROR, refused, said, tied
from tests.launcher.conformance.scenarios.parts import script, sdk

_SCENARIOS = (
    Scenario("input: no hyperparameters.json", {}, script(), without=("hyperparameters.json",)),
    Scenario("input: no resourceconfig.json", sdk(), script(), without=("resourceconfig.json",)),
    Scenario("input: no inputdataconfig.json", sdk(), script(), without=("inputdataconfig.json",)),
    Scenario(
        "input: resourceconfig.json is not JSON",
        sdk(),
        script(),
        without=("resourceconfig.json",),
        tree={"input/config/resourceconfig.json": '{"hosts": ['},
    ),
    Scenario(
        "input: hyperparameters.json is a list",
        {},
        script(),
        without=("hyperparameters.json",),
        tree={"input/config/hyperparameters.json": "[]"},
    ),
    Scenario("input: no hosts", sdk(), script(), resource={"hosts": []}),
    Scenario(
        "input: this host is not a host", sdk(), script(), resource={"current_host": "algo-9"}
    ),
    Scenario("input: a host twice", sdk(), script(), resource={"hosts": ["algo-1", "algo-1"]}),
)
_REFUSED_FILE = (*said("*", "100", "ConfigError"), *NO_FRAMEWORK_ERROR)
_CHECKED = "a request that contradicts itself is not run"
_MEANT = {
    "input: no hyperparameters.json": (*_REFUSED_FILE, *FITS),
    "input: no resourceconfig.json": (*_REFUSED_FILE, *FITS),
    "input: no inputdataconfig.json": (*_REFUSED_FILE, *FITS),
    "input: resourceconfig.json is not JSON": (*_REFUSED_FILE, *FITS),
    "input: hyperparameters.json is a list": _REFUSED_FILE,
    "input: no hosts": _REFUSED_FILE,
    "input: this host is not a host": refused("100", _CHECKED),
    "input: a host twice": refused("100", _CHECKED),
}

SCENARIOS = tied(_SCENARIOS, _MEANT)

"""What a training script asks of its job: `Environment()`, and the paths below the base folder.

`train` has worked it all out already and tells it in SM_TRAINING_ENV, which is read here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

_TOLD = "SM_TRAINING_ENV"

SAGEMAKER_BASE_PATH = "/opt/ml"
BASE_PATH_ENV = "SAGEMAKER_BASE_DIR"
HYPERPARAMETERS_FILE = "hyperparameters.json"
RESOURCE_CONFIG_FILE = "resourceconfig.json"
INPUT_DATA_CONFIG_FILE = "inputdataconfig.json"

base_dir = os.environ.get(BASE_PATH_ENV) or SAGEMAKER_BASE_PATH
code_dir = os.path.join(base_dir, "code")
model_dir = os.path.join(base_dir, "model")
input_dir = os.path.join(base_dir, "input")
input_config_dir = os.path.join(input_dir, "config")
output_dir = os.path.join(base_dir, "output")
output_data_dir = os.path.join(output_dir, "data")
output_intermediate_dir = os.path.join(output_dir, "intermediate")


class Environment(Mapping[str, Any]):
    """The job as this host sees it: `hosts`, `current_host`, `hyperparameters`, `num_gpus`,
    `channel_input_dirs`, `model_dir`, `is_master` and all else of SM_TRAINING_ENV, as attributes
    and as keys. Arguments stand in place of what the job's files say.

    Raises RuntimeError where no `train` has started the script.
    """

    def __init__(
        self,
        resource_config: Mapping[str, Any] | None = None,
        input_data_config: Mapping[str, Any] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        given = {
            "resource_config": resource_config,
            "input_data_config": input_data_config,
            "hyperparameters": hyperparameters,
        }
        replaced = {name: value for name, value in given.items() if value is not None}
        self.__dict__.update({**_told(), **replaced})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{_TOLD} has no {name!r}; it has {', '.join(sorted(self))}")

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)


def _told() -> dict[str, Any]:
    text = os.environ.get(_TOLD)
    if text is None and os.environ.get(f"{_TOLD}_FILE"):  # it was too large for a variable
        with open(os.environ[f"{_TOLD}_FILE"], encoding="utf-8") as file:
            text = file.read()
    if text is None:
        raise RuntimeError(
            f"{_TOLD} is not set, which `train` sets for every script\n"
            "  Fix: start the script with `train`, or here with `muster local SCRIPT`"
        )
    told: dict[str, Any] = json.loads(text)
    return told


def read_hyperparameters() -> dict[str, Any]:
    return dict(Environment().hyperparameters)


def read_resource_config() -> dict[str, Any]:
    return dict(Environment().resource_config)


def read_input_data_config() -> dict[str, Any]:
    return dict(Environment().input_data_config)


def channel_path(channel: str) -> str:
    return os.path.join(input_dir, "data", channel)


def num_cpus() -> int:
    return int(Environment().num_cpus)


def num_gpus() -> int:
    return int(Environment().num_gpus)


def num_neurons() -> int:
    return int(Environment().num_neurons)

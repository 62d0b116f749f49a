"""A SageMaker config tree in a folder, as real files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

ONE_HOST: Mapping[str, object] = {
    "current_host": "algo-1",
    "hosts": ["algo-1"],
    "current_instance_type": "ml.c5.xlarge",
    "network_interface_name": "eth0",
}
TWO_HOSTS: Mapping[str, object] = {**ONE_HOST, "hosts": ["algo-1", "algo-2"]}
TWO_GROUPS: Mapping[str, object] = {
    **ONE_HOST,
    "hosts": ["algo-1", "algo-2", "algo-3"],
    "current_group_name": "cpu",
    "instance_groups": [
        {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {
            "instance_group_name": "gpu",
            "instance_type": "ml.g5.xlarge",
            "hosts": ["algo-2", "algo-3"],
        },
    ],
}
PROGRAM: Mapping[str, object] = {"sagemaker_program": "train.py"}


def write_tree(
    base: Path,
    hyperparameters: object = PROGRAM,
    resources: object = ONE_HOST,
    inputs: object = None,
    **variables: str,
) -> dict[str, str]:
    """Writes the three files below `base`; the environment of a `train` that reads them.

    A value of bytes is written as it is, None leaves the file out; `inputs` None means `{}`.
    """
    config = base / "input" / "config"
    config.mkdir(parents=True, exist_ok=True)
    contents = {
        "hyperparameters.json": hyperparameters,
        "resourceconfig.json": resources,
        "inputdataconfig.json": {} if inputs is None else inputs,
    }
    for name, content in contents.items():
        if content is not None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            (config / name).write_bytes(data)
    return {"SAGEMAKER_BASE_DIR": str(base), **variables}

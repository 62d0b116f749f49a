"""Runs under SDK v3, in an environment of its own: one request in, one answer out, as JSON.

`model_trainer.py REQUEST ANSWER`. Runs one local job, or says what `Muster` refuses. The SDK's own
output goes to stdout, untouched.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sagemaker.core.helper.session_helper import Session
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.defaults import TrainDefaults
from sagemaker.train.distributed import MPI, Torchrun
from sagemaker.train.local import local_container
from sagemaker.train.model_trainer import Mode

from muster.sdk.v3 import Muster

CLASSES = {each.__name__: each for each in (MPI, Torchrun, Muster)}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """One local job; `error` is what the SDK raised, None when it says that all is well."""
    # the SDK deletes every host's folder after the job; this test looks into them
    local_container._rmtree = lambda path, image=None, is_studio=False: None
    try:
        inputs = [
            InputData(channel_name=name, data_source=path)
            for name, path in request.get("inputs", {}).items()
        ]
        _trainer(request).train(input_data_config=inputs, wait=True)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


def _trainer(request: dict[str, Any]) -> ModelTrainer:
    source, distributed = request.get("source_code"), request.get("distributed")
    return ModelTrainer(
        training_image=request["image"],
        training_mode=Mode.LOCAL_CONTAINER,
        base_job_name=request["name"],
        source_code=SourceCode(**source) if source else None,
        distributed=CLASSES[distributed["class"]](**distributed["arguments"])
        if distributed
        else None,
        compute=Compute(instance_type="local_cpu", instance_count=request["hosts"]),
        hyperparameters=request["hyperparameters"],
        environment=request.get("environment", {}),
        local_container_root=request["root"],
    )


def refused(request: dict[str, Any]) -> dict[str, Any]:
    """For each case what `Muster` says to its arguments; the fields of all classes."""
    answers: dict[str, Any] = {"fields": {n: list(c.model_fields) for n, c in CLASSES.items()}}
    for case in request["cases"]:
        try:
            made = Muster(**case["arguments"])
            answers[case["name"]] = {
                "folder": made.driver_dir,
                "script": made.driver_script,
                "dumped": made.model_dump(),
                "again": Muster(**made.model_dump()).model_dump(),
                "validated": Muster.model_validate(made.model_dump()).model_dump(),
                "read": Muster.model_validate_json(made.model_dump_json()).model_dump(),
            }
        except Exception as error:
            answers[case["name"]] = f"{type(error).__name__}: {error}"
    return answers


def shown(request: dict[str, Any]) -> dict[str, Any]:
    """Runs examples of a page up to their `train`; for each the fields of its distribution."""
    asked: list[Any] = []

    def train(self: ModelTrainer, inputs: list[InputData]) -> None:
        asked.append(self.distributed.model_dump() if self.distributed else None)

    ModelTrainer.train = train
    # these would ask AWS
    TrainDefaults.get_role = staticmethod(lambda role, **_: role)
    Session.default_bucket = lambda self: "bucket"
    names: dict[str, Any] = {}
    for example in request["examples"]:
        exec(example, names)
    return {"sent": asked}


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    kinds = {"cases": refused, "examples": shown}
    answer = next((kinds[name] for name in kinds if name in request), run)(request)
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()

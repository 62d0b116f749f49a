"""Runs under SDK v2, in an environment of its own: one request in, one answer out, as JSON.

`estimators.py REQUEST ANSWER`. A request either runs one local job, or asks what real estimators
send for a list of distributions. The SDK's own output goes to stdout, untouched.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sagemaker
import sagemaker.estimator
import sagemaker.local.image
from sagemaker.estimator import Estimator
from sagemaker.huggingface import HuggingFace
from sagemaker.local import LocalSession
from sagemaker.mxnet import MXNet
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow

ROLE = "arn:aws:iam::111122223333:role/local"
CLASSES = {each.__name__: each for each in (Estimator, HuggingFace, MXNet, PyTorch, TensorFlow)}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """One local job; `error` is what `fit` raised, None when it says that all is well."""
    _keep_what_hosts_left()
    session = LocalSession()
    root = {"local_code": True, "container_root": request["root"]}
    session.config = {"local": root}
    try:
        _estimator(request, session).fit(request.get("inputs"), job_name=request["name"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


def _estimator(request: dict[str, Any], session: LocalSession) -> Any:
    values: dict[str, Any] = {
        "image_uri": request["image"],
        "role": ROLE,
        "instance_count": request["hosts"],
        "instance_type": "local",
        "sagemaker_session": session,
        "hyperparameters": request["hyperparameters"],
        "environment": request.get("environment", {}),
        "output_path": f"file://{request['root']}/out",
        **request.get("arguments", {}),
    }
    return CLASSES[request["class"]](**values)


def _keep_what_hosts_left() -> None:
    """The SDK deletes every host's folder after the job; this test looks into them."""
    keep: Callable[..., None] = lambda self, dirs_to_delete=None: None  # noqa: E731
    sagemaker.local.image._SageMakerContainer._cleanup = keep


def sent(request: dict[str, Any]) -> dict[str, Any]:
    """For each case what the estimator sends as hyperparameters, or what it raised."""
    session = LocalSession()
    answers: dict[str, Any] = {}
    for case in request["cases"]:
        one = {"hosts": 1, "hyperparameters": {}, "root": "/tmp", "image": "image:1", **case}
        try:
            estimator = _estimator(one, session)
            if "instance_type" in case:
                estimator.instance_type = case["instance_type"]
            values = estimator.hyperparameters()
            answers[case["name"]] = {name: str(value) for name, value in values.items()}
        except Exception as error:
            answers[case["name"]] = f"{type(error).__name__}: {error}"
    if "imports" in request:
        answers["imported"] = _why_not(request["imports"])
    return answers


def shown(request: dict[str, Any]) -> dict[str, Any]:
    """Runs examples of a page up to their `fit`; for each what the estimator would send."""
    sent_by: list[Any] = []

    def fit(self: Any, inputs: Any = None, **_: object) -> None:
        sent_by.append({name: str(value) for name, value in self.hyperparameters().items()})

    sagemaker.estimator.EstimatorBase.fit = fit
    names: dict[str, Any] = {}
    for example in request["examples"]:
        exec(example, names)
    return {"sent": sent_by}


def _why_not(module: str) -> str:
    """What an import says against it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return ""


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    kinds = {"cases": sent, "examples": shown}
    answer = next((kinds[name] for name in kinds if name in request), run)(request)
    Path(sys.argv[2]).write_text(json.dumps({"version": sagemaker.__version__, **answer}))


if __name__ == "__main__":
    main()

"""Judges objects of Kubernetes by upstream's own schemas; runs in .cache/kubernetes.

stdin: [[version, object], ...], JSON. stdout: what is wrong with each, "" for nothing.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def problem(version: str, made: dict[str, Any]) -> str:
    """Unknown fields are one, too."""
    kind = made["kind"]
    if kind in ("JobSet", "TrainJob"):
        from kubeflow_trainer_api import models

        name = {"JobSet": "JobsetV1alpha2JobSet", "TrainJob": "TrainerV1alpha1TrainJob"}[kind]
        back = json.loads(getattr(models, name).from_dict(made).to_json())
        lost = missing(made, back)
        return f"{kind}: lost {lost}" if lost else ""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(made, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return ""


def missing(one: Any, other: Any, at: str = "") -> list[str]:
    """The paths of `one` that `other` lacks: models drop silently what they do not know."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = [f"{at}.{key}" for key in one if key not in other]
        kept = [(one[key], other[key], f"{at}.{key}") for key in one if key in other]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found = []
        kept = [(a, b, f"{at}[{n}]") for n, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        return [] if one == other else [at]
    return found + [path for entry in kept for path in missing(*entry)]


if __name__ == "__main__":
    json.dump([problem(version, made) for version, made in json.load(sys.stdin)], sys.stdout)

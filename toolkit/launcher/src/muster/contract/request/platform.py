"""The platform's undocumented files, as hints.

Every file and key may be absent or of another shape than recorded: what cannot be understood is
left out with one warning, and nothing here ever ends a job. The files hold account numbers and
tags: only the fields of `Platform` leave this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from muster.contract.findings import Findings
from muster.types.job import Platform

CHECKPOINTS = "checkpointconfig.json"
INIT = "init-config.json"
REQUEST = "trainingjobconfig.json"
METRICS = "metric-definition-regex.json"
TENSORBOARD = "tensorboardoutputconfig.json"
MAX_BYTES = 4 << 20


def read_platform(config: str, found: tuple[str, ...], findings: Findings) -> Platform:
    """What the files `found` in folder `config` hint at; at most one warning."""
    odd: list[str] = []
    documents = {name: _load(config, name, odd) for name in found}
    platform = _platform(documents, odd)._replace(found=found)
    if odd:
        findings.warn(f"platform files not understood, left out: {', '.join(odd)}")
    return platform


def _load(config: str, name: str, odd: list[str]) -> Any:
    try:
        with open(f"{config}/{name}", "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) <= MAX_BYTES:
            return json.loads(data.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        pass
    odd.append(name)
    return None


def _platform(documents: Mapping[str, Any], odd: list[str]) -> Platform:
    request = documents.get(REQUEST)
    stopping, checkpoint = (
        _get(request, key, dict, odd, REQUEST) for key in ("StoppingCondition", "CheckpointConfig")
    )
    own = documents.get(CHECKPOINTS)
    run = _get(documents.get(INIT), "jobRunInfo", dict, odd, INIT)
    tensorboard = documents.get(TENSORBOARD)
    return Platform(
        attempt=_get(run, "jobRunNumber", int, odd, INIT),
        max_runtime_s=_get(stopping, "MaxRuntimeInSeconds", int, odd, REQUEST),
        max_wait_s=_get(stopping, "MaxWaitTimeInSeconds", int, odd, REQUEST),
        spot=_get(request, "EnableManagedSpotTraining", bool, odd, REQUEST),
        encrypted_traffic=_get(
            request, "EnableInterContainerTrafficEncryption", bool, odd, REQUEST
        ),
        network_isolation=_get(request, "EnableNetworkIsolation", bool, odd, REQUEST),
        checkpoint_dir=_get(own, "LocalPath", str, odd, CHECKPOINTS)
        or _get(checkpoint, "LocalPath", str, odd, REQUEST),
        checkpoint_uri=_get(own, "S3Uri", str, odd, CHECKPOINTS)
        or _get(checkpoint, "S3Uri", str, odd, REQUEST),
        tensorboard_dir=_get(tensorboard, "LocalPath", str, odd, TENSORBOARD),
        metrics=_metrics(documents, odd),
    )


def _get(holder: Any, key: str, kind: type, odd: list[str], name: str) -> Any:
    """`holder[key]` when it has the kind; None when absent, and a note when of another kind."""
    value = holder.get(key) if isinstance(holder, dict) else None
    if holder is None or (isinstance(holder, dict) and value is None) or type(value) is kind:
        return value
    if kind is int and isinstance(value, str) and value.isdecimal() and len(value) < 12:
        return int(value)
    if name not in odd:
        odd.append(name)
    return None


def _metrics(documents: Mapping[str, Any], odd: list[str]) -> tuple[tuple[str, str], ...]:
    """(name, expression) pairs; `Name` and `Regex` in either case."""
    entries = documents.get(METRICS)
    if not entries:
        algorithm = _get(documents.get(REQUEST), "AlgorithmSpecification", dict, odd, REQUEST)
        entries = _get(algorithm, "MetricDefinitions", list, odd, REQUEST)
    pairs: list[tuple[str, str]] = []
    for entry in entries if isinstance(entries, list) else []:
        folded = {k.lower(): v for k, v in entry.items()} if isinstance(entry, dict) else {}
        name, expression = folded.get("name"), folded.get("regex")
        if isinstance(name, str) and isinstance(expression, str):
            pairs.append((name, expression))
        elif METRICS not in odd:
            odd.append(METRICS)
    if entries and not isinstance(entries, list) and METRICS not in odd:
        odd.append(METRICS)
    return tuple(pairs)

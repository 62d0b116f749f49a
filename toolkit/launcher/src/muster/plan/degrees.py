"""Whether the ranks of a job can be cut into the groups that its parallel degrees ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.types.distribution import MODEL_PARALLEL, SMP_BOTH, SMP_VERSION_2
from muster.types.errors import ConfigError, Problem
from muster.types.job import Job

_KEY = "mp_parameters"
_SHARDED = ("sharded_data_parallel_degree", "hybrid_shard_degree")


def check_degrees(job: Job, world_size: int) -> None:
    """Raises ConfigError when the degrees cannot cut that many ranks: then no library can place the
    model, which is known before the start. muster_modelparallel checks the same, in these words."""
    parameters = _parameters(job)
    if parameters is None:
        return
    pipeline, tensor = _pipeline(parameters), _degree(parameters, "tensor_parallel_degree")
    product = f"pipeline {pipeline} x tensor {tensor} = {pipeline * tensor}"
    if world_size % (pipeline * tensor):
        what = f"{product} does not divide the world size {world_size}"
        fix = "change the degrees, processes_per_host or the number of hosts"
        raise ConfigError.of(_KEY, what, fix)
    replicas, problems = world_size // (pipeline * tensor), []
    sent = {key for key, value in parameters.items() if value is not None}
    of_version_1 = sent - SMP_BOTH and not sent & SMP_VERSION_2  # keys of both do not tell
    if replicas > 1 and of_version_1 and parameters.get("ddp") is not True:
        what = f"the world size {world_size} is more than {product}, and ddp is not true"
        problems.append(Problem(_KEY, what, f'set "ddp": true to train {replicas} replicas'))
    for name in _SHARDED:
        if replicas % (degree := _degree(parameters, name)):
            what = f"{name} {degree} does not divide the data-parallel size {replicas}"
            problems.append(Problem(_KEY, what, f"use a divisor of {replicas}"))
    if problems:
        raise ConfigError(problems)


def degrees_text(job: Job, world_size: int) -> str:
    """`pipeline 2 x tensor 1 x data 2 (sharded 2)`, of degrees that were checked; "" for a job
    without model parallelism."""
    parameters = _parameters(job)
    if parameters is None:
        return ""
    pipeline, tensor = _pipeline(parameters), _degree(parameters, "tensor_parallel_degree")
    sharded = max(_degree(parameters, name) for name in _SHARDED)
    more = f" (sharded {sharded})" if sharded > 1 else ""
    return f"pipeline {pipeline} x tensor {tensor} x data {world_size // (pipeline * tensor)}{more}"


def _parameters(job: Job) -> Mapping[str, Any] | None:
    found = {MODEL_PARALLEL: job.documents.hyperparameters.get(_KEY)}.get(job.distribution.option)
    return found if isinstance(found, dict) else None


def _pipeline(parameters: Mapping[str, Any]) -> int:
    return max(_degree(parameters, name) for name in ("pipeline_parallel_degree", "partitions"))


def _degree(parameters: Mapping[str, Any], name: str) -> int:
    """1 for what was not sent, and for 0, which leaves it to the script."""
    value = parameters.get(name)
    return int(value) if isinstance(value, int | float) and value > 0 else 1

"""Whether the ranks of a job can be cut into the groups that its parallel degrees ask for."""

from __future__ import annotations

from muster.types.distribution import MODEL_PARALLEL
from muster.types.errors import ConfigError
from muster.types.job import Job

_KEY = "mp_parameters"


def check_degrees(job: Job, world_size: int) -> None:
    """Raises ConfigError when pipeline x tensor degree does not divide the number of ranks: then
    no library can place the model, which is known before the start."""
    parameters = job.documents.hyperparameters.get(_KEY)
    if job.distribution.option != MODEL_PARALLEL or not isinstance(parameters, dict):
        return
    pipeline = parameters.get("pipeline_parallel_degree") or parameters.get("partitions") or 1
    tensor = parameters.get("tensor_parallel_degree") or 1
    if not isinstance(pipeline, int) or not isinstance(tensor, int):
        return
    if world_size % (pipeline * tensor):
        raise ConfigError.of(
            _KEY,
            f"pipeline {pipeline} x tensor {tensor} = {pipeline * tensor} does not divide the "
            f"world size {world_size}",
            "change the degrees, processes_per_host or the number of hosts",
        )

"""The distribution option as a closed union: one small value per way of starting ranks."""

from __future__ import annotations

from typing import Union

from muster.types.values import NamedTuple

MODEL_PARALLEL = "smdistributed.modelparallel"
# keys of mp_parameters that only version 2 of that library has, and those that both have
SMP_VERSION_2 = frozenset(
    {"hybrid_shard_degree", "context_parallel_degree", "expert_parallel_degree", "random_seed"}
    | {"sm_activation_offloading", "fsdp_cache_flush_warnings", "allow_empty_shards"}
)
SMP_BOTH = frozenset({"tensor_parallel_degree", "activation_loading_horizon"})


class Single(NamedTuple):
    """No distribution: the script runs once per host."""

    option: str = "none"


class Torchrun(NamedTuple):
    """torchrun on every host. `processes_per_host` None: the devices found, else 1.

    `data_parallel`: smdistributed.dataparallel was asked for beside it, as the SDK demands on p5.
    """

    option: str = "torch_distributed"
    processes_per_host: int | None = None
    data_parallel: bool = False


class Mpi(NamedTuple):
    """mpirun on the leader. `option` is the one that the request named."""

    option: str = "mpi"
    processes_per_host: int | None = None
    processes: int | None = None
    custom_options: str = ""


class ParameterServer(NamedTuple):
    """Server and worker processes on every host; also `multi_worker_mirrored_strategy`.

    `scheduler_port`, `verbosity`: MXNet's, from the hyperparameters `_ps_port` and `_ps_verbose`.
    """

    option: str = "parameter_server"
    processes_per_host: int | None = None
    scheduler_port: int | None = None
    verbosity: int | None = None


Distribution = Union[Single, Torchrun, Mpi, ParameterServer]  # noqa: UP007 - a runtime alias on 3.10


def switch_on(locally: bool) -> str:
    """How torch_distributed is asked for, in the words of `muster local` or of the SDK."""
    if locally:
        return "--distribution torch_distributed"
    return (
        'distribution={"torch_distributed": {"enabled": True}} or --distribution torch_distributed '
        "(hyperparameter sagemaker_torch_distributed_enabled=true)"
    )

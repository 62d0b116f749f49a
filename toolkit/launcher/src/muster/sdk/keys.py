"""The hyperparameters of a distribution, in the form that every SDK hands on unharmed."""

from __future__ import annotations

import json
from collections.abc import Mapping

from muster.sdk.distribution import to_hyperparameters


def hyperparameters(
    distribution: Mapping[str, object] | str,
    *,
    processes_per_host: int | None = None,
    custom_mpi_options: str | None = None,
    instance_type: str | None = None,
) -> dict[str, str]:
    """What to add to the hyperparameters of a job, so that `train` runs it distributed.

    `distribution`: a dictionary as framework estimators take it, or a bare name: `none`,
    `torch_distributed`, `mpi`, `smdistributed.dataparallel` (`smddp`, `pytorchddp`),
    `smdistributed.modelparallel` (`smp`; with torchrun), `parameter_server`,
    `multi_worker_mirrored_strategy`. `processes_per_host`, `custom_mpi_options`: of the one that is
    enabled; they win over the dictionary's own.
    `instance_type`: only passed to scripts of smdistributed.dataparallel.

    Texts stand as they are and all else as JSON. That survives the generic Estimator of SDK v2 in
    both of its spellings - it encodes what has an entry point and takes `str()` of what has none -
    and SDK v3, which leaves texts alone. Raises RequestError naming every misspelt key and its fix.
    """
    encoded = to_hyperparameters(
        distribution,
        processes_per_host=processes_per_host,
        custom_mpi_options=custom_mpi_options,
        instance_type=instance_type,
    )
    return {name: _plain(text) for name, text in encoded.items()}


def _plain(text: str) -> str:
    value = json.loads(text)
    return value if isinstance(value, str) else text

"""`Muster`, the `distributed=` of SDK v3's ModelTrainer that starts muster's `train` on every
host."""

from __future__ import annotations

import os
from collections.abc import Mapping

from muster.sdk.request import distributed_fields

try:
    from sagemaker.train.distributed import DistributedConfig
except ImportError as error:
    raise ImportError(
        f"muster.sdk.v3 needs version 3 of SageMaker's SDK ({error}): pip install 'sagemaker>=3'; "
        "for version 2 there is muster.sdk.hyperparameters"
    ) from error


class Muster(DistributedConfig):  # type: ignore[misc]
    """A distribution that `train` of the image runs, on any number of hosts.

    `Muster("mpi", processes_per_host=2)`: a bare name or a dictionary as for
    `muster.sdk.hyperparameters`. The script gets the job's hyperparameters as `--key value`.
    What `model_dump()` gives makes the same again, as arguments or by `model_validate`.
    Raises RequestError for everything that could not run, naming the fix.
    """

    muster: dict[str, str]

    def __init__(
        self,
        distribution: Mapping[str, object] | str | None = None,
        *,
        processes_per_host: int | None = None,
        custom_mpi_options: str | None = None,
        **unknown: object,
    ) -> None:
        fields = distributed_fields(distribution, processes_per_host, custom_mpi_options, unknown)
        super().__init__(muster=fields)

    @property
    def driver_dir(self) -> str:
        """The folder that the SDK copies into the job."""
        return os.path.join(os.path.dirname(os.path.abspath(__file__)), "driver")

    @property
    def driver_script(self) -> str:
        return "muster_driver.py"

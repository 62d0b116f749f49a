"""The names of sagemaker-training that training scripts import, served by muster-compat.

`environment`, `params`, `encoders`, `content_types`, `errors` and `logging_config`. What starts
jobs is not here: that is muster's `train`.
"""

from __future__ import annotations

# modules of the package itself that are not served
_ABSENT = frozenset(
    (
        "cli", "entry_point", "files", "functions", "intermediate_output", "mapping", "modules",
        "mpi", "process", "record_pb2", "recordio", "runner", "smdataparallel", "timeout",
        "torch_distributed", "trainer",
    )
)  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _ABSENT:
        raise ModuleNotFoundError(
            f"No module named 'sagemaker_training.{name}' in muster-compat, which has what "
            "training scripts import: environment, params, encoders\n"
            "  Fix: pip install sagemaker-training, and then muster's launcher again, so that "
            "`train` stays muster's",
            name=f"sagemaker_training.{name}",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

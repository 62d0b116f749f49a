"""SDK v3's `distributed=` -> the hyperparameters that ask for the same.

ModelTrainer puts the fields of its DistributedConfig into one variable, for a driver of its own.
Where `train` runs in that driver's place, the fields are all there is of the request.
Source: sdk-and-local-mode.md 2.1-2.4.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from muster.contract.distribution import MPI_OPTIONS, PROCESSES_PER_HOST
from muster.contract.findings import Findings, named

VARIABLE = "SM_DISTRIBUTED_CONFIG"
OURS = "muster"  # the one field of muster.sdk.v3.Muster
_COUNT = "process_count_per_node"
_MPI = frozenset({_COUNT, "mpi_additional_options"})
_TORCHRUN = frozenset({_COUNT, "smp"})


def with_distributed(
    document: Mapping[str, object], environ: Mapping[str, str], findings: Findings
) -> dict[str, object]:
    """The hyperparameters of the file, and those that the SDK's `distributed=` stands for.

    Understood are `Muster`, and the SDK's own `Torchrun` and `MPI`, which it drops when
    `SourceCode` has a command. A key that the file has with another value is a problem.
    """
    keys = _keys(environ.get(VARIABLE, ""), findings)
    for name, value in keys.items():
        if document.get(name, value) != value:
            what = f"the hyperparameters have one value for it, {VARIABLE} another"
            findings.problem(name, what, "say it once: with distributed=, or as a hyperparameter")
    return {**keys, **document}


def _keys(text: str, findings: Findings) -> dict[str, str]:
    if not text:
        return {}
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        # what it holds is not shown: options of mpirun may be secrets
        findings.problem(VARIABLE, "expected a JSON object", "leave it to the SDK, or unset it")
        return {}
    if OURS in config:
        return _ours(config[OURS], findings)
    if config.keys() == _MPI:
        options = config["mpi_additional_options"] or []
        keys: dict[str, object] = {
            "sagemaker_mpi_enabled": True,
            MPI_OPTIONS: options if isinstance(options, str) else shlex.join(map(str, options)),
        }
    elif config.keys() == _TORCHRUN:  # its `smp` arrives as the hyperparameter mp_parameters
        keys = {"sagemaker_torch_distributed_enabled": True}
    else:
        if config:
            findings.warn(f"{VARIABLE}: nothing is known of {named(list(config))}; it is ignored")
        return {}
    if config[_COUNT] is not None:
        keys[PROCESSES_PER_HOST] = config[_COUNT]
    return {name: json.dumps(value) for name, value in keys.items()}


def _ours(keys: object, findings: Findings) -> dict[str, str]:
    if isinstance(keys, dict) and all(isinstance(value, str) for value in keys.values()):
        return dict(keys)
    what = f"expected an object of texts in {OURS!r}"
    findings.problem(VARIABLE, what, "make it with muster.sdk.v3.Muster")
    return {}

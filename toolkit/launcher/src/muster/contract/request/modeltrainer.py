"""SDK v3's `distributed=` -> the hyperparameters that ask for the same.

ModelTrainer puts the fields of its DistributedConfig, without the name of its class, into one
variable for a driver of its own. Where `train` runs in that driver's place, the fields are all
there is of the request.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from muster.contract.findings import ENOUGH, Findings
from muster.contract.request.cluster import GROUPS_KEY
from muster.contract.request.distribution import (
    MPI_OPTIONS,
    PROCESSES_PER_HOST,
    SMDDP,
    SMDDP_OPTIONS,
)
from muster.contract.request.hyperparameters import PREFIX
from muster.contract.request.model_parallel import KEY
from muster.types.names import did_you_mean, listed
from muster.types.plain import short

VARIABLE = "SM_DISTRIBUTED_CONFIG"
OURS = "muster"  # the one field of muster.sdk.v3.Muster
# all that a request of Muster's is made of
REQUEST_KEYS = (
    "sagemaker_torch_distributed_enabled",
    "sagemaker_mpi_enabled",
    SMDDP,
    "sagemaker_parameter_server_enabled",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
    PROCESSES_PER_HOST,
    MPI_OPTIONS,
    SMDDP_OPTIONS,
    GROUPS_KEY,
    KEY,
)
_COUNT = "process_count_per_node"
_OPTIONS = "mpi_additional_options"  # no other class of the SDK has it
_SMP = "smp"  # nor this
# class -> what `distributed=` of it holds, in sagemaker 3.27.0
FIELDS = {"Muster": (OURS,), "MPI": (_COUNT, _OPTIONS), "Torchrun": (_COUNT, _SMP)}


def with_distributed(
    document: Mapping[str, object], environ: Mapping[str, str], findings: Findings
) -> dict[str, object]:
    """The hyperparameters of the file, and those that the SDK's `distributed=` stands for.

    Understood are `Muster`, and the SDK's own `Torchrun` and `MPI`, which it drops when
    `SourceCode` has a command. A key that the file has with another value is a problem.

    Fields of any other class are one too. Such a class has a driver of its own, which runs instead
    of `train`, so that `train` meets its fields in two cases only and cannot distinguish them: a
    command has displaced the driver, and a job that ignored the request would be as many separate
    trainings as it has hosts; or the driver calls `train`, and then it can unset the variable.
    """
    keys = _keys(environ.get(VARIABLE, ""), findings)
    for name, value in keys.items():
        if name in document and not _same(document[name], value):
            what = f"the hyperparameters have one value for it, {VARIABLE} another"
            findings.problem(name, what, "say it once: with distributed=, or as a hyperparameter")
    return {**keys, **document}


def read_keys(keys: object, where: str, findings: Findings) -> dict[str, str]:
    """The keys that `Muster` made; another type, or a key that it never makes, is a problem."""
    fix = "make it with muster.sdk.v3.Muster, in the version of the image"
    if not isinstance(keys, dict) or not all(isinstance(value, str) for value in keys.values()):
        findings.problem(where, f"expected an object of texts in {OURS!r}", fix)
        return {}
    for name in [name for name in keys if name not in REQUEST_KEYS][:ENOUGH]:
        guess = did_you_mean(str(name), REQUEST_KEYS, PREFIX)
        what = f"{OURS!r} cannot hold the key {short(name)}{guess}"
        findings.problem(where, what, f"{fix}; what is for the script is a hyperparameter")
    return {name: value for name, value in keys.items() if name in REQUEST_KEYS}


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
    if not config:  # no distributed=
        return {}
    kind = _class(config)
    fields = FIELDS.get(kind, ())
    others = [short(name) for name in config if name not in fields]
    if not kind:
        _unknown(others, findings)
        return {}
    if others:
        findings.warn(f"{VARIABLE}: {kind} has no field {listed(others)} here; it is ignored")
    if kind == "Muster":
        return read_keys(config[OURS], VARIABLE, findings)
    return _stock(config, kind, findings)


def _class(config: Mapping[str, object]) -> str:
    """Which class these fields are of, by what no other class has; "" where that is not certain."""
    if OURS in config:
        return "Muster"
    marks = {name for name in (_OPTIONS, _SMP) if name in config}
    if marks == {_OPTIONS}:
        return "MPI"
    if marks == {_SMP} or config.keys() == {_COUNT}:
        return "Torchrun"
    return ""


def _unknown(fields: list[str], findings: Findings) -> None:
    what = f"no distributed= that is known has the fields {listed(fields)}"
    fix = (
        "use muster.sdk.v3.Muster, or no distributed= and muster.sdk.hyperparameters; "
        "a driver that calls `train` itself unsets the variable first"
    )
    findings.problem(VARIABLE, what, fix)


def _stock(config: Mapping[str, object], kind: str, findings: Findings) -> dict[str, str]:
    """The keys of the SDK's own classes. `smp` comes as the hyperparameter mp_parameters."""
    keys: dict[str, object] = {"sagemaker_torch_distributed_enabled": True}
    if kind == "MPI":
        options = _words(config[_OPTIONS], findings)
        keys = {"sagemaker_mpi_enabled": True, MPI_OPTIONS: options}
    if config.get(_COUNT) is not None:
        keys[PROCESSES_PER_HOST] = config[_COUNT]
    return {name: json.dumps(value) for name, value in keys.items()}


def _words(options: object, findings: Findings) -> str:
    if options is None or isinstance(options, str):
        return options or ""
    got = type(options).__name__  # not its value, as above
    if isinstance(options, list):
        strange = [type(word).__name__ for word in options if not isinstance(word, str)]
        if not strange:
            return shlex.join(options)
        got = f"a list that holds {strange[0]}"
    what = f"{_OPTIONS}: expected a list of texts or one text, got {got}"
    findings.problem(VARIABLE, what, 'such as ["--bind-to", "none"]')
    return ""


def _same(one: object, other: object) -> bool:
    """Whether two values are read as one: a client sends an empty text as `""` or as nothing."""
    try:
        return _decoded(one) == _decoded(other)
    except RecursionError:
        return False


def _decoded(value: object) -> object:
    while isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return value

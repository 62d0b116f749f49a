"""A `distribution` as the SDK takes it -> the hyperparameters that switch it on.

For generic Estimators, which ignore `distribution=` silently, and for `muster local`. What SDK v2's
PyTorch estimator sends is sent; what it drops silently is refused (B25).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from muster.contract.findings import Findings
from muster.contract.request.cluster import GROUPS_KEY
from muster.contract.request.distribution import (
    MAX_PROCESSES,
    MPI_OPTIONS,
    PROCESSES_PER_HOST,
    SMDDP,
    SMDDP_OPTIONS,
)
from muster.contract.request.model_parallel import KEY, check_parameters
from muster.sdk.refusal import RequestError
from muster.types.distribution import MODEL_PARALLEL
from muster.types.names import did_you_mean, listed
from muster.types.plain import short
from muster.types.values import NamedTuple

TORCH = "sagemaker_torch_distributed_enabled"


class _Strategy(NamedTuple):
    key: str  # the hyperparameter that switches it on
    options: tuple[str, ...] = ()
    options_key: str = ""


_STRATEGIES = {
    "torch_distributed": _Strategy(TORCH, ("processes_per_host",)),
    "mpi": _Strategy(
        "sagemaker_mpi_enabled", ("processes_per_host", "custom_mpi_options"), MPI_OPTIONS
    ),
    "smdistributed.dataparallel": _Strategy(
        SMDDP, ("processes_per_host", "custom_mpi_options"), SMDDP_OPTIONS
    ),
    "parameter_server": _Strategy("sagemaker_parameter_server_enabled"),
    "multi_worker_mirrored_strategy": _Strategy("sagemaker_multi_worker_mirrored_strategy_enabled"),
}
_DATA_PARALLEL = "smdistributed.dataparallel"
_ALIASES = {
    "smddp": "smdistributed.dataparallel",
    "pytorchddp": "smdistributed.dataparallel",  # as SDK 2.257.7 rewrites it
    "torchrun": "torch_distributed",
    "smp": MODEL_PARALLEL,
    "horovod": "mpi",
    "ps": "parameter_server",
    "mwms": "multi_worker_mirrored_strategy",
}
# what people call a job that torchrun starts
_LIBRARIES = frozenset(
    {"pytorch", "torch", "ddp", "fsdp", "fsdp2", "deepspeed", "accelerate", "lightning"}
    | {"pytorch_lightning", "transformers", "huggingface"}
)
NAMES = ("none", *_STRATEGIES, MODEL_PARALLEL, *_ALIASES)
_TOP_LEVEL = (
    "torch_distributed",
    "mpi",
    "pytorchddp",
    "smdistributed",
    "parameter_server",
    "multi_worker_mirrored_strategy",
    "instance_groups",
)


class _Options(NamedTuple):
    """One strategy of a distribution, with its values as given."""

    where: str
    name: str
    values: Mapping[str, object]


def to_hyperparameters(
    distribution: Mapping[str, object] | str,
    *,
    processes_per_host: int | None = None,
    custom_mpi_options: str | None = None,
    instance_type: str | None = None,
    elsewhere: bool = False,
) -> dict[str, str]:
    """The hyperparameters of a distribution, each JSON-encoded as framework estimators do.

    `distribution`: a dictionary in any of the SDK's forms, or a bare name such as `mpi`.
    `processes_per_host`, `custom_mpi_options`: of the strategy that is enabled; they win over the
    dictionary's own. `elsewhere`: other hyperparameters may enable one.
    Raises RequestError naming every misspelt or unusable key and its fix.
    """
    findings = Findings()
    strategies = _strategies(distribution, findings)
    values: dict[str, object] = {}
    enabled = [options.name for options in strategies if _translate(options, values, findings)]
    if instance_type is not None and {SMDDP, TORCH} & values.keys():
        values["sagemaker_instance_type"] = instance_type
    if processes_per_host is not None:
        _set_processes("processes_per_host", processes_per_host, values, findings)
        if not (enabled or elsewhere or findings.problems):
            what = "no distribution is enabled: the script runs once on each host"
            findings.problem("processes_per_host", what, "leave it out, or choose a distribution")
    if custom_mpi_options is not None:
        _set_mpi_options(custom_mpi_options, enabled, values, findings)
    if isinstance(distribution, Mapping) and distribution.get("instance_groups"):
        values[GROUPS_KEY] = _group_names(distribution["instance_groups"], findings)
        if not enabled:
            what = "no strategy is enabled for the groups"
            findings.problem("instance_groups", what, "enable one, such as torch_distributed")
    _check_combination(enabled, findings)
    if findings.problems:
        raise RequestError(findings.problems)
    return {key: json.dumps(value) for key, value in values.items()}


def _strategies(distribution: Mapping[str, object] | str, findings: Findings) -> list[_Options]:
    if isinstance(distribution, str):
        return _by_name(distribution, findings)
    if not isinstance(distribution, Mapping):
        what, fix = "a name or a dictionary", "such as 'torch_distributed'"
        findings.expected("distribution", what, distribution, fix)
        return []
    found: list[_Options] = []
    for key, value in distribution.items():
        if key == "instance_groups":
            continue
        if key not in _TOP_LEVEL:
            _unknown("distribution", key, _TOP_LEVEL, findings)
        elif not isinstance(value, Mapping):
            where = f"distribution[{key!r}]"
            findings.expected(where, "a dictionary", value, 'write {"enabled": True}')
        elif key == "smdistributed":
            found += _smdistributed(value, findings)
        else:
            found.append(_Options(key, _ALIASES.get(key, key), value))
    return found


def _by_name(name: str, findings: Findings) -> list[_Options]:
    if name == "none":
        return []
    full = _ALIASES.get(name, name)
    if full == MODEL_PARALLEL:  # torchrun starts it; its parameters are a hyperparameter
        return [_Options(name, one, {"enabled": True}) for one in (full, "torch_distributed")]
    if full not in _STRATEGIES:
        _unknown("distribution", name, NAMES, findings)
        return []
    return [_Options(name, full, {"enabled": True})]


def _smdistributed(value: Mapping[str, object], findings: Findings) -> list[_Options]:
    found: list[_Options] = []
    for key, options in value.items():
        where = f"smdistributed.{key}"
        if key not in ("dataparallel", "modelparallel"):
            _unknown("smdistributed", key, ("dataparallel", "modelparallel"), findings)
        elif not isinstance(options, Mapping):
            findings.expected(where, "a dictionary", options)
        else:
            found.append(_Options(where, where, options))
    return found


def _translate(options: _Options, values: dict[str, object], findings: Findings) -> bool:
    """Adds the keys of one strategy to `values`; whether it is enabled."""
    if options.name == MODEL_PARALLEL:
        return _translate_model_parallel(options, values, findings)
    strategy = _STRATEGIES[options.name]
    enabled = _enabled(options, ("enabled", *strategy.options), findings)
    if enabled or options.name != "torch_distributed":  # sent only when on, as the SDK does
        values[strategy.key] = enabled
    if options.values.get("processes_per_host") is not None:
        where = f"{options.where}.processes_per_host"
        _set_processes(where, options.values["processes_per_host"], values, findings)
    text = _text(options, "custom_mpi_options", findings)
    if strategy.options_key and (enabled or options.name == "mpi"):
        values[strategy.options_key] = text
    return enabled


def _translate_model_parallel(
    options: _Options, values: dict[str, object], findings: Findings
) -> bool:
    enabled = _enabled(options, ("enabled", "parameters"), findings)
    values.setdefault(SMDDP, False)
    where = f"{options.where}.parameters"
    parameters = options.values.get("parameters") or {}
    if isinstance(parameters, str):
        parameters = _parameter_file(where, parameters, findings)
    if not isinstance(parameters, Mapping):
        findings.expected(where, "a dictionary", parameters)
    elif enabled and parameters:
        check_parameters(parameters, where, findings)
        values[KEY] = dict(parameters)
    return enabled


def _parameter_file(where: str, path: str, findings: Findings) -> object:
    """The parameters in a JSON file of this machine, which SDK v2 takes too."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)
        findings.problem(where, f"{short(path)} cannot be read: {why}", "give a dictionary")
        return {}


def _enabled(options: _Options, known: tuple[str, ...], findings: Findings) -> bool:
    for key in options.values:
        if key not in known:
            _unknown(options.where, key, known, findings)
    value = options.values.get("enabled")
    if isinstance(value, bool):
        return value
    got = "it is missing" if "enabled" not in options.values else f"got {short(value)}"
    what = f"expected True or False, {got}"
    findings.problem(f"{options.where}.enabled", what, 'write {"enabled": True}')
    return False


def _text(options: _Options, key: str, findings: Findings) -> str:
    value = options.values.get(key, "")
    if isinstance(value, str):
        return value
    findings.expected(f"{options.where}.{key}", "a string", value)
    return ""


def _set_processes(
    where: str, value: object, values: dict[str, object], findings: Findings
) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PROCESSES:
        what = f"a positive integer up to {MAX_PROCESSES:,}"
        findings.expected(where, what, value, "leave it out: one process per device")
        return
    values[PROCESSES_PER_HOST] = value


def _set_mpi_options(
    text: object, enabled: list[str], values: dict[str, object], findings: Findings
) -> None:
    where = "custom_mpi_options"
    keys = [_STRATEGIES[name].options_key for name in enabled if name in _STRATEGIES]
    if not isinstance(text, str):
        findings.expected(where, "a string", text)
    elif not any(keys):
        named_ones = " and ".join(enabled) or "no distribution"
        what = f"{named_ones} does not run mpirun, which they are for"
        findings.problem(where, what, "leave them out, or choose mpi or smdistributed.dataparallel")
    else:
        values.update({key: text for key in keys if key})


def _group_names(groups: object, findings: Findings) -> list[str]:
    """Names of groups given as names or as the SDK's InstanceGroup objects."""
    items = list(groups) if isinstance(groups, Iterable) and not isinstance(groups, str) else []
    names = [getattr(item, "instance_group_name", item) for item in items]
    if not names or not all(isinstance(name, str) for name in names):
        findings.expected("instance_groups", "a list of groups or of their names", groups)
        return []
    return [str(name) for name in names]


def _check_combination(enabled: list[str], findings: Findings) -> None:
    """The SDK's own rules, and the container's, before a job is paid for."""
    launchers = [name for name in enabled if name != MODEL_PARALLEL]
    both_data_and_model = len(launchers) < len(enabled) and _DATA_PARALLEL in launchers
    if both_data_and_model:
        findings.problem("smdistributed", "choose dataparallel or modelparallel, not both")
    if len(launchers) < len(enabled) and not {"mpi", "torch_distributed"} & set(launchers):
        what = f"{MODEL_PARALLEL} needs mpi or torch_distributed beside it"
        findings.problem("smdistributed", what, 'add "torch_distributed": {"enabled": True}')
    if "torch_distributed" in launchers:  # torchrun starts the ranks; p5 demands the pair
        launchers = [name for name in launchers if name != _DATA_PARALLEL]
    if len(set(launchers)) > 1 and not both_data_and_model:
        what = f"{' and '.join(launchers)} are enabled"
        findings.problem("conflicting distributions", what, "enable one")


def _unknown(where: str, key: str, known: tuple[str, ...], findings: Findings) -> None:
    if where == "distribution" and str(key).lower() in _LIBRARIES:
        what = f"{short(key)} is what the script uses, not what starts it"
        findings.problem(where, what, f"torch_distributed starts scripts that use {key}")
        return
    what = f"unknown key {short(key)}{did_you_mean(str(key), known)}"
    findings.problem(where, what, f"known: {listed(known)}")

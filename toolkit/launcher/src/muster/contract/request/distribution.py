"""The `sagemaker_*` keys -> the one distribution of the job.

Promises: B25.
"""

from __future__ import annotations

from muster.contract.findings import Findings
from muster.contract.request.hyperparameters import Hyperparameters
from muster.types.distribution import (
    MODEL_PARALLEL,
    Distribution,
    Mpi,
    ParameterServer,
    Single,
    Torchrun,
)
from muster.types.plain import short, whole_number

MAX_PROCESSES = 1024
PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
PROCESSES = "sagemaker_mpi_num_processes"
MPI_OPTIONS = "sagemaker_mpi_custom_mpi_options"
SMDDP_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"
SMDDP = "sagemaker_distributed_dataparallel_enabled"

# key -> option, in the order in which the incumbent prefers them
_ENABLES = {
    "sagemaker_mpi_enabled": "mpi",
    "sagemaker_pytorch_ddp_enabled": "pytorchddp",
    "sagemaker_torch_distributed_enabled": "torch_distributed",
    SMDDP: "smdistributed.dataparallel",
    "sagemaker_pytorch_xla_multi_worker_enabled": "pytorchxla",
    "sagemaker_parameter_server_enabled": "parameter_server",
    "sagemaker_multi_worker_mirrored_strategy_enabled": "multi_worker_mirrored_strategy",
}
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


def choose_distribution(
    hyperparameters: Hyperparameters,
    allow_conflicts: bool,
    findings: Findings,
    *,
    several: bool = True,
) -> Distribution:
    """The distribution that the request names; what it gets wrong becomes problems.

    `allow_conflicts`: take the incumbent's pick of two options, with a warning. `several`:
    the job has more than one host.
    """
    asked = [option for key, option in _ENABLES.items() if _flag(hyperparameters, key, findings)]
    enabled = _without_partners(asked)
    if len(enabled) > 1:
        _conflict(enabled, allow_conflicts, findings)
    if "pytorchxla" in enabled[:1]:
        findings.problem(
            "sagemaker_pytorch_xla_multi_worker_enabled",
            "pytorchxla is not supported: PyTorch/XLA has dropped its launcher",
            "use torch_distributed, which also starts XLA scripts on Trainium",
        )
    numbers = (
        _count(hyperparameters, PROCESSES_PER_HOST, findings),
        _count(hyperparameters, PROCESSES, findings),
    )
    option = enabled[0] if enabled else "none"
    model_parallel = bool(hyperparameters.user.get("mp_parameters"))
    if model_parallel and option not in ("mpi", "torch_distributed"):
        _lonely_model_parallel(hyperparameters, findings)
    elif model_parallel:
        from muster.contract.request.model_parallel import KEY, check_parameters

        check_parameters(hyperparameters.user[KEY], KEY, findings)
        findings.origins["distribution"] = f"hyperparameters {KEY} and {_key(option)}"
        value = _value(hyperparameters, option, MODEL_PARALLEL, numbers, findings)
        return _checked(value, option, several, findings)
    findings.origins["distribution"] = (
        f"hyperparameter {_key(option)}" if enabled else "default: no distribution key is enabled"
    )
    value = _value(hyperparameters, option, option, numbers, findings)
    if isinstance(value, Torchrun):
        value = value._replace(data_parallel="smdistributed.dataparallel" in asked)
    return _checked(value, option, several, findings)


def _checked(value: Distribution, option: str, several: bool, findings: Findings) -> Distribution:
    """The same, after its custom MPI options were checked."""
    if isinstance(value, Mpi) and value.custom_options:
        from muster.types.mpi_options import read_request

        where = MPI_OPTIONS if option == "mpi" else SMDDP_OPTIONS
        request = read_request(value.custom_options, where, several=several)
        findings.problems += request.problems
    return value


def _value(
    hyperparameters: Hyperparameters,
    option: str,
    name: str,
    numbers: tuple[int | None, int | None],
    findings: Findings,
) -> Distribution:
    if option in ("none", "pytorchxla"):
        return Single()
    if option == "torch_distributed":
        return Torchrun(name, numbers[0])
    if option in ("parameter_server", "multi_worker_mirrored_strategy"):
        port = _script_number(hyperparameters, "_ps_port", 1, 65_535, findings)
        level = _script_number(hyperparameters, "_ps_verbose", 0, 9, findings)
        return ParameterServer(name, numbers[0], port, level)
    key = MPI_OPTIONS if option == "mpi" else SMDDP_OPTIONS
    options = hyperparameters.framework.get(key) or ""
    if not isinstance(options, str):
        findings.expected(key, "a string", options, "send options as one string")
        options = ""
    return Mpi(name, *numbers, options)


def _key(option: str) -> str:
    return next((key for key, name in _ENABLES.items() if name == option), "")


def _without_partners(enabled: list[str]) -> list[str]:
    """Drops options that SDKs send beside the one that decides.

    torch_distributed beside smdistributed.dataparallel is what the SDK demands on p5: torchrun
    starts the ranks. pytorchddp is the older name of smdistributed.dataparallel.
    """
    dropped = set()
    if "torch_distributed" in enabled:
        dropped.add("smdistributed.dataparallel")
    elif "smdistributed.dataparallel" in enabled:
        dropped.add("pytorchddp")
    return [option for option in enabled if option not in dropped]


def _conflict(enabled: list[str], allowed: bool, findings: Findings) -> None:
    listed = " and ".join([", ".join(enabled[:-1]), enabled[-1]])
    verb = "both" if len(enabled) == 2 else "all"
    what = f"{listed} are {verb} enabled"
    if allowed:
        findings.warn(f"conflicting distributions: {what}; {enabled[0]} is used, as configured")
        return
    findings.problem(
        "conflicting distributions",
        what,
        f"enable one, or set MUSTER_ALLOW_CONFLICTS=1 to use {enabled[0]}",
    )


def _lonely_model_parallel(hyperparameters: Hyperparameters, findings: Findings) -> None:
    what = f"{MODEL_PARALLEL} needs mpi or torch_distributed beside it"
    if SMDDP in hyperparameters.framework:  # the SDK's mark of any smdistributed option
        findings.problem("mp_parameters", what, "enable mpi or torch_distributed as well")
    else:
        findings.warn(f"mp_parameters is only an argument of the script here: {what}")


def _flag(hyperparameters: Hyperparameters, key: str, findings: Findings) -> bool:
    value = hyperparameters.framework.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    truth = _TRUTH.get(str(value).lower()) if isinstance(value, str | int) else None
    if truth is None:
        findings.expected(key, "true or false", value, "send true or false")
    return bool(truth)


def _count(hyperparameters: Hyperparameters, key: str, findings: Findings) -> int | None:
    text = hyperparameters.wire.get(key)
    if text is None:
        return None
    digits = text[1:-1] if text.startswith('"') and text.endswith('"') else text
    count = whole_number(digits, 1, MAX_PROCESSES)
    if count is None:
        what = f"expected a positive integer up to {MAX_PROCESSES:,}, got {_shown(text)}"
        findings.problem(key, what, "send a number such as 8, or leave it out: one per device")
    return count


def _script_number(
    hyperparameters: Hyperparameters, key: str, low: int, high: int, findings: Findings
) -> int | None:
    """One of MXNet's, which are hyperparameters of the script as well."""
    value = hyperparameters.user.get(key)
    if value is None:
        return None
    found = None if isinstance(value, bool | float) else whole_number(str(value), low, high)
    if found is None:
        what = f"a {'port' if key == '_ps_port' else 'level'} from {low} to {high}"
        findings.expected(key, what, value, "send a number in this range, or leave it out")
    return found


def _shown(wire: str) -> str:
    return short(wire) if not wire or wire != wire.strip() else short(wire)[1:-1]

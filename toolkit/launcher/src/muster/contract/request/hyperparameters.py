"""Hyperparameters off the wire: JSON or raw text, the user's own apart from the framework's; and
the arguments that they make."""

from __future__ import annotations

import json
from collections.abc import Mapping

from muster.contract.findings import ENOUGH, Findings
from muster.contract.request.files import MAX_DEPTH, too_deep
from muster.types.names import listed, nearest
from muster.types.plain import short
from muster.types.values import NamedTuple

HYPERPARAMETERS = "hyperparameters.json"
PREFIX = "sagemaker_"
MAX_NAME = 256  # characters; CreateTrainingJob allows no more

# Neither handed to the script nor part of SM_FRAMEWORK_PARAMS.
FIXED = (
    "sagemaker_program",
    "sagemaker_submit_directory",
    "sagemaker_enable_cloudwatch_metrics",
    "sagemaker_region",
    "sagemaker_container_log_level",
    "sagemaker_job_name",
    "sagemaker_s3_output",
    "default_user_module_name",
    "_tuning_objective_metric",
)
_KNOWN = (
    *FIXED[:7],
    "sagemaker_mpi_enabled",
    "sagemaker_mpi_num_of_processes_per_host",
    "sagemaker_mpi_num_processes",
    "sagemaker_mpi_custom_mpi_options",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_distributed_dataparallel_custom_mpi_options",
    "sagemaker_instance_type",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_torch_distributed_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_parameter_server_enabled",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
    "sagemaker_distribution_instance_groups",
    "sagemaker_toolkit_native_launcher_enabled",
    "sagemaker_network_interface_name",
    "sagemaker_training_compiler_enabled",
    "sagemaker_training_compiler_debug_mode",
)
_LONGEST = 2 * max(map(len, _KNOWN))  # nothing longer is like one of them
# A generic Estimator with an entry point encodes the JSON text of what is no text a second time.
_ENCODED_TWICE = ("mp_parameters", "sagemaker_distribution_instance_groups")


class Hyperparameters(NamedTuple):
    """The hyperparameters of a request, sorted by whom they are for.

    `user`: the script's own. `framework`: `sagemaker_*` keys outside the fixed list. `fixed`: the
    fixed list. `wire`: the texts of all three as they arrived.
    """

    user: dict[str, object]
    framework: dict[str, object]
    fixed: dict[str, object]
    wire: dict[str, str]


def decode_hyperparameters(document: Mapping[str, object], findings: Findings) -> Hyperparameters:
    """Every value decoded and sorted by whom it is for; bad names and values become problems."""
    result = Hyperparameters({}, {}, {}, {})
    unquoted: list[str] = []
    unknown: list[str] = []
    for index, (name, value) in enumerate(document.items()):
        if not _name_is_good(index, name, findings):
            if len(findings.problems) >= ENOUGH:
                break
            continue
        if isinstance(value, str):
            text = value
        else:
            text = json.dumps(value)
            unquoted.append(name)
        decoded = _decode(name, text, findings)
        if name in _ENCODED_TWICE and isinstance(decoded, str):
            decoded = _decode(name, decoded, findings)
        if name in FIXED:
            result.fixed[name] = decoded
        elif name.startswith(PREFIX):
            result.framework[name] = decoded
            if name not in _KNOWN:
                unknown.append(name)
        else:
            result.user[name] = decoded
            if intended(name):
                unknown.append(name)
        result.wire[name] = text
    findings.warn_of_each(unknown, _say_unknown, "unknown hyperparameters")
    if unquoted:
        findings.warn(
            f"{HYPERPARAMETERS}: expected every value as a JSON string: {listed(unquoted)}"
        )
    return result


def _say_unknown(name: str) -> str:
    guess = intended(name)
    hint = f", did you mean {guess!r}?" if guess else " is passed on"
    return f"unknown hyperparameter {name!r}{hint}"


def intended(name: str) -> str:
    """The known `sagemaker_*` key that an unknown name most likely misspells, or ""."""
    folded = name.lower().replace("-", "_")
    if name in _KNOWN or folded[0] != PREFIX[0] or not len(PREFIX) <= len(folded) <= _LONGEST:
        return ""
    if folded.startswith(PREFIX):
        return nearest(folded, _KNOWN, PREFIX)
    return nearest(folded, _KNOWN, likeness=0.9)


def _name_is_good(index: int, name: str, findings: Findings) -> bool:
    if not name:
        what = "the name is empty"
    elif len(name) > MAX_NAME:
        what = f"a name of {len(name)} characters, at most {MAX_NAME} are allowed"
    elif "=" in name or any(ord(character) < 32 for character in name):
        what = "a name cannot hold '=', a newline or another control character"
    elif not name.isascii() and _lone_surrogate(name) is not None:
        what = "a name cannot hold a lone surrogate"
    else:
        return True
    before, equals, _ = name.partition("=")  # what follows is a value, perhaps a secret
    got = short(before + equals + "..." * bool(equals))
    findings.problem(f"{HYPERPARAMETERS}[{index}]", f"{what}, got {got}", "rename it")
    return False


def _decode(name: str, text: str, findings: Findings) -> object:
    try:
        value: object = _DECODER.decode(text)
        if not too_deep(value, text):
            return value
    except RecursionError:
        pass
    except ValueError:
        return text
    what = f"{name}: nested more than {MAX_DEPTH} levels deep"
    findings.problem(HYPERPARAMETERS, what, "pass deep structures as a file in a channel")
    return None


def to_argv(
    hyperparameters: Mapping[str, object], texts: Mapping[str, str] = {}
) -> tuple[str, ...]:
    """`--name value` for each, names sorted, `-n value` for names of one character.

    Values keep Python's spelling, as existing scripts parse it: `True`, `[1, 'x']`, `k=v,...`
    for objects, empty text for null. `texts`: names -> JSON as it arrived, whose
    numbers keep their spelling: `1.10`.
    """
    return tuple(
        text
        for name in sorted(hyperparameters)
        for text in (
            f"-{name}" if len(name) == 1 else f"--{name}",
            _argument(hyperparameters[name], texts.get(name, "")),
        )
    )


def _argument(value: object, text: str) -> str:
    if value is None:
        return ""
    if text and type(value) in (int, float):
        return text.strip()
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    return str(value)


def check_values(arguments: tuple[str, ...], findings: Findings) -> None:
    """Problems of the arguments that hyperparameters make, each known by the option before it."""
    problems = len(findings.problems)
    for flag, value in zip(arguments[::2], arguments[1::2], strict=True):
        check_argument(HYPERPARAMETERS, flag.lstrip("-"), value, findings)
        if len(findings.problems) - problems >= ENOUGH:
            break


def check_argument(where: str, name: str, value: str, findings: Findings) -> None:
    """What no program can be given: lone surrogates, NUL, over 128 KiB."""
    if "\0" in value:
        what = f"{name}: the value holds a NUL character at position {value.index(chr(0))}"
        findings.problem(where, what, "remove it; no program argument can hold one")
    if not value.isascii() and (position := _lone_surrogate(value)) is not None:
        what = f"{name}: the value holds a lone surrogate at position {position}"
        findings.problem(where, what, "send valid Unicode text")
    elif len(value.encode(errors="replace")) >= MAX_ARGUMENT_BYTES:
        what = f"{name}: {len(value)} characters, the kernel allows one argument 128 KiB"
        findings.problem(where, what, "pass large values as a file in a channel")


MAX_ARGUMENT_BYTES = 128 << 10  # MAX_ARG_STRLEN of Linux, the closing NUL included


def _lone_surrogate(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _exact_float(text: str) -> float:
    """Refuses a number that a double cannot hold, so that the script gets its text unchanged."""
    mantissa = text.lower().partition("e")[0]
    digits = mantissa.replace(".", "").strip("-0")
    value = float(text)
    if len(digits) > 17 or value in (_INFINITY, -_INFINITY) or (digits and not value):
        raise ValueError(text)
    return value


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")  # NaN and infinities stay text: SM_HPS stays JSON


_INFINITY = float("inf")
_DECODER = json.JSONDecoder(parse_float=_exact_float, parse_constant=_refuse_constant)

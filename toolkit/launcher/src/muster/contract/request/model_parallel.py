"""The parameters of smdistributed.modelparallel: known keys, their types and their ranges.

They are passed on unchanged, so a library that reads them in the script's process can rely on these
checks. Source: the public documentation of the library's versions 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.contract.findings import Findings
from muster.types.distribution import SMP_BOTH, SMP_VERSION_2
from muster.types.names import did_you_mean
from muster.types.plain import short
from muster.types.values import NamedTuple

KEY = "mp_parameters"
_MOST = 1 << 53  # what JSON carries exactly


class _Kind(NamedTuple):
    """What a value must be. `low`, `high`: of a number; `words`: of a text, () for any."""

    type: str
    low: float = 0
    high: float = _MOST
    words: tuple[str, ...] = ()


_FLAG = _Kind("flag")
_DEGREE = _Kind("integer", 1, 1 << 20)
_SIZE = _Kind("integer", 0)
_TEXT = _Kind("text")
_PLACES = ("cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD")
_KNOWN = {
    # version 1
    **dict.fromkeys(("partitions", "pipeline_parallel_degree", "tensor_parallel_degree"), _DEGREE),
    **dict.fromkeys(("microbatches", "active_microbatches", "sharded_data_parallel_degree"),
                    _DEGREE),
    "pipeline": _Kind("text", words=("interleaved", "simple", "Interleaved1F1B")),
    "optimize": _Kind("text", words=("speed", "memory")),
    "placement_strategy": _Kind("text", words=_PLACES),
    "memory_weight": _Kind("number", 0, 1),
    "default_partition": _SIZE,
    "activation_loading_horizon": _DEGREE,
    **dict.fromkeys(("ddp", "horovod", "auto_partition", "prescaled_batch", "skip_tracing"), _FLAG),
    **dict.fromkeys(("shard_optimizer_state", "offload_activations", "contiguous"), _FLAG),
    **dict.fromkeys(("delayed_parameter_initialization", "deterministic_server"), _FLAG),
    **dict.fromkeys(("fast_mode", "static_mode", "load_partition", "xla"), _FLAG),
    "overlapping_allreduce": _FLAG,
    **dict.fromkeys(("fp16", "bf16", "fp16_params", "sdp_hierarchical_allgather"), _FLAG),
    **dict.fromkeys(("sdp_reduce_bucket_size", "sdp_param_persistence_threshold"), _SIZE),
    "sdp_max_live_parameters": _SIZE,
    "sdp_gradient_clipping": _Kind("number", 0),
    "ddp_port": _Kind("integer", 1, 65_535),
    "ddp_dist_backend": _Kind("text", words=("auto", "nccl", "smddp", "gloo", "mpi")),
    "partition_file": _TEXT,
    # version 2
    "hybrid_shard_degree": _Kind("integer", 0, 1 << 20),
    **dict.fromkeys(("context_parallel_degree", "expert_parallel_degree"), _DEGREE),
    **dict.fromkeys(("sm_activation_offloading", "fsdp_cache_flush_warnings"), _FLAG),
    "allow_empty_shards": _FLAG,
    "random_seed": _SIZE,
}  # fmt: skip


def check_parameters(parameters: object, where: str, findings: Findings) -> None:
    """Problems of values that no library can use; a warning for each unknown key.

    `where`: what holds them, for the text of a problem. null stands for a key's default.
    """
    if not isinstance(parameters, Mapping):
        findings.expected(where, "a JSON object", parameters, 'such as {"partitions": 2}')
        return
    for key, value in parameters.items():
        kind = _KNOWN.get(str(key))
        if kind is not None and value is not None and not _fits(value, kind):
            findings.expected(f"{where}.{key}", _expected(kind), value)
    unknown = [str(key) for key in parameters if key not in _KNOWN]
    findings.warn_of_each(unknown, lambda key: _say_unknown(where, key), f"unknown keys of {where}")
    _check_together(parameters, where, findings)


def _check_together(parameters: Mapping[object, object], where: str, findings: Findings) -> None:
    """Keys that exclude each other."""
    old, new = parameters.get("partitions"), parameters.get("pipeline_parallel_degree")
    if old is not None and new is not None and old != new:
        what = f"partitions is {short(old)} and pipeline_parallel_degree {short(new)}"
        findings.problem(where, f"{what}: both name one thing", "send one of them")
    half = [key for key in ("fp16", "fp16_params") if parameters.get(key) is True]
    if half and parameters.get("bf16") is True:
        findings.problem(where, f"{half[0]} and bf16 are both true", "choose one")
    degree, default = new if new is not None else old, parameters.get("default_partition")
    if isinstance(degree, int) and isinstance(default, int) and default >= degree > 0:
        what = f"default_partition {default} is none of the {degree} partitions, which begin at 0"
        findings.problem(where, what, f"use at most {degree - 1}")
    sharded = _number(parameters, "sharded_data_parallel_degree")
    if sharded > 1 and parameters.get("shard_optimizer_state") is True:
        what = f"sharded_data_parallel_degree {sharded} shards the optimizer's state already"
        findings.problem(where, what, "leave out shard_optimizer_state")
    hybrid = _number(parameters, "hybrid_shard_degree")
    if 0 < hybrid < (context := _number(parameters, "context_parallel_degree")):
        what = f"context_parallel_degree {context} is more than hybrid_shard_degree {hybrid}"
        findings.problem(where, what, f"use at most {hybrid}")
    sent = [str(key) for key, value in parameters.items() if value is not None]
    second = [key for key in sent if key in SMP_VERSION_2]
    if second and _KNOWN.keys() & set(sent) - SMP_VERSION_2 - SMP_BOTH:
        what = f"{second[0]} is a key of version 2 of the library, beside keys of version 1"
        findings.problem(where, what, "send the keys of one of them")
    microbatches = _number(parameters, "microbatches")
    if isinstance(degree, int) and 0 < microbatches < degree:
        share = 100 * (degree - 1) // (microbatches + degree - 1)
        findings.warn(
            f"microbatches {microbatches} are fewer than the {degree} stages of the pipeline, "
            f"which stand idle {share} % of the time"
        )


def _number(parameters: Mapping[object, object], key: str) -> int:
    value = parameters.get(key)
    return value if isinstance(value, int) else 0


def _fits(value: object, kind: _Kind) -> bool:
    if kind.type == "flag":
        return isinstance(value, bool)
    if kind.type == "text":
        return isinstance(value, str) and (not kind.words or value in kind.words)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return (kind.type != "integer" or value % 1 == 0) and kind.low <= value <= kind.high


def _expected(kind: _Kind) -> str:
    if kind.type == "flag":
        return "true or false"
    if kind.type == "text":
        return f"one of {', '.join(kind.words)}" if kind.words else "a string"
    name = "an integer" if kind.type == "integer" else "a number"
    at_least = f"of at least {int(kind.low)}"
    bound = at_least if kind.high >= _MOST else f"from {int(kind.low)} to {int(kind.high):,}"
    return f"{name} {bound}"


def _say_unknown(where: str, key: str) -> str:
    guess = did_you_mean(key[:60], tuple(_KNOWN))
    return f"unknown key {short(key)} of {where}{guess or ' is passed on'}"

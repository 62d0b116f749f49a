"""The configuration of a process: one frozen value, made of what the sources sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from muster_modelparallel.errors import NotBuiltError, nearest
from muster_modelparallel.settings.keys import IN_TURNS, KEYS, NAMES, Fate
from muster_modelparallel.settings.rules import (
    Problem,
    both_names,
    canonical,
    clashes,
    is_version_2,
    outside,
    refuse,
    short,
    wrong_values,
)
from muster_modelparallel.settings.sources import Source, from_launcher, from_script

PARAMETERS = "mp_parameters"
_AFTER_DEGREE = 2  # active microbatches beyond the pipeline's degree
_WEIGHTS = {"speed": 0.2, "memory": 0.8}


@dataclass(frozen=True, slots=True)
class Config:
    """Every honoured key, by its name, with its value or default; `smp.state.cfg` is one.

    `active_microbatches` 0: the pipeline's degree + 2. `memory_weight` below 0: that of `optimize`.
    `overlapping_allreduce` None: nobody asked, the argument of DistributedModel decides.
    `version`: 2 when keys were sent that only version 2 of the library has, else 1.
    """

    pipeline_parallel_degree: int = 1
    microbatches: int = 1
    active_microbatches: int = 0
    pipeline: str = "interleaved"
    auto_partition: bool = True
    default_partition: int = 0
    optimize: str = "memory"
    memory_weight: float = -1.0
    placement_strategy: str = "cluster"
    ddp: bool = False
    overlapping_allreduce: bool | None = None
    tensor_parallel_degree: int = 1
    prescaled_batch: bool = False
    shard_optimizer_state: bool = False
    sharded_data_parallel_degree: int = 1
    sdp_param_persistence_threshold: int = 1_000_000
    sdp_reduce_bucket_size: int = 500_000_000
    sdp_gradient_clipping: float = 1.0
    fp16: bool = False
    bf16: bool = False
    fp16_params: bool = False
    offload_activations: bool = False
    activation_loading_horizon: int = 4
    delayed_parameter_initialization: bool = False
    skip_tracing: bool = False
    partition_file: str | None = None
    load_partition: bool = False
    ddp_dist_backend: str = "auto"
    hybrid_shard_degree: int = 0
    sm_activation_offloading: bool = False
    random_seed: int | None = None
    version: int = 1

    def __post_init__(self) -> None:
        if not self.active_microbatches:
            active = self.pipeline_parallel_degree + _AFTER_DEGREE
            object.__setattr__(self, "active_microbatches", active)
        if self.memory_weight < 0:
            object.__setattr__(self, "memory_weight", _WEIGHTS[self.optimize])

    @property
    def partitions(self) -> int:
        """The older name of `pipeline_parallel_degree`."""
        return self.pipeline_parallel_degree

    @property
    def shard_degree(self) -> int:
        """Replicas that have the parts of one set of parameters; 1: each has the whole."""
        return max(self.sharded_data_parallel_degree, self.hybrid_shard_degree)

    @property
    def placement(self) -> str:
        """The axes D, P and T from the slowest to the fastest, such as "DPT"."""
        words = {"cluster": "DPT", "spread": "TPD"}
        return words.get(self.placement_strategy, self.placement_strategy)


class Reading(NamedTuple):
    """What was read. `given`: what was sent and counts, without aliases, unknown keys too. `notes`:
    sentences to say once."""

    config: Config
    given: Mapping[str, object]
    notes: tuple[str, ...]


def read_config(environ: Mapping[str, str], arguments: Sequence[str], given: object) -> Reading:
    """The configuration that the variables, the command line and `given`, the dictionary of the
    script, make together; the launcher's go before those of the script.

    Raises SettingsError with all that is wrong, by source, key, what was expected and found, and
    NotBuiltError for keys that nothing honours yet.
    """
    launcher, differs = from_launcher(environ, arguments)
    script = from_script(given)
    problems: list[Problem] = []
    for source in (launcher, script):
        problems += wrong_values(source.parameters, source.name)
        problems += both_names(source.parameters, source.name)
    refuse(problems)
    sent = canonical(script.parameters) | canonical(launcher.parameters)
    where = _where(launcher, script)
    refuse(clashes(sent, where))
    _refuse_unbuilt(sent)
    known = {each.name for each in fields(Config)} - {"version"}
    values = {name: KEYS[name].typed(value) for name, value in sent.items() if name in known}
    config = Config(**values, version=2 if is_version_2(sent) else 1)
    refuse([*outside(sent, config.pipeline_parallel_degree, where), *_no_turns(config, where)])
    notes = (differs, _gives_way(launcher, script), *_notes(sent, environ), _idle(config))
    return Reading(config, sent, tuple(filter(None, notes)))


def check_world(config: Config, size: int) -> None:
    """Raises SettingsError when `size` ranks cannot be cut into the groups that the degrees ask
    for. The launcher's `plan.degrees` has the same rules, in the same words."""
    pipeline, tensor = config.pipeline_parallel_degree, config.tensor_parallel_degree
    product = f"pipeline {pipeline} x tensor {tensor} = {pipeline * tensor}"
    if size % (pipeline * tensor):
        what = f"{product} does not divide the world size {size}"
        fix = "change the degrees, processes_per_host or the number of hosts"
        refuse([Problem(PARAMETERS, what, fix)])
    replicas, problems = size // (pipeline * tensor), []
    if replicas > 1 and not config.ddp and config.version == 1:
        what = f"the world size {size} is more than {product}, and ddp is not true"
        problems.append(Problem(PARAMETERS, what, f'set "ddp": true to train {replicas} replicas'))
    for name in ("sharded_data_parallel_degree", "hybrid_shard_degree"):
        degree = getattr(config, name)
        if degree and replicas % degree:
            what = f"{name} {degree} does not divide the data-parallel size {replicas}"
            problems.append(Problem(PARAMETERS, what, f"use a divisor of {replicas}"))
    refuse(problems)


def _no_turns(config: Config, where: str) -> list[Problem]:
    """Stages that come by in turns, without as many microbatches for each turn."""
    degree, count = config.pipeline_parallel_degree, config.microbatches
    if config.pipeline != IN_TURNS or count % degree == 0:
        return []
    what = f"pipeline {IN_TURNS}: microbatches {count} are no multiple of {degree} partitions"
    return [Problem(where, what, f"use {-(-count // degree) * degree} microbatches")]


def _where(launcher: Source, script: Source) -> str:
    """Whose parameters they are, where one source alone sent any."""
    senders = [source.name for source in (launcher, script) if source.parameters]
    return senders[0] if len(senders) == 1 else PARAMETERS


def _refuse_unbuilt(sent: Mapping[str, object]) -> None:
    for name, value in sent.items():
        key = KEYS.get(name)
        if key is not None and key.fate is Fate.REFUSED and value != key.default:
            raise NotBuiltError(
                f"{name} {short(value)} comes with a later release of muster: {key.why}",
                f"leave {name} out",
            )


def _gives_way(launcher: Source, script: Source) -> str:
    first, second = canonical(launcher.parameters), canonical(script.parameters)
    names = [name for name in second if name in first and first[name] != second[name]]
    listed = ", ".join(f"{name} {short(second[name])} by {short(first[name])}" for name in names)
    return f"{launcher.name} goes before {script.name}: it replaces {listed}" if names else ""


def _notes(sent: Mapping[str, object], environ: Mapping[str, str]) -> list[str]:
    """Of keys and variables that change nothing."""
    found = []
    for name in sent:
        key = KEYS.get(name)
        if key is not None and key.fate is Fate.NO_EFFECT:
            found.append(f"{name} has no effect: {key.why}")
        if key is None:
            close = nearest(name, NAMES)
            guess = f", did you mean {close!r}?" if close else " has no effect"
            found.append(f"unknown key {short(name)} of {PARAMETERS}{guess}")
    if sent.get("ddp_dist_backend") == "mpi":
        found.append("ddp_dist_backend 'mpi' means gloo, and NCCL on GPUs: torch comes without MPI")
    variables = sorted(name for name in environ if name.startswith("SMP_"))
    if variables:
        found.append(f"variables without effect: {', '.join(variables[:8])}")
    return found


def _idle(config: Config) -> str:
    """The bubble of a pipeline that cannot be full."""
    stages, microbatches = config.pipeline_parallel_degree, config.microbatches
    if microbatches >= stages:
        return ""
    share = 100 * (stages - 1) // (microbatches + stages - 1)
    return (
        f"microbatches {microbatches} are fewer than the {stages} stages of the pipeline, which "
        f"stand idle {share} % of the time"
    )

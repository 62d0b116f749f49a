"""MODELPARALLEL_PLAN_OUT: the first call of the model in a step that trains is planned, and the
process ends.

Nothing is trained. The plan is for the job of MODELPARALLEL_RANKS ranks, made from one process.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn

from muster_modelparallel.errors import PlanError, SplitError
from muster_modelparallel.model.nests import leaves
from muster_modelparallel.model.probe import Probe, probe
from muster_modelparallel.model.proof import prove
from muster_modelparallel.run.session import Session
from muster_modelparallel.settings.config import Config
from muster_modelparallel.shape.advice import advice
from muster_modelparallel.shape.choose import (
    CHUNKS,
    MAKERS,
    Maker,
    choose,
    evaluate,
    in_turns,
)
from muster_modelparallel.shape.costs import Machine
from muster_modelparallel.shape.manual import manual
from muster_modelparallel.shape.picture.page import page
from muster_modelparallel.shape.plan import Plan, make_plan, write_whole
from muster_modelparallel.shape.schedule import IN_TURNS, Schedule, in_waves, interleaved
from muster_modelparallel.shape.simulate import Timeline
from muster_modelparallel.wrap.model_arguments import half_of
from muster_modelparallel.wrap.partitions import get_partition

T = TypeVar("T")
PLAN_FILE = "model-plan.json"
MOST_STAGES = 64
"""Without a degree in the job's parameters, longer pipelines are not tried."""
_SCHEDULES = {"interleaved": "1F1B", IN_TURNS: "1F1B", "simple": "GPipe"}  # one stage on each rank


def plan_and_end(
    session: Session, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> NoReturn:
    """`write_plan`, and the end of the process with 0: at once, for a script that went on would
    save a model that was not trained."""
    write_plan(session, module, args, kwargs)
    sys.stderr.flush()
    os._exit(0)


def write_plan(
    session: Session, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Probes the model with the arguments of one microbatch, plans and proves a split, writes both
    files and prints the stages. The model is afterwards as it was.

    Raises SplitError for a model that cannot be split or whose split is not proved, PlanError for
    degrees that no cut can serve and for files that cannot be written.
    """
    assert session.plan is not None
    found = timed("probe", lambda: _probed(session, module, args, kwargs))
    tensors = [one for one in leaves([args, kwargs]) if isinstance(one, torch.Tensor)]
    batch = next((len(one) for one in tensors if one.dim()), 0)
    plan, line = timed("plan", lambda: planned(session, module, found, batch))
    split = found.split([plan.stage_of[unit.name] for unit in found.profile.units])
    proof = timed("proof", lambda: prove(module, split, args, kwargs, module.training, found.state))
    plan = replace(plan, proof=str(proof))
    write_files(session.plan.out, plan, line)
    say(table(plan))


def _degrees(session: Session) -> list[int]:
    """The pipeline's degrees to try, the largest first: that of the job's parameters, else, for a
    plan alone, all that divide its ranks."""
    if session.plan is None or "pipeline_parallel_degree" in session.reading.given:
        return [session.config.pipeline_parallel_degree]
    ranks = session.plan.ranks
    return [one for one in range(min(ranks, MOST_STAGES), 0, -1) if ranks % one == 0]


def _probed(
    session: Session, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Probe:
    """With units for the longest pipeline that the model can be cut into."""
    per_rank = stages_of(session.config) // session.config.pipeline_parallel_degree
    degrees = [per_rank * degree for degree in _degrees(session)]
    for parts in degrees:
        try:
            return probe(
                module, args, kwargs, parts, session.config.microbatches,
                timing=not session.config.skip_tracing,
                hollow=session.has_delayed(module.parameters()),
            )  # fmt: skip
        except SplitError:
            if parts == degrees[-1]:
                raise
    raise AssertionError("there is always a degree")


def planned(session: Session, module: nn.Module, found: Probe, batch: int) -> tuple[Plan, Timeline]:
    """`batch`: the length of the microbatch that was probed, 0 if it has none. What the job's
    parameters leave open is chosen where the model is only planned."""
    config, given, alone = session.config, session.reading.given, session.plan is not None
    machine = Machine(copies=copies_held(config, _ranks(session)))
    if not config.auto_partition:
        return _by_hand(session, module, found, machine)
    counts = _counts(batch) if alone and "microbatches" not in given else (config.microbatches,)
    return choose(
        found.profile,
        machine,
        _ranks(session),
        pipelines=_degrees(session),
        microbatches=counts,
        makers=MAKERS if alone and "pipeline" not in given else _maker(config),
        memory_weight=memory_weight(session),
        tries_turns=alone and "pipeline" not in given,
    )


def copies_held(config: Config, ranks: int) -> float:
    """How many bytes a rank of a pipeline holds during a step for each byte of its parameters, with
    Adam: these, gradients, two states and, beside half precision, master weights. What replicas
    divide among them counts by its part; what is cut is also whole then, with its gradients."""
    is_half = half_of(config) is not None
    states, wide = (6.0, 2.0) if is_half else (2.0, 1.0)  # masters among the states
    if config.shard_degree > 1:
        return 1 + wide + 4 * wide / config.shard_degree
    replicas = max(1, ranks // config.pipeline_parallel_degree)
    return 2 + states / (replicas if config.shard_optimizer_state else 1)


def memory_weight(session: Session) -> float:
    """What the job's parameters say of it; without a word of them seconds alone count."""
    wants = {"memory_weight", "optimize"} & {*session.reading.given}
    return session.config.memory_weight if wants else 0.0


def _counts(batch: int) -> list[int]:
    """Into how many microbatches a whole batch can be cut."""
    return [one for one in (1 << power for power in range(10)) if batch and batch % one == 0]


def _ranks(session: Session) -> int:
    """Of the job."""
    return session.plan.ranks if session.plan is not None else session.mesh.size


def _maker(config: Config) -> dict[str, Maker]:
    """The schedule that the job's parameters ask for, by its name."""
    if config.pipeline == IN_TURNS:
        return {IN_TURNS: in_turns}
    name = _SCHEDULES[config.pipeline]

    def make(ranks: int, microbatches: int) -> Schedule:
        return MAKERS[name](ranks, microbatches, config.active_microbatches)

    return {name: make}


@functools.lru_cache(maxsize=64)
def schedule_of(config: Config, rank_of: tuple[int, ...], microbatches: int) -> Schedule:
    """The order of work for stages on those ranks, one on each or several."""
    ranks = len(set(rank_of))
    chunks = len(rank_of) // ranks
    if list(rank_of) != [*range(ranks)] * chunks:
        return in_waves(rank_of, microbatches)
    if chunks == 1:
        make = MAKERS[_SCHEDULES[config.pipeline]]
        return make(ranks, microbatches, config.active_microbatches)
    # the script's own partitions may come back to a rank with any number of microbatches
    divides = microbatches % ranks == 0
    if config.pipeline == "simple" or not divides:
        return in_waves(rank_of, microbatches)
    return interleaved(ranks, microbatches, chunks)


def stages_of(config: Config) -> int:
    """How many the job's parameters ask for."""
    chunks = CHUNKS if config.pipeline == IN_TURNS else 1
    return chunks * config.pipeline_parallel_degree


def _by_hand(
    session: Session, module: nn.Module, found: Probe, machine: Machine
) -> tuple[Plan, Timeline]:
    """The stages that the script has given its modules."""
    config = session.config
    degree = config.pipeline_parallel_degree
    chosen = {path: get_partition(one) for path, one in module.named_modules()}
    partitions = {path: stage for path, stage in chosen.items() if stage is not None}
    by_hand = manual(found.profile, partitions, config.default_partition, degree)
    schedule = schedule_of(config, by_hand.rank_of, config.microbatches)
    line = evaluate(found.profile, machine, schedule, by_hand.cuts)
    made = make_plan(
        found.profile, machine, schedule, by_hand.cuts, line,
        why="the script's own partitions", replicas=_ranks(session) // degree,
    )  # fmt: skip
    return made, line


def write_files(out: Path, plan: Plan, line: Timeline) -> None:
    picture = out.with_suffix(".html")
    try:
        plan.save(out)
        write_whole(picture, page(plan, line))
    except OSError as error:
        what = f"the plan cannot be written to {error.filename or out}: {error.strerror}"
        raise PlanError(what, "name a file in a folder with room: MODELPARALLEL_PLAN_OUT") from None
    say(f"plan: {out}, as a picture {picture}")


def table(plan: Plan) -> str:
    """The stages, and what would help."""
    profile, stage_of = plan.profile, list(plan.stage_of.values())
    rows = [("stage", "units", "first", "seconds", "MiB of parameters")]
    for at, stage in enumerate(plan.stages):
        mine = [unit for unit, of in enumerate(stage_of) if of == at]
        seconds = sum(profile.forward_s(unit) + profile.backward_s(unit) for unit in mine)
        size = sum(profile.units[unit].parameter_bytes for unit in mine) / 2**20
        rows.append((str(at), str(len(mine)), stage.units[0], f"{seconds:.4f}", f"{size:.1f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    summary = (
        f"pipeline {len(plan.rank_bytes)} x data {plan.replicas}, {plan.schedule}, "
        f"{plan.microbatches} microbatches: {plan.step_s:.4f} s a step predicted, "
        f"{plan.bubble:.0%} of it idle; {plan.proof}"
    )
    return "\n".join((*lines, summary, *(f"would help: {line}" for line in advice(plan))))


def timed(phase: str, work: Callable[[], T]) -> T:
    began = time.monotonic()
    result = work()
    say(f"{phase}: {time.monotonic() - began:.1f} s")
    return result


def say(text: str) -> None:
    for line in text.splitlines():
        sys.stdout.write(f"modelparallel: {line}\n")
    sys.stdout.flush()

"""The partition of a model at its first step that trains: probe, plan and proof, on all ranks.

Every rank follows one microbatch through the model; rank 0 alone measures, while the others wait,
chooses the cuts, and proves them. What goes wrong on one rank is raised on all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from muster_modelparallel.errors import ModelParallelError, PlanError
from muster_modelparallel.model.nests import leaves
from muster_modelparallel.model.probe import Probe, probe, usual_s
from muster_modelparallel.model.proof import prove
from muster_modelparallel.model.split import Split
from muster_modelparallel.run.objects import CommGroup, allgather, called
from muster_modelparallel.run.pipeline.protocols import ModelCall
from muster_modelparallel.run.pipeline.suspended import Modes
from muster_modelparallel.run.session import Session
from muster_modelparallel.shape.choose import evaluate
from muster_modelparallel.shape.costs import Machine
from muster_modelparallel.shape.encoding import from_json, to_json
from muster_modelparallel.shape.plan import Plan
from muster_modelparallel.wrap.cut.calls import Calls, Holding
from muster_modelparallel.wrap.cut.planning import (
    PLAN_FILE,
    planned,
    schedule_of,
    stages_of,
    timed,
    write_files,
)

if TYPE_CHECKING:
    from muster_modelparallel.wrap.shard.sharding import Sharding

T = TypeVar("T")
TOGETHER_S = 2.0
"""For how long all ranks measure at the same time."""


@called("the partition of the model")
def partition(
    session: Session, module: nn.Module, call: ModelCall, sharding: Sharding | None
) -> tuple[Plan, Holding, Calls]:
    """Collective over all ranks of the job. Raises SplitError and PlanError on all of them."""
    topology, rank = session.topology, session.mesh.rank
    with Modes(call.grad, call.autocast).held():
        found = _phase(session, "probe", lambda: _followed(session, module, call, timing=False))
        is_timed = not session.config.skip_tracing and not session.has_delayed(module.parameters())
        together_s = (
            _phase(session, "", lambda: usual_s(module, found, call.args, call.kwargs, TOGETHER_S))
            if is_timed
            else 0.0
        )
        text = _phase(
            session, "plan", lambda: _plan(session, module, call, together_s), only_first=True
        )
        plan: Plan = from_json(Plan, json.loads(text), "the plan of rank 0")
        split = _phase(session, "", lambda: _split(found, plan))
        proof = _phase(
            session,
            "proof",
            lambda: str(_proof(session, module, split, call, found)),
            only_first=True,
        )
    plan = replace(plan, proof=proof)
    rank_of = [stage.rank for stage in plan.stages]
    place = topology.pp_rank(rank)
    holding = _phase(session, "", lambda: Holding(module, split, rank_of, place))
    calls = Calls(module, found, holding, call, sharding)
    _phase(session, "", lambda: _leave_files(session, plan), only_first=True)
    return plan, holding, calls


# The phases. Each is over on all ranks before the next one begins: rank 0 measures alone.


def _followed(session: Session, module: nn.Module, call: ModelCall, timing: bool) -> Probe:
    config = session.config
    return probe(
        module, call.args, call.kwargs, stages_of(config), config.microbatches, timing=timing,
        hollow=session.has_delayed(module.parameters()),
    )  # fmt: skip


def _plan(session: Session, module: nn.Module, call: ModelCall, together_s: float) -> str:
    """As JSON: from the file that is named, else by measurement. `together_s`: seconds of a pass
    while all ranks are at work, 0 if they are not known."""
    config = session.config
    file = session.plan_in or (config.partition_file if config.load_partition else None)
    if file:
        plan = Plan.load(file)
        degree = len({stage.rank for stage in plan.stages})
        if degree != config.pipeline_parallel_degree:
            raise PlanError(
                f"the plan {file} is for a pipeline of {degree} ranks, the job has "
                f"{config.pipeline_parallel_degree}",
                "make a plan for this job, or set pipeline_parallel_degree",
            )
    else:
        found = _followed(session, module, call, timing=not config.skip_tracing)
        alone_s = sum(unit.forward_s + unit.backward_s for unit in found.profile.units)
        if together_s > alone_s > 0:  # which unit takes how long shows in quiet alone
            found = replace(found, profile=found.profile.slower(together_s / alone_s))
        tensors = [one for one in leaves([call.args, call.kwargs]) if isinstance(one, torch.Tensor)]
        batch = next((len(one) for one in tensors if one.dim()), 0)
        plan, _ = planned(session, module, found, batch)
    return json.dumps(to_json(plan))


def _split(found: Probe, plan: Plan) -> Split:
    """This rank's own, of its own trace. Raises PlanError where its model is not rank 0's."""
    plan.check_model(found.profile)
    return found.split([plan.stage_of[unit.name] for unit in found.profile.units])


# It needs the whole model, and so comes before parameters are moved.
def _proof(
    session: Session, module: nn.Module, split: Split, call: ModelCall, found: Probe
) -> object:
    return prove(
        module, split, call.args, call.kwargs, module.training, found.state, session.delayed
    )  # fmt: skip


def _leave_files(session: Session, plan: Plan) -> str:
    """In the run's folder, and where the job's parameters say."""
    config = session.config
    schedule = schedule_of(config, tuple(stage.rank for stage in plan.stages), plan.microbatches)
    line = evaluate(plan.profile, Machine(), schedule, plan.cuts)
    if folder := os.environ.get("SM_OUTPUT_DATA_DIR"):
        write_files(Path(folder, PLAN_FILE), plan, line)
    if config.partition_file and not config.load_partition:
        plan.save(config.partition_file)
    return ""


def _phase(session: Session, name: str, work: Callable[[], T], only_first: bool = False) -> T:
    """What `work` gives on this rank or, with `only_first`, on rank 0, which must be a text.

    An error of one rank is raised on all of them: that rank's own there, one that names it on the
    others. `name` is said on rank 0 with the seconds that it took.
    """
    mine: T | None = None
    problem: Exception | None = None
    is_first = session.mesh.rank == 0
    if is_first or not only_first:
        try:
            mine = timed(name, work) if name and is_first else work()
        except Exception as error:
            problem = error
    text = mine if only_first and is_first else None
    said = allgather((str(problem or ""), text), CommGroup.WORLD)
    if problem is not None:
        raise problem
    for rank, (what, _) in enumerate(said):
        if what:
            raise ModelParallelError(f"rank {rank} could not partition the model: {what}")
    if only_first:
        return said[0][1]  # type: ignore[no-any-return]
    assert mine is not None
    return mine

"""A plan: which stage holds which units, what travels between them, what it costs; as a file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import NamedTuple

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.costs import Machine, live_tensors
from muster_modelparallel.shape.encoding import from_json, to_json
from muster_modelparallel.shape.manual import check_cuts
from muster_modelparallel.shape.partition import Cuts
from muster_modelparallel.shape.schedule import Schedule
from muster_modelparallel.shape.simulate import Timeline
from muster_modelparallel.shape.units import ModelProfile

FORMAT = 1


class Relay(NamedTuple):
    """Output `leaf` of unit `source` (INPUT: an argument of the step) goes from stage to stage,
    from `first` to `last`. `bytes`: of one microbatch of the profile.
    `grad`: its gradient returns."""

    source: int
    leaf: int
    first: int
    last: int
    bytes: int
    grad: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """The names of the units of a stage, in the order of their calls, and the rank that has it."""

    rank: int
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A row of the table of what else could be done with the same ranks. `batch_s`: seconds of a
    step, gradients over replicas among them, divided by the replicas. `problem`: why not, or ""."""

    pipeline: int
    replicas: int
    microbatches: int
    schedule: str
    batch_s: float = 0.0
    bubble: float = 0.0
    rank_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Plan:
    """What all ranks do. `proof`: "proved", or "not proved: why". Raises ValueError for stages that
    are not the profile's units in order, and for a fingerprint that is not the profile's."""

    profile: ModelProfile
    machine: Machine
    schedule: str
    microbatches: int
    stages: tuple[Stage, ...]
    step_s: float
    bubble: float
    rank_bytes: tuple[int, ...]
    fingerprint: str
    why: str = ""
    proof: str = "not proved: not tried"
    replicas: int = 1
    alternatives: tuple[Alternative, ...] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format}, this version reads {FORMAT}")
        if self.fingerprint != fingerprint(self.profile):
            raise ValueError("the profile does not belong to the fingerprint")
        names = [name for stage in self.stages for name in stage.units]
        if names != [unit.name for unit in self.profile.units]:
            raise ValueError(_side_by_side(names, self.profile))
        ranks = {stage.rank for stage in self.stages}
        if not all(stage.units for stage in self.stages) or ranks != set(range(len(ranks))):
            raise ValueError("a stage or a rank has no units")
        if len(self.rank_bytes) != len(ranks) or min(self.microbatches, self.replicas) < 1:
            raise ValueError("rank_bytes, microbatches or replicas are not those of a plan")
        if not self.proof.startswith(("proved", "not proved: ")):
            raise ValueError(f"proof is {self.proof!r}")
        check_cuts(self.profile, self.cuts)

    @cached_property
    def cuts(self) -> Cuts:
        """The first unit of each stage but the first."""
        return tuple(accumulate(len(stage.units) for stage in self.stages))[:-1]

    @cached_property
    def stage_of(self) -> Mapping[str, int]:
        """The stage of each unit by name."""
        return {name: at for at, stage in enumerate(self.stages) for name in stage.units}

    @cached_property
    def relays(self) -> tuple[Relay, ...]:
        """What travels between stages."""
        of = list(self.stage_of.values())
        tensors = live_tensors(self.profile)
        relays = (
            Relay(one.source, one.leaf, of[max(one.source, 0)], of[one.last], one.bytes, one.grad)
            for one in tensors
        )
        return tuple(relay for relay in relays if relay.first < relay.last)

    @cached_property
    def tied(self) -> Mapping[str, tuple[int, ...]]:
        """The stages of each parameter that lies on several."""
        of = list(self.stage_of.values())
        stages = {tie.parameter: {of[unit] for unit in tie.units} for tie in self.profile.ties}
        return {name: tuple(sorted(held)) for name, held in stages.items() if len(held) > 1}

    def check_model(self, profile: ModelProfile) -> None:
        """Raises PlanError if the plan was made for another model than this one, with the orders of
        calls side by side. Costs may differ."""
        if fingerprint(profile) != self.fingerprint:
            names = [unit.name for unit in self.profile.units]
            what = (
                f"the plan contradicts the model {profile.model}: {_side_by_side(names, profile)}"
            )
            raise PlanError(what, "make a new plan, or use the model of the plan")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON; a file that was there is replaced at once."""
        write_whole(Path(path), json.dumps(to_json(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Raises PlanError for a file that cannot be read or is no plan."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PlanError(f"the plan {os.fspath(path)} cannot be read: {error}") from error
        return from_json(cls, data, f"plan {os.fspath(path)}")


def write_whole(path: Path, text: str) -> None:
    """The file has the text, or is as it was. Raises OSError."""
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def make_plan(
    profile: ModelProfile,
    machine: Machine,
    schedule: Schedule,
    cuts: Cuts,
    timeline: Timeline,
    **more: object,
) -> Plan:
    """The plan of a split that was simulated; `more` are fields of Plan."""
    names = [unit.name for unit in profile.units]
    bounds = enumerate(zip((0, *cuts), (*cuts, len(names)), strict=True))
    return Plan(
        profile,
        machine,
        schedule.name,
        schedule.microbatches,
        tuple(Stage(schedule.rank_of[at], tuple(names[a:b])) for at, (a, b) in bounds),
        timeline.step_s,
        timeline.bubble,
        timeline.rank_bytes,
        fingerprint(profile),
        **more,  # type: ignore[arg-type]
    )


def fingerprint(profile: ModelProfile) -> str:
    """A digest of what a plan depends on: units, their parameters, flows, ties, constraints; not
    of costs nor of the size of a batch."""
    what = (
        [(unit.name, unit.parameters, unit.parameter_bytes) for unit in profile.units],
        sorted((flow.source, flow.leaf, flow.target, flow.grad) for flow in profile.flows),
        sorted((tie.parameter, tie.units) for tie in profile.ties),
        sorted((one.units, one.why) for one in profile.constraints),
    )
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def _side_by_side(planned: list[str], profile: ModelProfile) -> str:
    called = [unit.name for unit in profile.units]
    pairs = list(zip_longest(planned, called, fillvalue="(nothing)"))
    differ = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if differ is None:
        return "same order of calls, other parameters, flows or ties"
    rows = (f"{a} | {b}" for a, b in pairs[max(0, differ - 1) : differ + 4])
    return f"call {differ} differs; plan | model: {'; '.join(rows)}"

"""What a probe learns about a model: the units that are never cut, and what ties them together.

Units are counted by calls: a module that is called twice is two units, whose index is the order of
the calls. A pipeline of stages is a cut of that order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from muster_modelparallel.shape.encoding import from_json, to_json

INPUT = -1
"""The source of a flow that is an argument of the step, not the output of a unit."""

Costs = Literal["measured", "flops"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One call of one module, which one stage makes as a whole.

    Bytes and seconds are those of one microbatch. `saved_bytes` is what autograd keeps from forward
    to backward, without parameters; `flops` those of forward. `parameters` are the names in the
    state_dict of the model (one name for a tied parameter), `parameter_bytes` their sum. `block` is
    the module of a repeated sequence (`h.3`) that contains this unit or is it, "" for none.
    `parts` says how many modules are inside that could be units instead. A later call of a module
    has no `buffer_bytes`.
    """

    path: str
    call: int = 0
    block: str = ""
    parameters: tuple[str, ...] = ()
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    flops: float = 0.0
    saved_bytes: int = 0
    output_bytes: int = 0
    parts: int = 0

    def __post_init__(self) -> None:
        sizes = (self.parameter_bytes, self.buffer_bytes, self.saved_bytes, self.output_bytes)
        if min(self.call, self.forward_s, self.backward_s, self.flops, *sizes) < 0:
            raise ValueError(f"{self.name} has a negative figure")

    @property
    def name(self) -> str:
        """The module's path, with `@n` from its second call on."""
        return f"{self.path}@{self.call}" if self.call else self.path


@dataclass(frozen=True, slots=True)
class Flow:
    """A tensor that `target` needs: output `leaf` of unit `source`, or argument `leaf` of the step
    if that is INPUT. The target `len(units)` is what the model returns. `why` it must travel:
    "argument", "glue" (code between units), "escape" (a hook or an attribute), "output".
    `bytes` are those of one microbatch; `grad`: its gradient travels back.
    """

    source: int
    target: int
    bytes: int
    leaf: int = 0
    why: str = "argument"
    grad: bool = True


@dataclass(frozen=True, slots=True)
class Tie:
    """A parameter of several units, or of the glue before them, also of several calls of a module:
    each of their stages holds it, and they add up its gradients."""

    parameter: str
    bytes: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """Units that must lie on one stage, and why: "alias", "escape", "in-place", ..."""

    units: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Crossing:
    """What goes on before unit `cut` if the model is cut there and nowhere else: `tensors` of
    `bytes` in all, and the gradients of `grads` of them, `grad_bytes`, back. Less than flows say
    where units are parts of one module that lies whole on one side."""

    cut: int
    tensors: int
    bytes: int
    grads: int
    grad_bytes: int


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model as a chain of units with costs: what plans are made from.

    `microbatches`: into how many the batch was cut of which one was probed. `threads`: how many one
    process had for it. `noise`: the relative uncertainty of the seconds. With costs "flops" nothing
    was measured: seconds are FLOPs over `flops_per_s`, backward twice the forward. `crossings`: of
    the cuts where they are known, in place of what flows say. Raises ValueError for units that do
    not exist, flows that run backwards, and names used twice.
    """

    model: str
    units: tuple[Unit, ...]
    flows: tuple[Flow, ...] = ()
    ties: tuple[Tie, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    microbatches: int = 1
    threads: int = 1
    costs: Costs = "measured"
    noise: float = 0.0
    flops_per_s: float = 1e10
    crossings: tuple[Crossing, ...] = ()

    def __post_init__(self) -> None:
        last = len(self.units)
        if not last:
            raise ValueError(f"{self.model} has no units")
        if len({unit.name for unit in self.units}) < last:
            raise ValueError("two units have one name")
        for flow in self.flows:
            if not INPUT <= flow.source < flow.target <= last or flow.bytes < 0:
                raise ValueError(f"{flow} is none between {last} units")
        for units in [tie.units for tie in self.ties] + [one.units for one in self.constraints]:
            if not units or not 0 <= min(units) <= max(units) < last:
                raise ValueError(f"units {units} are tied, but there are {last}")
        if any(not 0 < one.cut < last or one.grads > one.tensors for one in self.crossings):
            raise ValueError(f"a crossing is none of {last} units")
        if min(self.microbatches, self.threads) < 1 or self.noise < 0 or self.flops_per_s <= 0:
            raise ValueError("microbatches, threads, noise or flops_per_s is out of range")

    def forward_s(self, unit: int) -> float:
        """Seconds of one microbatch, measured or by FLOPs."""
        one = self.units[unit]
        return one.forward_s if self.costs == "measured" else one.flops / self.flops_per_s

    def backward_s(self, unit: int) -> float:
        """Seconds of one microbatch, measured or by FLOPs."""
        one = self.units[unit]
        return one.backward_s if self.costs == "measured" else 2 * one.flops / self.flops_per_s

    def slower(self, factor: float) -> ModelProfile:
        """With all seconds that were measured so many times as long."""
        units = (
            replace(one, forward_s=factor * one.forward_s, backward_s=factor * one.backward_s)
            for one in self.units
        )
        return replace(self, units=tuple(units))

    def to_json(self) -> dict[str, object]:
        """As dictionaries, lists and scalars."""
        written: dict[str, object] = to_json(self)
        return written

    @classmethod
    def from_json(cls, data: object) -> ModelProfile:
        """The inverse of `to_json`. Raises PlanError for anything else."""
        return from_json(cls, data, "profile")

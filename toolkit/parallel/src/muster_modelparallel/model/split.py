"""A choice of stages for the calls of a model: what each stage owns, gets and passes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster_modelparallel.errors import SplitError
from muster_modelparallel.model.streams import Bounds, calls_by_event, watched
from muster_modelparallel.model.trace import Meta, Trace
from muster_modelparallel.model.walk import Graph, Origin, UnitCall, graph_of


@dataclass(frozen=True, slots=True)
class Split:
    """Calls with their stages, which never fall. By stage: `received`, the outputs of earlier units
    that come from the stage before, in this order; `inputs`, the leaves of the step's arguments
    that it needs; `parameters`, the names of those it holds. `tied`: names that several stages
    hold, whose gradients are added up; `loose`: names that are used outside of units. `buffers`: by
    name, the stage where it changes, or -1, and those where it is read or changed. `bounds`: of
    each call, `watched`: of the calls of other modules, by path, at which random numbers begin
    anew. `kept`: the stages where what an attribute holds after a pass is right.
    """

    calls: tuple[UnitCall, ...]
    stages: tuple[int, ...]
    received: tuple[tuple[Origin, ...], ...]
    inputs: tuple[frozenset[int], ...]
    parameters: tuple[frozenset[str], ...]
    cloned: frozenset[Origin]
    loose: frozenset[str] = frozenset()
    buffers: Mapping[str, tuple[int, frozenset[int]]] = field(default_factory=dict)
    kept: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    bounds: tuple[Bounds, ...] = ()
    watched: Mapping[str, tuple[Bounds, ...]] = field(default_factory=dict)

    @property
    def parts(self) -> int:
        return len(self.received)

    @property
    def tied(self) -> frozenset[str]:
        held = [name for names in self.parameters for name in names]
        return frozenset(name for name in held if held.count(name) > 1)

    def whole(self) -> Split:
        """The same calls on one stage."""
        return replace(
            self,
            stages=(0,) * len(self.calls),
            received=((),),
            inputs=(frozenset().union(*self.inputs),),
            parameters=(frozenset().union(*self.parameters),),
        )

    def sent(self, stage: int) -> tuple[Origin, ...]:
        """What the stage passes on, in this order; () for the last one."""
        return self.received[stage + 1] if stage + 1 < self.parts else ()

    def metas(self, stage: int) -> tuple[Meta, ...]:
        """Of `received`, as they were when the model was probed."""
        return tuple(self.calls[s.owner].meta(s.leaf) for s in self.received[stage])


def split_of(trace: Trace, graph: Graph, stages: Sequence[int]) -> Split:
    """The calls of the graph on those stages, one for each call. Modules that were opened, and all
    of whose calls came to one stage, are closed again, so that less has to be passed on.

    Raises SplitError where the graph forbids the cut, or a stage has no unit.
    """
    _check(graph, stages)
    found = _split(*_closed(trace, graph, tuple(stages)))
    every = calls_by_event(trace)
    return replace(
        found,
        bounds=tuple(every[call.first] for call in found.calls),
        watched=watched(trace, every),
    )


def _check(graph: Graph, stages: Sequence[int]) -> None:
    if len(stages) != len(graph.calls) or list(stages) != sorted(stages):
        raise SplitError(
            f"{len(stages)} stages for {len(graph.calls)} calls, {list(stages)}",
            "give each call the number of its stage; they never fall",
        )
    if set(stages) != set(range(max(stages, default=-1) + 1)):
        raise SplitError(f"the stages {sorted(set(stages))} have gaps", "a stage needs a unit")
    for bound in graph.bounds:
        if stages[bound.first] != stages[bound.last]:
            first, last = graph.calls[bound.first].name, graph.calls[bound.last].name
            raise SplitError(
                f"{first} is on stage {stages[bound.first]} and {last} on stage "
                f"{stages[bound.last]}, but they cannot be parted ({bound.why})",
                "put them on one stage",
            )


def _closed(trace: Trace, graph: Graph, stages: tuple[int, ...]) -> tuple[Graph, tuple[int, ...]]:
    found: dict[tuple[str, int], set[int]] = {}
    for call, stage in zip(graph.calls, stages, strict=True):
        for around in call.around:
            found.setdefault(around, set()).add(stage)
    torn = {path for (path, _), there in found.items() if len(there) > 1}
    whole = {path for path, _ in found} - torn - {""}
    if not whole:
        return graph, stages
    closed = graph_of(trace, graph.opened - whole)
    covered = tuple(
        next(
            stage for one, stage in zip(graph.calls, stages, strict=True) if one.first >= call.first
        )
        if any(call.first <= one.first <= call.last for one in graph.calls)
        else -1
        for call in closed.calls
    )
    if -1 in covered:
        return graph, stages
    try:
        _check(closed, covered)
    except SplitError:
        return graph, stages
    return closed, covered


def _split(graph: Graph, stages: tuple[int, ...]) -> Split:
    parts = max(stages) + 1
    last: dict[Origin, int] = {}
    inputs: list[set[int]] = [set() for _ in range(parts)]
    loose: set[str] = set()
    parameters: list[set[str]] = [set() for _ in range(parts)]
    for call, stage in zip(graph.calls, stages, strict=True):
        parameters[stage] |= call.parameters
    for need, stage in zip(graph.needs, (*stages, parts - 1), strict=True):
        for source in need:
            if source.kind == "input":
                inputs[stage].add(source.leaf)
            elif source.kind == "parameter":
                parameters[stage].add(graph.names[source.leaf])
                loose.add(graph.names[source.leaf])
            else:
                last[source] = max(stage, last.get(source, 0))
    parameters[0] |= set(graph.names).difference(*parameters)
    received = [
        tuple(sorted(s for s, end in last.items() if stages[s.owner] < stage <= end))
        for stage in range(parts)
    ]
    return Split(
        graph.calls,
        stages,
        tuple(received),
        tuple(map(frozenset, inputs)),
        tuple(map(frozenset, parameters)),
        graph.cloned,
        frozenset(loose),
        {
            name: ((*stages, -1)[writer], frozenset((*stages, parts - 1)[at] for at in readers))
            for name, (writer, readers) in graph.buffers.items()
        },
        {
            # a stage that ends before the attribute is set never sees it; a later one runs that
            # code again, and makes what it should where it has all that it is made of
            name: frozenset(
                stage
                for stage in range(stages[writer], parts)
                if all(
                    s in received[stage]
                    if s.owner >= 0 and stages[s.owner] != stage
                    else s.kind != "parameter" or graph.names[s.leaf] in parameters[stage]
                    for s in sources
                )
            )
            for name, (writer, sources) in graph.kept.items()
        },
    )

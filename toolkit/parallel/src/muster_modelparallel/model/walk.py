"""From a trace to units and the dataflow between them; arithmetic alone, for any choice of units.

The code between units is the glue. Every stage runs all glue again, so a tensor of glue is right
on a stage that has the sources it was made from: outputs of units, arguments of the step,
parameters. What only the stage that made it can have ties units together.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from muster_modelparallel.model.recomputed import returned_in
from muster_modelparallel.model.trace import Enter, Exit, Leaf, Meta, Op, Trace

Kind = Literal["input", "parameter", "buffer", "value", "inside"]
Origins = frozenset["Origin"]
_NONE: Origins = frozenset()


class Origin(NamedTuple):
    """Where a tensor comes from: a leaf of the step's arguments, a parameter that glue uses (its
    place among the names), what a buffer held before the pass (its place among their names), one of
    the `leaves` of call `owner`, or memory inside that call which did not leave it by a return."""

    kind: Kind
    owner: int
    leaf: int


@dataclass(frozen=True, slots=True)
class Export:
    """What a module within a unit returned to a hook, which took it out of the unit."""

    path: str
    returned: tuple[Leaf, ...]
    tree: Any


@dataclass(frozen=True, slots=True)
class UnitCall:
    """One call of a unit. `writes`: leaves of its arguments that it changes in place; `exports`: in
    their order. `first` and
    `last` are its events in the trace, `around` the calls of opened modules that it lies in."""

    path: str
    count: int
    first: int
    last: int
    arguments: tuple[Leaf, ...]
    returned: tuple[Leaf, ...]
    tree: Any
    writes: tuple[int, ...]
    exports: tuple[Export, ...]
    parameters: frozenset[str]
    inner: frozenset[str]
    around: frozenset[tuple[str, int]]
    flops: float
    saved_bytes: int

    @property
    def name(self) -> str:
        return f"{self.path}@{self.count}" if self.count else self.path

    def leaves(self) -> list[Leaf]:
        """All that a Origin of kind "value" may name, in its order."""
        exported = (leaf for export in self.exports for leaf in export.returned)
        return [*self.returned, *self.arguments, *exported]

    def meta(self, leaf: int) -> Meta:
        """Of the tensor that a Origin of kind "value" names."""
        found = self.leaves()[leaf].meta
        assert found is not None
        return found


class Bound(NamedTuple):
    """No cut between the calls `first` and `last`, because of `why`."""

    first: int
    last: int
    why: str


@dataclass(frozen=True, slots=True)
class Graph:
    """Calls in their order, and what each needs; at the end stands what the model returns.

    `cloned`: values that somebody changes in place after their unit returned them. `buffers`: by
    name, the call with which it changes, or -1, and the places in `needs` that read or change it.
    `kept`: the call after which an attribute of a module holds what it does then, and its sources.
    """

    calls: tuple[UnitCall, ...]
    needs: tuple[Origins, ...]
    cloned: Origins
    bounds: tuple[Bound, ...]
    opened: frozenset[str]
    names: tuple[str, ...]
    buffers: dict[str, tuple[int, frozenset[int]]]
    kept: dict[tuple[str, str], tuple[int, Origins]]

    def cuts(self) -> list[int]:
        """The calls before which the chain may be cut."""
        return [
            place
            for place in range(1, len(self.calls))
            if not any(bound.first < place <= bound.last for bound in self.bounds)
        ]


def graph_of(trace: Trace, opened: Set[str]) -> Graph:
    """The calls of all modules that lie in opened ones alone. Where a tensor escapes from a unit
    otherwise than by its return, a hook's view of a part is exported; else the unit is opened, for
    it may be the return of a part."""
    chosen = (frozenset(opened) - trace.sealed) | {""}
    exported: frozenset[str] = frozenset()
    while True:
        walk = _Walk(trace, chosen, exported)
        walk.run()
        if hooked := walk.to_export():
            exported |= hooked
        elif more := walk.to_open():
            chosen |= more
        else:
            return walk.graph()


@dataclass(slots=True)
class _Open:
    """The unit that is being walked through."""

    index: int
    path: str
    first: int
    depth: int
    arguments: tuple[Leaf, ...]
    around: frozenset[tuple[str, int]]
    parameters: set[str]
    written: set[int] = field(default_factory=set)
    inner: set[str] = field(default_factory=set)
    saved: dict[int, int] = field(default_factory=dict)
    exports: list[Export] = field(default_factory=list)
    flops: float = 0.0
    leaks: bool = False


class _Walk:
    """One walk through a trace for one choice of opened modules.

    `_sources`: where the contents of each memory come from. `_control`: what decided which way
    python went; all that follows needs it. `_born`: the call in which memory came to be; `_values`:
    what units returned in it. `_stuck`: values that no other stage can be given. `_touched`: the
    call with which memory changed last, or after which glue changed it.
    """

    def __init__(self, trace: Trace, opened: frozenset[str], exported: frozenset[str]) -> None:
        self._trace = trace
        self._opened = opened
        self._exported = exported
        self._hooked: dict[int, str] = {}  # memory in a unit, and whose return hooks saw it in
        self._names = tuple(trace.parameter_bytes)
        place = {name: at for at, name in enumerate(self._names)}
        self._sources: dict[int, Origins] = {
            storage: frozenset([Origin("parameter", -1, place[name])])
            for storage, name in trace.parameters.items()
        }
        self._shared = {*trace.parameters, *trace.buffers}
        for at, leaf in enumerate(trace.inputs):
            if leaf.meta is not None:
                before = self._sources.get(leaf.storage, _NONE)
                self._sources[leaf.storage] = before | {Origin("input", -1, at)}
                self._shared.add(leaf.storage)
        for at, name in enumerate(trace.left):
            for storage in (one for one, of in trace.buffers.items() if of == name):
                self._sources[storage] = frozenset([Origin("buffer", -1, at)])
        self._touched: dict[int, int] = {}
        self._control: Origins = _NONE
        self._born: dict[int, int] = {}
        self._values: dict[int, list[Origin]] = {}
        self._calls: list[UnitCall] = []
        self._needs: list[set[Origin]] = []
        self._cloned: set[Origin] = set()
        self._stuck: set[Origin] = set()
        self._kept: set[int] = set()  # calls whose return cannot be given to another stage
        self._counts: dict[str, int] = {}
        self._stack: list[tuple[str, int]] = []
        self._open: _Open | None = None

    def run(self) -> None:
        for at, event in enumerate(self._trace.events):
            if isinstance(event, Op):
                self._op(event)
            elif isinstance(event, Enter):
                self._enter(at, event)
            elif isinstance(event, Exit):
                self._exit(at, event)
            elif self._open is not None and event.storage not in self._trace.parameters:
                self._open.saved[event.storage] = max(
                    event.bytes, self._open.saved.get(event.storage, 0)
                )
        returned = self._of(leaf.storage for leaf in self._trace.outputs if leaf.meta is not None)
        self._needs.append(set(returned | self._control))
        self._follow_buffers()

    def _follow_buffers(self) -> None:
        """What a buffer comes to hold must be right on the stage where it does, and wherever it is
        read in the next pass; from the step's arguments alone it is right on all that follow.

        A stage runs the code between units up to its own end, so it sees each change before that,
        and makes it of what it has. A reader before the change must lie on the stage that makes it:
        `graph` ties the two.
        """
        changed: dict[Origin, int] = {}
        for at, storage in enumerate(self._trace.left.values()):
            if storage in self._touched:
                changed[Origin("buffer", -1, at)] = storage
                is_known = all(s.kind in ("input", "buffer") for s in self._of([storage]))
                first = self._touched[storage]
                for need in self._needs[first : None if is_known else first + 1]:
                    need.add(Origin("buffer", -1, at))
        for target, need in enumerate(self._needs):
            rest = changed.keys() & need
            while rest:
                found = self._of([changed[rest.pop()]])
                more = {source for source in found if source.owner < target} - need
                need.update(more)
                rest |= changed.keys() & more

    def to_export(self) -> frozenset[str]:
        """Modules within units whose hooks let something escape."""
        escaped = (s.leaf for need in self._needs for s in need if s.kind == "inside")
        return frozenset(self._hooked[at] for at in escaped if at in self._hooked) - self._exported

    def to_open(self) -> set[str]:
        """Units with parts from which something escapes."""
        owners = {s.owner for need in self._needs for s in need if s.kind == "inside"} | self._kept
        return {self._calls[owner].path for owner in owners if self._calls[owner].inner}

    def graph(self) -> Graph:
        last = len(self._calls) - 1
        bounds = {Bound(call, last, "opaque") for call in self._kept}
        for target, need in enumerate(self._needs):
            for source in need:
                if source.kind == "inside":
                    bounds.add(Bound(source.owner, min(target, last), "escape"))
                elif source in self._stuck:
                    bounds.add(Bound(source.owner, min(target, last), "in-place"))
        bounds.update(self._recomputed(last))
        buffers = {}
        for at, (name, storage) in enumerate(self._trace.left.items()):
            origin, writer = Origin("buffer", -1, at), self._touched.get(storage, -1)
            readers = frozenset(at for at, need in enumerate(self._needs) if origin in need)
            buffers[name] = (writer, readers)
            if writer >= 0:
                why = f"buffer {name}, which is read and then changed"
                bounds.add(Bound(min(readers), writer, why))
        needs = (
            frozenset(s for s in need if s.kind not in ("inside", "buffer")) for need in self._needs
        )
        return Graph(
            tuple(self._calls),
            tuple(needs),
            frozenset(self._cloned),
            tuple(sorted(bound for bound in bounds if bound.first < bound.last)),
            self._opened,
            self._names,
            buffers,
            {
                name: (
                    max(
                        [0, sum(call.first < at for call in self._calls) - 1]
                        + [self._touched.get(one, 0) for one in held]
                    ),
                    self._of(held),
                )
                for name, (at, held) in self._trace.kept.items()
            },
        )

    def _recomputed(self, last: int) -> Iterator[Bound]:
        """No cut where gradients are computed again; nor after it, if code made its results."""
        for region in self._trace.regions:
            calls = [at for at, c in enumerate(self._calls) if region.begin <= c.first < region.end]
            if calls:
                is_whole = region.results <= returned_in(self._trace.events, region)
                yield Bound(calls[0], calls[-1] if is_whole else last, "reentrant checkpoint")

    def _of(self, storages: Any) -> Origins:
        return frozenset().union(*(self._sources.get(storage, _NONE) for storage in storages))

    def _enter(self, at: int, event: Enter) -> None:
        count = self._counts[event.path] = self._counts.get(event.path, -1) + 1
        if self._open is not None:
            self._open.inner.add(event.path)
        elif event.path not in self._opened:
            own = set(self._trace.parameters_in[event.path])
            around = frozenset(self._stack)
            self._open = _Open(
                len(self._calls), event.path, at, len(self._stack), event.arguments, around, own
            )
            given = self._of(leaf.storage for leaf in event.arguments if leaf.meta is not None)
            self._needs.append(set(given | self._control))
        self._stack.append((event.path, count))

    def _op(self, event: Op) -> None:
        if self._open is not None:
            self._op_inside(self._open, event)
            return
        found = self._of(event.reads)
        for storage in event.makes:
            self._sources[storage] = found
        for storage in event.writes:
            self._write(storage)
            self._sources[storage] = self._sources.get(storage, _NONE) | found
        for storage in (*event.makes, *event.writes):
            self._touched[storage] = max(0, len(self._calls) - 1)
        if event.leaks:
            self._control |= found

    def _op_inside(self, call: _Open, event: Op) -> None:
        """What the unit reads that it did not make, it needs, however it came by it."""
        own = self._trace.parameters_in[call.path]
        for storage in event.reads:
            if self._born.get(storage) == call.index:
                continue
            name = self._trace.parameters.get(storage)
            if name is not None:
                call.parameters.add(name)
            self._needs[call.index] |= {
                source
                for source in self._sources.get(storage, _NONE)
                if source.owner != call.index
                and not (source.kind == "parameter" and self._names[source.leaf] in own)
            }
        for storage in event.makes:
            self._born[storage] = call.index
            self._sources[storage] = frozenset([Origin("inside", call.index, storage)])
        for storage in (*event.makes, *event.writes):
            self._touched[storage] = call.index
        call.written |= {s for s in event.writes if self._born.get(s) != call.index}
        call.flops += event.flops
        call.leaks |= event.leaks

    def _exit(self, at: int, event: Exit) -> None:
        path, count = self._stack.pop()
        call = self._open
        if call is None:
            return
        if len(self._stack) != call.depth:
            self._exit_part(call, path, event)
            return
        self._open = None
        writes = tuple(
            place
            for storage in sorted(call.written)
            for place in self._written_argument(call, storage, len(event.leaves))
        )
        for place, leaf in enumerate(event.leaves):
            if leaf.opaque and leaf.argument < 0:
                self._kept.add(call.index)
            if call.leaks and isinstance(leaf.value, (int, float)):
                self._kept.add(call.index)
            if leaf.meta is not None and leaf.argument < 0 and leaf.twin < 0:
                self._return(call, leaf, Origin("value", call.index, place))
        exported = [leaf for export in call.exports for leaf in export.returned]
        for place, leaf in enumerate(exported, len(event.leaves) + len(call.arguments)):
            if leaf.meta is not None:
                self._return(call, leaf, Origin("value", call.index, place))
        self._calls.append(
            UnitCall(
                path,
                count,
                call.first,
                at,
                call.arguments,
                event.leaves,
                event.tree,
                writes,
                tuple(call.exports),
                frozenset(call.parameters),
                frozenset(call.inner),
                call.around,
                call.flops,
                sum(call.saved.values()),
            )
        )

    def _exit_part(self, call: _Open, path: str, event: Exit) -> None:
        """Of a module within the unit."""
        if path in self._exported:
            call.exports.append(Export(path, event.leaves, event.tree))
        elif event.hooked:
            self._hooked |= {leaf.storage: path for leaf in event.leaves if leaf.meta is not None}

    def _return(self, call: _Open, leaf: Leaf, source: Origin) -> None:
        """The memory leaves the unit, so from here on its contents are a value of it."""
        before = self._sources.get(leaf.storage, _NONE)
        own = Origin("inside", call.index, leaf.storage)
        self._sources[leaf.storage] = (before - {own}) | {source}
        self._values.setdefault(leaf.storage, []).append(source)

    def _write(self, storage: int) -> None:
        """The memory changes after units have returned it: they keep a copy. Several tensors of
        one memory are copies of their own on another stage, where the change would reach one."""
        holders = self._values.get(storage, [])
        self._cloned |= set(holders)
        if len(holders) > 1 or storage in self._shared:
            self._stuck |= set(holders)

    def _written_argument(self, call: _Open, storage: int, returned: int) -> list[int]:
        """The place of the argument whose memory the call wrote to, if there is one."""
        self._write(storage)
        before = self._sources.get(storage, _NONE)
        places = [
            place
            for place, leaf in enumerate(call.arguments)
            if leaf.storage == storage and leaf.twin < 0
        ]
        if len(places) != 1 or storage in self._trace.buffers:
            self._sources[storage] = before | {Origin("inside", call.index, storage)}
            return []
        source = Origin("value", call.index, returned + places[0])
        self._sources[storage] = before | {source}
        return places

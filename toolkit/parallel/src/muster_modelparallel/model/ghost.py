"""A stage of a model: the user's own forward, in which units of other stages are stubs.

Nothing is captured: python runs as it always does, with its branches, modes, hooks and contexts.
Units of this stage compute. Those of earlier stages return what was received, or a placeholder
where nothing right was made from it; the first one of a later stage ends the pass. Calls are
counted, and another order than the probe's is an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from muster_modelparallel.errors import SplitError, add_note
from muster_modelparallel.model.follow import Forward, replaced_forwards
from muster_modelparallel.model.nests import filled, leaves
from muster_modelparallel.model.random import Draw
from muster_modelparallel.model.split import Split
from muster_modelparallel.model.walk import Origin, UnitCall

Watch = Callable[[int, Sequence[Any]], None]
"""Sees the leaves of what each unit returns, with the index of the call."""


class _StageEndError(BaseException):
    """Ends the pass of a stage; not an Exception, which user code might catch."""


class GhostStage:
    """Stage `stage` of a split, on the model itself."""

    def __init__(self, model: nn.Module, split: Split, stage: int) -> None:
        self.model = model
        self.split = split
        self.stage = stage
        modules = dict(model.named_modules())
        exports = {one.path for call in split.calls for one in call.exports}
        self._units = {call.path: modules[call.path] for call in split.calls}
        self._parts = {path: modules[path] for path in exports - self._units.keys()}
        self._begins = [bounds.begin for bounds in split.bounds]
        self._watched = {path: modules[path] for path in split.watched.keys() - self._units.keys()}
        self._sent = frozenset(split.sent(stage))
        self._senders = frozenset(source.owner for source in self._sent)
        self._pass: _Pass | None = None
        self._passes: dict[Draw, _Pass] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, the units of the model are those of this stage."""
        with (
            replaced_forwards(self._units, self._forward),
            replaced_forwards(self._watched, self._drawing),
            replaced_forwards(self._parts, self._part),
        ):
            yield

    def run(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        received: Sequence[torch.Tensor] = (),
        draw: Draw | None = None,
        watch: Watch | None = None,
    ) -> Any:
        """One forward pass of one microbatch, inside `installed`: on the last stage what the model
        returns, elsewhere a tuple of the tensors to pass on, as `split.sent` lists them.

        Arguments that are not among `split.inputs` only need their shape. torch's generators are
        left at the streams of `draw`. Raises SplitError where the model does not do what it did
        when it was probed.
        """
        split = self.split
        draw = draw or Draw()
        given = dict(zip(split.received[self.stage], received, strict=True))
        self._pass = state = _Pass(self, given, draw, watch)
        if any(of.step != draw.step for of in self._passes):
            self._passes.clear()
        if torch.is_grad_enabled():
            self._passes[draw] = state
        try:
            draw.at(0)
            output = self.model(*args, **kwargs)
        except _StageEndError:
            return tuple(state.box[source] for source in split.sent(self.stage))
        finally:
            self._pass = None
        if state.count != len(split.calls):
            raise state.contradicted("the end of forward")
        return output

    def forget(self, draw: Draw) -> None:
        """Frees what the pass of this microbatch holds, once backward is done. The passes of a step
        are freed when the next step begins."""
        self._passes.pop(draw, None)

    def _forward(self, path: str, module: nn.Module, real: Forward) -> Forward:
        def unit(*args: Any, **kwargs: Any) -> Any:
            state = self._pass
            if state is not None:
                return state.call(path, real, args, kwargs)
            for old in self._passes.values():  # a checkpoint may run it again in backward
                index = old.again(path)
                if index >= 0:
                    return old.run(index, real, args, kwargs)
            return self.within(path, real, args, kwargs)

        return unit

    def _drawing(self, path: str, module: nn.Module, real: Forward) -> Forward:
        return lambda *args, **kwargs: self.within(path, real, args, kwargs)

    def within(self, path: str, real: Forward, args: Any, kwargs: Any) -> Any:
        """A module that is no unit here; where another cut may make it one, its numbers are the
        same. In backward a checkpoint may run it again."""
        draws = [self._pass.draw] if self._pass is not None else self._passes
        for draw in draws if path in self.split.watched else ():
            now = draw.now()
            for bounds in self.split.watched[path] if now >= 0 else ():
                if bounds.begin > now:
                    draw.at(bounds.begin)
                    output = real(*args, **kwargs)
                    draw.at(bounds.end)
                    return output
        return real(*args, **kwargs)

    def _part(self, path: str, module: nn.Module, real: Forward) -> Forward:
        def part(*args: Any, **kwargs: Any) -> Any:
            state = self._pass
            return real(*args, **kwargs) if state is None else state.part(path, real, args, kwargs)

        return part


class _Pass:
    """One pass of one stage: which call is next, and the tensors of calls before it."""

    def __init__(
        self,
        ghost: GhostStage,
        received: dict[Origin, torch.Tensor],
        draw: Draw,
        watch: Watch | None,
    ) -> None:
        self.box = received
        self.count = 0
        self._inside = False
        self._exported: list[Any] = []
        self._stubbed: Any = None
        self._ghost = ghost
        self._split = ghost.split
        self._stage = ghost.stage
        self.draw = draw
        self._watch = watch

    def call(self, path: str, real: Forward, args: Any, kwargs: Any) -> Any:
        """The next call. A unit within a unit is a part of it."""
        if self._inside:
            return self._ghost.within(path, real, args, kwargs)
        split, index = self._split, self.count
        if index == len(split.calls) or split.calls[index].path != path:
            raise self.contradicted(path)
        if split.stages[index] > self._stage:
            raise _StageEndError
        self.count += 1
        self._exported = []
        output = self.run(index, real, args, kwargs)
        if split.stages[index] == self._stage:
            returned = [output] if type(output) is torch.Tensor else leaves(output)
            self._note(index, returned, [*args, *kwargs.values()])
        return output

    def part(self, path: str, real: Forward, args: Any, kwargs: Any) -> Any:
        """A module within a unit, of whose return hooks take something."""
        if self._stubbed is not None:
            output, self._stubbed = self._stubbed[0], None
            return output
        output = real(*args, **kwargs)
        self._exported += leaves(output)
        return output

    def again(self, path: str) -> int:
        """Which call of that module is repeated now, by the random state; -1 for none."""
        now = self.draw.now()
        index = bisect_right(self._ghost._begins, now)
        is_within = index > 0 and now < self._split.bounds[index - 1].end
        is_known = now >= 0 and index < self.count and not is_within
        return index if is_known and self._split.calls[index].path == path else -1

    def run(self, index: int, real: Forward, args: Any, kwargs: Any) -> Any:
        """What the call returns on this stage; then the glue after it begins."""
        begin, end = self._split.bounds[index]
        if self._split.stages[index] != self._stage:
            output = self._stub(index, args, kwargs)
        else:
            self.draw.at(begin)
            self._inside = True
            try:
                output = real(*args, **kwargs)
            except Exception as error:
                add_note(error, f"in unit {self._split.calls[index].name}")
                raise
            finally:
                self._inside = False
        self.draw.at(end)
        return output

    def _note(self, index: int, returned: list[Any], arguments: list[Any]) -> None:
        """Keeps what is to be passed on."""
        call = self._split.calls[index]
        if len(returned) != len(call.returned):
            raise SplitError(
                f"{call.name} returned {len(returned)} values, but {len(call.returned)} when the "
                "model was probed",
                "a unit must return the same structure in every microbatch",
            )
        if self._watch is not None:
            self._watch(index, returned)
        if index not in self._ghost._senders:
            return
        given = leaves(arguments)
        for place, leaf in enumerate([*returned, *given, *self._exported]):
            source = Origin("value", index, place)
            if source in self._ghost._sent:
                written = len(returned) <= place < len(returned) + len(given)
                changes = source in self._split.cloned or written
                self.box[source] = leaf.clone() if changes else leaf

    def _stub(self, index: int, args: Any, kwargs: Any) -> Any:
        call = self._split.calls[index]
        needs = call.writes or any(leaf.argument >= 0 for leaf in call.returned)
        given = leaves([*args, *kwargs.values()]) if needs else []
        for place in call.writes:
            source = Origin("value", index, len(call.returned) + place)
            if source in self.box:
                given[place].copy_(self.box[source])
        place = len(call.returned) + len(call.arguments)
        for export in call.exports:
            values = [
                leaf.value if leaf.meta is None else self._value(Origin("value", index, at), call)
                for at, leaf in enumerate(export.returned, place)
            ]
            place += len(values)
            self._stubbed = [filled(export.tree, iter(values))]
            self._ghost.model.get_submodule(export.path)()  # for its hooks
        made: list[Any] = []
        for place, leaf in enumerate(call.returned):
            if leaf.argument >= 0:
                made.append(given[leaf.argument])
            elif leaf.twin >= 0:
                made.append(made[leaf.twin])
            elif leaf.meta is None:
                made.append(leaf.value)
            else:
                made.append(self._value(Origin("value", index, place), call))
        return filled(call.tree, iter(made))

    def _value(self, source: Origin, call: UnitCall) -> torch.Tensor:
        changes = source in self._split.cloned
        if source in self.box:
            held = call.meta(source.leaf).laid_out(self.box[source])
            # never itself: a reentrant checkpoint makes what is returned in it an output of its own
            return held.clone() if changes else held.view_as(held)
        return call.meta(source.leaf).placeholder(writable=changes)

    def contradicted(self, found: str) -> SplitError:
        calls = self._split.calls
        expected = calls[self.count].name if self.count < len(calls) else "the end of forward"
        order = ", ".join(call.name for call in calls[max(0, self.count - 2) : self.count + 2])
        return SplitError(
            f"stage {self._stage} expected {expected} as call {self.count} and found {found}; the "
            f"probe saw {order}",
            "the modules that forward calls must not depend on the data; use one partition",
        )

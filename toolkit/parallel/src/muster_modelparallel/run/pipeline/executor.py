"""Runs the stages of this rank in the order of a schedule, and passes tensors between ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from muster_modelparallel.errors import SplitError, StepError
from muster_modelparallel.model.trace import Meta
from muster_modelparallel.run.pipeline.protocols import StageWork
from muster_modelparallel.run.pipeline.waits import Waits
from muster_modelparallel.shape.schedule import BACKWARD, Kind, Message, Schedule

AHEAD = 1
"""Messages of one rank that are received before they are needed: one arrives while the one before
is worked on. More cost memory, and time on machines whose cores are all at work (measured)."""
_ALL = frozenset(Kind)


class _Pass(NamedTuple):
    """A forward pass whose backward is to come."""

    received: tuple[torch.Tensor, ...]
    sent: tuple[torch.Tensor, ...]


class Pipeline:
    """The ranks of a process group as a pipeline, seen from one of them.

    A forward pass lives from one `run` to another until its backward is done, or `clear`.

    back: the same ranks once more, for what goes to lower ranks; `group` where it is None. A group
    of NCCL needs it: it runs what two ranks send each other one after another, in the order in
    which it was asked for, so that a receive that is begun early would hold up the send behind it.
    """

    def __init__(
        self, group: Any, device: torch.device, waits: Waits | None = None, back: Any = None
    ) -> None:
        self._onward, self._back = group, back or group
        self._ranks: list[int] = dist.get_process_group_ranks(group)
        self._place = self._ranks.index(dist.get_rank())
        self._device = device
        self._waits = waits or Waits()
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._connected: set[tuple[int, int]] = set()
        self._run: _Run | None = None

    def run(
        self,
        schedule: Schedule,
        works: Mapping[int, StageWork],
        kinds: Set[Kind] = _ALL,
        first: int = 0,
        gradients: Callable[[], bool] = lambda: True,
        horizon: int = 0,
    ) -> None:
        """Does this rank's actions of those kinds, with its stages. All ranks of the group come
        here with the same schedule. The schedule's microbatch 0 is that of number `first`.

        gradients: whether backward may come, asked when the first forward pass is prepared.
        horizon: a stage's work is told of a backward that is so many actions away or fewer. Raises
        what a stage's work raises, SplitError where a stage passes on other tensors than its metas
        say, ExchangeError where another rank is gone.
        """
        self._connect(schedule)
        self._run = _Run(self, schedule, works, kinds, first, gradients, horizon)
        self._run.walk()

    def go_on(self) -> None:
        """Called within `run`, by a stage's work: does all that comes after this action."""
        assert self._run is not None
        self._run.walk()

    def _connect(self, schedule: Schedule) -> None:
        """One message by each route, all in one order: with the first one between two ranks NCCL
        waits for the other to come to that same group, and they begin with different ones."""
        if self._onward is self._back:
            return
        for sender, receiver in sorted(schedule.routes, key=lambda one: (sorted(one), one)):
            if (sender, receiver) in self._connected:
                continue
            self._connected.add((sender, receiver))
            group = self.group(sender, receiver)
            word = torch.zeros(1, device=self._device)
            what = f"rank {self._ranks[self._place]} meets rank"
            if self._place == sender:
                with self._waits.waiting(f"{what} {self._ranks[receiver]}"):
                    dist.send(word, self._ranks[receiver], group=group)
            elif self._place == receiver:
                with self._waits.waiting(f"{what} {self._ranks[sender]}"):
                    dist.recv(word, self._ranks[sender], group=group)

    def group(self, sender: int, receiver: int) -> Any:
        """That of messages from one place to another."""
        return self._onward if sender < receiver else self._back

    def clear(self) -> None:
        """Drops the forward passes whose backward did not come, and the walk through a schedule."""
        self._passes.clear()
        self._run = None


class _Run:
    """One walk through a schedule."""

    def __init__(
        self,
        pipeline: Pipeline,
        schedule: Schedule,
        works: Mapping[int, StageWork],
        kinds: Set[Kind],
        first: int,
        gradients: Callable[[], bool],
        horizon: int,
    ) -> None:
        self._pipeline = pipeline
        self._works = works
        self._first = first
        self._gradients = gradients
        self._rank_of = schedule.rank_of
        self._last_stage = len(schedule.rank_of) - 1
        place = pipeline._place
        groups = {Kind.FORWARD: Kind.FORWARD in kinds, Kind.BACKWARD: bool(kinds - {Kind.FORWARD})}
        self._coming = {
            sender: deque(message for message in messages if groups[message.kind])
            for (sender, receiver), messages in schedule.routes.items()
            if receiver == place
        }
        self._posted: dict[Message, tuple[list[torch.Tensor], list[Any]]] = {}
        self._local: dict[Message, tuple[torch.Tensor, ...]] = {}
        self._sending: deque[tuple[Callable[[], str], Any, torch.Tensor]] = deque()
        self._horizon = horizon
        self._actions = [action for action in schedule.ranks[place] if action.kind in kinds]
        self._left = iter(enumerate(self._actions))
        for sender in self._coming:
            self._look_ahead(sender)

    def walk(self) -> None:
        """Does the actions that are left, and waits until everything has been taken."""
        for at, (kind, stage, microbatch) in self._left:
            self._tell(at)
            if kind is Kind.FORWARD:
                forward = partial(self._forward, stage, microbatch)
                self._works[stage].around(self._first + microbatch, forward)
            elif kind is not Kind.WEIGHT_BACKWARD:  # the first half does the whole
                self._backward(stage, microbatch)
        while self._sending:
            what, work, _ = self._sending.popleft()
            with self._pipeline._waits.waiting(what):
                work.wait()

    def _tell(self, at: int) -> None:
        """Of the backwards that are near now."""
        horizon = self._horizon
        new = at + horizon if at else 0  # those before have been told
        for coming in self._actions[new : at + horizon + 1] if horizon else ():
            if coming.kind in BACKWARD:
                self._works[coming.stage].soon(self._first + coming.microbatch)

    def _forward(self, stage: int, microbatch: int) -> None:
        """Receives, computes, passes on. What was received and sent is kept for backward."""
        work = self._works[stage]
        message = Message(Kind.FORWARD, stage, microbatch)
        number = self._first + microbatch
        received = self._take(message, work.receives(number)) if stage else ()
        sent = tuple(work.forward(number, received))
        gradients = self._gradients()
        if stage < self._last_stage:
            _check(stage, sent, work.sends(number), gradients)
        if gradients:
            self._pipeline._passes[stage, number] = _Pass(received, sent)
        if stage < self._last_stage:
            self._pass_on(Message(Kind.FORWARD, stage + 1, microbatch), sent)
        if not gradients:
            work.done(number)

    def _backward(self, stage: int, microbatch: int) -> None:
        """Receives gradients of what was sent, or begins at the roots; passes on those of what was
        received. They are read from `.grad`, for one backward may reach what several calls of the
        model have received."""
        work = self._works[stage]
        number = self._first + microbatch
        passed = self._pipeline._passes.pop((stage, number), None)
        if passed is None:
            raise StepError(
                "the step function called the model without gradients where steps before trained",
                "call it under torch.no_grad() in each step, or in a step function of its own",
            )
        received, sent = passed
        ends: Sequence[torch.Tensor]
        seeds: Sequence[torch.Tensor | None]
        if stage == self._last_stage:
            ends, seeds = work.roots(number)
        else:
            sends = work.sends(number)
            grads = self._take(Message(Kind.BACKWARD, stage, microbatch), _grads(sends))
            differentiable = [
                end for end, meta in zip(sent, sends, strict=True) if meta.requires_grad
            ]
            pairs = [
                pair for pair in zip(differentiable, grads, strict=True) if pair[0].requires_grad
            ]
            ends, seeds = [end for end, _ in pairs], [grad for _, grad in pairs]
        if ends:
            work.backward(number, ends, seeds)
        work.done(number)
        if stage:
            back = [
                torch.zeros_like(one) if one.grad is None else one.grad
                for one in received
                if one.requires_grad
            ]
            self._pass_on(Message(Kind.BACKWARD, stage - 1, microbatch), back)

    def _pass_on(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """To the next stage's rank, without waiting; a stage of this rank gets them as they are.
        Memory of what has been taken is let go."""
        pipeline = self._pipeline
        receiver = self._rank_of[message.stage]
        if receiver == pipeline._place:
            self._local[message] = tuple(tensor.detach() for tensor in tensors)
            return
        while self._sending and self._sending[0][1].is_completed():
            self._sending.popleft()
        group = pipeline.group(pipeline._place, receiver)
        what = partial(self._words, "waits to hand {} to", message, receiver)
        for tensor in tensors:
            data = tensor.detach().contiguous()
            with pipeline._waits.waiting(what):
                work = group.send([data], receiver, 0)
            self._sending.append((what, work, data))

    def _take(self, message: Message, metas: Sequence[Meta]) -> tuple[torch.Tensor, ...]:
        """The tensors of a message, with gradients to come where the metas say so."""
        if message in self._local:
            made: Sequence[torch.Tensor] = self._local.pop(message)
        else:
            sender = self._sender(message)
            while message not in self._posted:
                self._post(sender, self._coming[sender].popleft())
            made, works = self._posted.pop(message)
            self._look_ahead(sender)
            what = partial(self._words, "waits for {} from", message, sender)
            with self._pipeline._waits.waiting(what):
                for work in works:
                    work.wait()
        if message.kind is Kind.FORWARD and self._gradients():
            for tensor, meta in zip(made, metas, strict=True):
                tensor.requires_grad_(meta.requires_grad)
        return tuple(made)

    def _sender(self, message: Message) -> int:
        """The place of the rank whose stage makes the message."""
        before = message.stage - 1 if message.kind is Kind.FORWARD else message.stage + 1
        return self._rank_of[before]

    def _look_ahead(self, sender: int) -> None:
        """Begins to receive what comes next from that rank."""
        there = sum(self._sender(message) == sender for message in self._posted)
        coming = self._coming[sender]
        for _ in range(min(AHEAD - there, len(coming))):
            _, stage, microbatch = coming[0]
            if not self._works[stage].is_known(self._first + microbatch):
                return
            self._post(sender, coming.popleft())

    def _post(self, sender: int, message: Message) -> None:
        """Begins to receive a message, in the order in which the sender has them ready: torch
        matches sends and receives between two ranks by their order."""
        pipeline, work = self._pipeline, self._works[message.stage]
        number = self._first + message.microbatch
        forward = message.kind is Kind.FORWARD
        metas = work.receives(number) if forward else _grads(work.sends(number))
        made = [
            torch.empty(meta.shape, dtype=meta.dtype, device=pipeline._device) for meta in metas
        ]
        group = pipeline.group(sender, pipeline._place)
        what = partial(self._words, "begins to receive {} from", message, sender)
        with pipeline._waits.waiting(what):
            works = [group.recv([tensor], sender, 0) for tensor in made]
        self._posted[message] = made, works

    def _words(self, does: str, message: Message, other_place: int) -> str:
        """For a person who asks what a rank waits for."""
        ranks = self._pipeline._ranks
        kind = "activations" if message.kind is Kind.FORWARD else "gradients"
        other = message.stage - 1 if message.kind is Kind.FORWARD else message.stage + 1
        done = does.format(
            f"the {kind} of microbatch {self._first + message.microbatch} "
            f"from stage {other} to stage {message.stage}"
        )
        return f"rank {ranks[self._pipeline._place]} {done} rank {ranks[other_place]}"


def _grads(metas: Sequence[Meta]) -> list[Meta]:
    """Of the tensors whose gradient comes back."""
    return [meta for meta in metas if meta.requires_grad]


def _check(
    stage: int, tensors: Sequence[torch.Tensor], metas: Sequence[Meta], gradients: bool
) -> None:
    """The next stage has made room by the metas, and sends gradients by them."""
    for place, (tensor, meta) in enumerate(zip(tensors, metas, strict=True)):
        found = tuple(tensor.shape), tensor.dtype
        lost = gradients and tensor.requires_grad and not meta.requires_grad
        if found != (meta.shape, meta.dtype) or lost:
            raise SplitError(
                f"stage {stage} passes on {found[1]} of shape {found[0]} (tensor {place}"
                f"{', which needs a gradient' if lost else ''}), but {meta.dtype} of shape "
                f"{meta.shape} when the model was probed",
                "change requires_grad between steps alone, and what forward detaches never"
                if lost
                else "shapes must not depend on the values of the data; use one partition",
            )

"""In which order each rank works on stages and microbatches: schedules as tables of actions.

GPipe, 1F1B, also with several stages on a rank, and forward only are made here; any other, such as
those of torch, is a table that is passed in. Names are those of torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from muster_modelparallel.errors import PlanError


class Kind(str, Enum):
    """What is done: a backward in one piece, or in two, of which only the first is waited for."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_BACKWARD = "I"
    WEIGHT_BACKWARD = "W"


BACKWARD = frozenset((Kind.BACKWARD, Kind.INPUT_BACKWARD))
"""The backwards that others wait for: one in each pass."""
IN_TURNS = "Interleaved1F1B"


class Action(NamedTuple):
    """`2F0` is the forward of microbatch 0 through stage 2."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"

    def needs(self, last_stage: int) -> Action | None:
        """The action whose result comes from another stage, as FORWARD or BACKWARD."""
        kind, stage, microbatch = self
        if kind is Kind.FORWARD:
            return Action(kind, stage - 1, microbatch) if stage else None
        if kind is Kind.WEIGHT_BACKWARD or stage == last_stage:
            return None
        return Action(Kind.BACKWARD, stage + 1, microbatch)


class Step(NamedTuple):
    """An action that can be done after the steps of those numbers: the one before on its rank, and
    the one that it needs; 0 stands for the beginning."""

    action: Action
    rank: int
    before: int
    needs: int


class Message(NamedTuple):
    """Activations (FORWARD) or gradients (BACKWARD) of a microbatch that `stage` receives."""

    kind: Kind
    stage: int
    microbatch: int


@dataclass(frozen=True)
class Schedule:
    """The actions of each rank in order. Raises PlanError for a stage on two ranks, an action that
    is missing or there twice or before what it needs, and for a deadlock."""

    name: str
    microbatches: int
    ranks: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        actions = [action for rank in self.ranks for action in rank]
        stages, backward = len({action.stage for action in actions}), self.has_backward
        halves = {(a.stage, a.microbatch) for a in actions if a.kind is Kind.INPUT_BACKWARD}
        expected = set()
        for one in ((stage, mb) for stage in range(stages) for mb in range(self.microbatches)):
            kinds = (
                [Kind.INPUT_BACKWARD, Kind.WEIGHT_BACKWARD] if one in halves else [Kind.BACKWARD]
            )
            expected |= {Action(kind, *one) for kind in [Kind.FORWARD, *kinds * backward]}
        wrong = expected.symmetric_difference(actions)
        if wrong or len(actions) != len(expected) or len(self.rank_of) != stages:
            what = ", ".join(map(str, sorted(wrong)[:5])) or "an action or a stage twice"
            raise PlanError(f"schedule {self.name} of {len(self.ranks)} ranks is broken: {what}")
        if len(self.steps) < len(actions):
            done = [
                sum(step.rank == rank for step in self.steps) for rank in range(len(self.ranks))
            ]
            stuck = [(rank, self.ranks[rank][at:][:1]) for rank, at in enumerate(done)]
            waits = [f"rank {rank} waits with {one[0]}" for rank, one in stuck if one]
            raise PlanError(f"schedule {self.name} cannot go on: {', '.join(waits)}")

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All actions in an order in which they can be done, whatever they cost."""
        last_stage = len(self.rank_of) - 1
        number: dict[Action, int] = {}
        steps: list[Step] = []
        at, before = [0] * len(self.ranks), [0] * len(self.ranks)
        sleepers: dict[Action, int] = {}
        ready = list(range(len(self.ranks)))
        while ready:
            rank = ready.pop()
            for action in self.ranks[rank][at[rank] :]:
                kind, stage, microbatch = action
                need = action.needs(last_stage)
                if need and need not in number:
                    sleepers[need] = rank
                    break
                own = Kind.FORWARD if kind is not Kind.WEIGHT_BACKWARD else Kind.BACKWARD
                if kind is not Kind.FORWARD and Action(own, stage, microbatch) not in number:
                    break
                steps.append(Step(action, rank, before[rank], number[need] if need else 0))
                at[rank], before[rank] = at[rank] + 1, len(steps)
                if kind is not Kind.WEIGHT_BACKWARD:
                    result = Kind.FORWARD if kind is Kind.FORWARD else Kind.BACKWARD
                    done = Action(result, stage, microbatch)
                    number[done] = len(steps)
                    ready += [sleepers.pop(done)] if done in sleepers else []
        return tuple(steps)

    @cached_property
    def has_backward(self) -> bool:
        return any(action.kind is not Kind.FORWARD for rank in self.ranks for action in rank)

    @cached_property
    def rank_of(self) -> Mapping[int, int]:
        """The rank of each stage."""
        pairs = {(a.stage, rank) for rank, actions in enumerate(self.ranks) for a in actions}
        return dict(sorted(pairs)) if len(dict(pairs)) == len(pairs) else {}

    @cached_property
    def live(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each rank, at each of its peaks, how many microbatches each of its stages, in
        ascending order, keeps from forward to backward."""
        return (
            tuple(map(_peaks, self.ranks)) if self.has_backward else tuple(() for _ in self.ranks)
        )

    @cached_property
    def routes(self) -> Mapping[tuple[int, int], tuple[Message, ...]]:
        """By (sender, receiver): the messages between two ranks, in the order in which the sender
        has them ready."""
        last_stage = len(self.rank_of) - 1
        found: dict[tuple[int, int], list[Message]] = {}
        for rank, actions in enumerate(self.ranks):
            for kind, stage, microbatch in actions:
                if kind is Kind.FORWARD and stage < last_stage:
                    message = Message(Kind.FORWARD, stage + 1, microbatch)
                elif kind in BACKWARD and stage:
                    message = Message(Kind.BACKWARD, stage - 1, microbatch)
                else:
                    continue
                receiver = self.rank_of[message.stage]
                if receiver != rank:
                    found.setdefault((rank, receiver), []).append(message)
        return {pair: tuple(messages) for pair, messages in found.items()}

    def last_backward(self, rank: int) -> tuple[int, int]:
        """Its stage and microbatch."""
        return next(
            (stage, microbatch)
            for kind, stage, microbatch in reversed(self.ranks[rank])
            if kind in BACKWARD
        )

    def peak_live(self, stage: int) -> int:
        """The most microbatches that the stage keeps at one time."""
        rank = self.rank_of[stage]
        mine = [one for one, of in self.rank_of.items() if of == rank]
        return max((counts[mine.index(stage)] for counts in self.live[rank]), default=0)


def _peaks(actions: tuple[Action, ...]) -> tuple[tuple[int, ...], ...]:
    now = dict.fromkeys(sorted({action.stage for action in actions}), 0)
    peaks, rising = set(), False
    for kind, stage, _ in actions:
        if kind is Kind.FORWARD:
            now[stage], rising = now[stage] + 1, True
        elif kind is not Kind.INPUT_BACKWARD:
            if rising:
                peaks.add(tuple(now.values()))
            now[stage], rising = now[stage] - 1, False
    return tuple(sorted(peaks))


def gpipe(ranks: int, microbatches: int, active: int | None = None) -> Schedule:
    """All forwards, then all backwards; with fewer `active` microbatches in waves of so many."""
    wave = min(active or microbatches, microbatches)
    starts = range(0, microbatches, wave)
    waves = [range(start, min(start + wave, microbatches)) for start in starts]

    def of(stage: int) -> tuple[Action, ...]:
        both = [(kind, mbs) for mbs in waves for kind in (Kind.FORWARD, Kind.BACKWARD)]
        return tuple(Action(kind, stage, mb) for kind, mbs in both for mb in mbs)

    return Schedule("GPipe", microbatches, tuple(map(of, range(ranks))))


def one_f_one_b(ranks: int, microbatches: int, active: int | None = None) -> Schedule:
    """A backward as soon as there is one: stage s keeps `ranks - s` microbatches, `active` at
    most."""

    def of(stage: int) -> tuple[Action, ...]:
        ahead = min(ranks - 1 - stage, microbatches, (active or ranks) - 1)
        forward = [Action(Kind.FORWARD, stage, mb) for mb in range(microbatches)]
        backward = [Action(Kind.BACKWARD, stage, mb) for mb in range(microbatches)]
        pairs = zip(forward[ahead:], backward, strict=False)
        rest = backward[microbatches - ahead :]
        return (*forward[:ahead], *(one for pair in pairs for one in pair), *rest)

    return Schedule("1F1B", microbatches, tuple(map(of, range(ranks))))


def interleaved(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """1F1B with so many stages on each rank, which come by in turns: ranks wait 1/`chunks` as long.
    Raises PlanError where the ranks do not divide the microbatches. Source: Narayanan et al. 2021,
    Efficient Large-Scale Language Model Training on GPU Clusters, section 2.2."""
    if ranks < 2 or microbatches % ranks:
        what = f"{microbatches} microbatches are no multiple" if ranks > 1 else "there are no turns"
        raise PlanError(f"{IN_TURNS} on {ranks} ranks: {what}")
    count = microbatches * chunks

    def nth(kind: Kind, rank: int, number: int) -> Action:
        """Groups of as many microbatches as ranks go through all chunks before the next one."""
        turn, place = divmod(number, ranks)
        group, chunk = divmod(turn, chunks)
        chunk = chunk if kind is Kind.FORWARD else chunks - 1 - chunk
        return Action(kind, chunk * ranks + rank, group * ranks + place)

    def of(rank: int) -> tuple[Action, ...]:
        ahead = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), count)
        forward = [nth(Kind.FORWARD, rank, number) for number in range(count)]
        backward = [nth(Kind.BACKWARD, rank, number) for number in range(count)]
        pairs = zip(forward[ahead:], backward, strict=False)
        rest = backward[count - ahead :]
        return (*forward[:ahead], *(one for pair in pairs for one in pair), *rest)

    return Schedule(IN_TURNS, microbatches, tuple(map(of, range(ranks))))


def in_waves(rank_of: Sequence[int], microbatches: int) -> Schedule:
    """For any ranks of the stages: each stage does all microbatches before the next one begins,
    then all backwards."""
    stages, all_of_them = range(len(rank_of)), range(microbatches)
    order = [Action(Kind.FORWARD, stage, mb) for stage in stages for mb in all_of_them]
    order += [Action(Kind.BACKWARD, stage, mb) for stage in reversed(stages) for mb in all_of_them]
    ranks = range(max(rank_of) + 1)
    actions = (tuple(a for a in order if rank_of[a.stage] == rank) for rank in ranks)
    return Schedule("LoopedBFS", microbatches, tuple(actions))


def forward_only(ranks: int, microbatches: int) -> Schedule:
    """For evaluation."""
    forward = (
        tuple(Action(Kind.FORWARD, stage, mb) for mb in range(microbatches))
        for stage in range(ranks)
    )
    return Schedule("ForwardOnly", microbatches, tuple(forward))

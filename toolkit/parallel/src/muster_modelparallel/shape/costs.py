"""What a stage costs that holds units i to j-1: seconds and bytes of every such range."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from muster_modelparallel.shape.simulate import StageCost
from muster_modelparallel.shape.units import Crossing, ModelProfile


@dataclass(frozen=True, slots=True)
class Machine:
    """What is assumed of each rank: bytes per second and seconds per message to another rank, bytes
    that it may hold (None: no cap), and how many bytes it holds for each byte of parameters: with
    Adam the parameter, its gradient and two states."""

    bandwidth: float = 1e9
    latency_s: float = 5e-5
    memory_bytes: int | None = None
    copies: float = 4.0


class Ranges:
    """Tables over all ranges of units, for a batch cut into `microbatches`: costs of one microbatch
    are those of the profile times its number of microbatches over this one.

    A cut at `c` lies before unit c; `tensors` counts those that cross it and whose gradients are
    summed there. Whoever sends is busy meanwhile: a stage pays for what its
    forward sends on and for the gradients that its backward sends back. A tied parameter is held
    once by each of its stages, which reduce its gradient once a step.
    """

    def __init__(self, profile: ModelProfile, machine: Machine, microbatches: int) -> None:
        units, self.count = profile.units, len(profile.units)
        scale = profile.microbatches / microbatches
        self._forward = self._seconds(profile.forward_s, scale)
        self._backward = self._seconds(profile.backward_s, scale)
        self._saved = [0, *accumulate(ceil(scale * unit.saved_bytes) for unit in units)]
        self.total_s = self._forward[-1] + self._backward[-1]
        self.tensors = [0] * (self.count + 1)
        self.relay_bytes = [0.0] * (self.count + 1)
        self._send, self._send_back = [0.0] * (self.count + 1), [0.0] * (self.count + 1)
        for one in crossings(profile):
            forth, back = scale * one.bytes, scale * one.grad_bytes
            self.tensors[one.cut] = one.grads
            self.relay_bytes[one.cut] = forth
            self._send[one.cut] = one.tensors * machine.latency_s + forth / machine.bandwidth
            self._send_back[one.cut] = one.grads * machine.latency_s + back / machine.bandwidth
        bounds = [(min(one.units), max(one.units)) for one in profile.constraints]
        inside = {cut for low, high in bounds for cut in range(low + 1, high + 1)}
        blocks = [unit.block for unit in units]
        self.cuts = [cut for cut in range(1, self.count) if cut not in inside]
        self.inside_block = {c for c in self.cuts if blocks[c] and blocks[c] == blocks[c - 1]}
        self._tables(profile, machine, 2 / (machine.bandwidth * microbatches))

    def _seconds(self, of: Callable[[int], float], scale: float) -> list[float]:
        return [0.0, *accumulate(scale * of(at) for at in range(self.count))]

    def _tables(self, profile: ModelProfile, machine: Machine, s_per_byte: float) -> None:
        ties = defaultdict(list)
        for tie in profile.ties:
            for at in set(tie.units):
                ties[at].append(tie)
        self.static_bytes: list[list[int]] = []
        self.sync_s: list[list[float]] = []
        for first in range(self.count):
            held, sync, seen = 0, 0.0, defaultdict[str, int](int)
            row_bytes, row_s = [0] * (self.count + 1), [0.0] * (self.count + 1)
            for at in range(first, self.count):
                unit = profile.units[at]
                held += ceil(machine.copies * unit.parameter_bytes) + unit.buffer_bytes
                for tie in ties[at]:
                    seen[tie.parameter] += 1
                    held -= ceil(machine.copies * tie.bytes) * (seen[tie.parameter] > 1)
                    whole = seen[tie.parameter] == len(set(tie.units))
                    sync += s_per_byte * tie.bytes * ((seen[tie.parameter] == 1) - whole)
                row_bytes[at + 1], row_s[at + 1] = held, sync
            self.static_bytes.append(row_bytes)
            self.sync_s.append(row_s)

    def compute_s(self, first: int, end: int) -> float:
        """Forward and backward of one microbatch, without what is sent."""
        forward = self._forward[end] - self._forward[first]
        return forward + self._backward[end] - self._backward[first]

    def load_s(self, first: int, end: int) -> float:
        """What the stage needs for one microbatch, tied gradients and what it sends among them."""
        sent = self._send[end] + self._send_back[first]
        return self.compute_s(first, end) + sent + self.sync_s[first][end]

    def bytes(self, first: int, end: int, live: int) -> int:
        """What the stage holds with so many microbatches between forward and backward."""
        return self.static_bytes[first][end] + live * (self._saved[end] - self._saved[first])

    def stages(self, cuts: Sequence[int], rank_of: Mapping[int, int]) -> list[StageCost]:
        """For the simulator. Neighbours on one rank send each other nothing."""
        starts, ends = (0, *cuts), (*cuts, self.count)
        costs = []
        for stage, (first, end) in enumerate(zip(starts, ends, strict=True)):
            forward = self._forward[end] - self._forward[first]
            backward = self._backward[end] - self._backward[first] + self.sync_s[first][end]
            if rank_of[stage] != rank_of.get(stage + 1):
                forward += self._send[end]
            if rank_of[stage] != rank_of.get(stage - 1):
                backward += self._send_back[first]
            saved = self._saved[end] - self._saved[first]
            costs.append(StageCost(forward, backward, self.static_bytes[first][end], saved))
        return costs


class Tensor(NamedTuple):
    """One that travels between units: it crosses the cuts from the one after `source` up to that
    before unit `last`, and those that need it lie there."""

    source: int
    leaf: int
    last: int
    bytes: int
    grad: bool


def crossings(profile: ModelProfile) -> list[Crossing]:
    """Of every cut: as they were probed, else as the flows say."""
    known = {one.cut: one for one in profile.crossings}
    crossing: dict[int, list[Tensor]] = defaultdict(list)
    for one in live_tensors(profile):
        for cut in range(max(one.source, 0) + 1, one.last + 1):
            crossing[cut].append(one)
    found = []
    for cut in range(1, len(profile.units)):
        tensors = crossing[cut]
        grads = [one.bytes for one in tensors if one.grad]
        size = sum(one.bytes for one in tensors)
        said = Crossing(cut, len(tensors), size, len(grads), sum(grads))
        found.append(known.get(cut, said))
    return found


def live_tensors(profile: ModelProfile) -> list[Tensor]:
    """All tensors that travel; what the model returns ends with the last unit."""
    found: dict[tuple[int, int], Tensor] = {}
    for flow in profile.flows:
        key = (flow.source, flow.leaf)
        old = found.get(key, Tensor(*key, 0, 0, False))
        last = max(old.last, min(flow.target, len(profile.units) - 1))
        found[key] = Tensor(*key, last, max(old.bytes, flow.bytes), old.grad or flow.grad)
    return list(found.values())

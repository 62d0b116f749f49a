"""How long a schedule takes: every node's processors and the two directions of its link.

A rank works through its schedule in order: posts a step's messages, waits for those of the step
before, sums. A message occupies its sender's link out and its receiver's link in for as long as its
bytes take, one after another; the ranks of a node share both. Nothing else is modelled: no loss, no
switch that is slower than its links, no rank that comes late.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated.schedules import FRAME_BYTES, Post, Schedule, Step

Times: TypeAlias = "NDArray[np.float64]"
Nodes: TypeAlias = "NDArray[np.int64]"


class Host(NamedTuple):
    """What a node costs, of processors that no others use."""

    latency_s: float  # from the last byte on the link until the receiver goes on
    message_s: float  # of processor time, at the sender and at the receiver
    byte_s: float  # the same for each byte, and for each that is summed
    local_byte_s: float = 0.0  # a sum within the node and its handing out, of the vector's bytes


class Link(NamedTuple):
    """Payload bytes per second of each direction; `crowding`: ranks for each processor, or 1."""

    bytes_per_s: float
    crowding: float = 1.0


def seconds(schedule: Schedule, host: Host, link: Link) -> float:
    """Of one call, after the last; until the last rank has its result."""
    nodes = len(schedule.pieces[0][0].posts[0].sizes)
    state = _State(schedule, host, link, nodes)
    begun = ended = 0
    at = [0] * len(schedule.pieces)
    while ended < len(schedule.pieces):
        others = begun
        if begun < len(schedule.pieces) and begun - ended < schedule.flight:
            state.work(schedule.piece_bytes[begun] * host.local_byte_s / 2)
            state.post(begun, schedule.pieces[begun][0])
            begun += 1
        for piece in range(others - 1, ended - 1, -1):
            steps = schedule.pieces[piece]
            state.receive(piece, steps[at[piece]])
            at[piece] += 1
            if at[piece] < len(steps):
                state.post(piece, steps[at[piece]])
        if at[ended] == len(schedule.pieces[ended]):
            state.work(schedule.piece_bytes[ended] * host.local_byte_s / 2)
            ended += 1
    return float(state.processor.max())


class _State:
    def __init__(self, schedule: Schedule, host: Host, link: Link, nodes: int) -> None:
        self.rails, self.host, self.link = schedule.rails, host, link
        self.nodes = np.arange(nodes)
        # until when each is busy; all rails of a node do the same at the same time
        self.processor, self.out, self.into = (np.zeros(nodes) for _ in range(3))
        self.arrived: dict[int, Times] = {}

    def work(self, spent: Times | float) -> None:
        self.processor = self.processor + spent * self.link.crowding

    def post(self, piece: int, step: Step) -> None:
        arrived = np.zeros(len(self.nodes))
        for post in step.posts:
            sizes, frames = _arrays(post)
            self.work(frames * self.host.message_s + sizes * self.host.byte_s)
            takes = (sizes + frames * FRAME_BYTES) * self.rails / self.link.bytes_per_s
            to: Nodes = (self.nodes + post.distance) % len(self.nodes)
            start = np.where(frames > 0, np.maximum(self.processor, self.out), self.out)
            self.out = start + takes
            into = np.maximum(start, self.into[to]) + takes
            self.into[to] = np.where(frames > 0, into, self.into[to])
            there = np.where(frames > 0, self.into[to] + self.host.latency_s, 0)
            arrived[to] = np.maximum(arrived[to], there)
        self.arrived[piece] = arrived

    def receive(self, piece: int, step: Step) -> None:
        self.processor = np.maximum(self.processor, self.arrived.pop(piece))
        for post in step.posts:
            sizes, frames = _arrays(post)
            spent = np.zeros(len(self.nodes))
            spent[(self.nodes + post.distance) % len(self.nodes)] = (
                frames * self.host.message_s + sizes * self.host.byte_s
            )
            self.work(spent)
        self.work(np.array(step.summed) * self.host.byte_s)


def _arrays(post: Post) -> tuple[Times, Times]:
    return np.array(post.sizes, dtype=float), np.array(post.frames, dtype=float)

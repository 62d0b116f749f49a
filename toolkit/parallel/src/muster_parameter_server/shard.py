"""A server's own part of the parameters, its optimizer state, and room for what workers send.

Half types (bfloat16, float16) travel as they are; master copy and state are float32, so that small
updates are not rounded away. Memory in bytes for n of parameters: n x (1 + workers + slots), and
for half types n x (3 + workers + 2 x slots).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from muster_parameter_server.layout import Segment
from muster_parameter_server.memory import TORCH
from muster_parameter_server.options import Hyper, Registration, uses_slots
from muster_parameter_server.update import UPDATES

# elements that are updated at once: with a few workers' gradients they fit a core's own cache
BLOCK = 1 << 16


class Kept(NamedTuple):
    """What a load brings beside the parameters themselves."""

    done: int  # updates that made them
    slots: bool
    master: bool


class Part:
    """One segment. `wire` is what workers pull, `inbox[rank]` where a worker's gradient lands.

    As in torch.optim, the first update of a group with momentum fills its buffer without dampening.
    """

    def __init__(self, segment: Segment, slots: Sequence[str], workers: int) -> None:
        dtype = TORCH[segment.dtype.name]
        self.segment = segment
        self.wire = torch.zeros(segment.elements, dtype=dtype)
        self.master = self.wire.float() if segment.is_half else self.wire
        self.slots = {slot: torch.zeros_like(self.master) for slot in slots}
        self.inbox = [torch.zeros_like(self.wire) for _ in range(workers)]
        self._first = True  # the next update that uses the slots is their first

    def update(self, name: str, ranks: Sequence[int], hyper: Hyper, done: int) -> None:
        """Applies the mean of the ranks' gradients, summed in the order of the ranks.

        So the same gradients give the same bits, in whatever order they came. Spoils the gradients.
        """
        uses = bool(self.slots) and uses_slots(name, hyper)
        done = int(not self._first) if name == "sgd" else done
        self._first &= not uses
        for start in range(0, self.segment.elements, BLOCK):
            part = slice(start, start + BLOCK)
            total = self.inbox[ranks[0]][part]
            if self.master is not self.wire:
                total = total.float()
            for rank in ranks[1:]:
                total.add_(self.inbox[rank][part])
            if len(ranks) > 1:
                total.div_(len(ranks))
            slots = {slot: tensor[part] for slot, tensor in self.slots.items()}
            UPDATES[name](self.master[part], total, slots, hyper, done)
            if self.master is not self.wire:
                self.wire[part].copy_(self.master[part])

    def loaded(self, kept: Kept) -> None:
        """The wire copy was written from outside; what else was not begins anew.

        Half values decide: a master copy counts only where it rounds to them.
        """
        if self.master is not self.wire:
            fits = self.master.to(self.wire.dtype) == self.wire
            known = fits if kept.master else torch.zeros_like(fits)
            self.master.copy_(torch.where(known, self.master, self.wire.float()))
        if not kept.slots:
            for slot in self.slots.values():
                slot.zero_()
        # torch.optim saves no buffer of a group that never had momentum; here it is all zeros
        self._first = not any(bool(slot.any()) for slot in self.slots.values())


class Shard:
    """All parts of a server. Not locked: the room decides who calls when."""

    def __init__(self, parts: Sequence[Segment], registration: Registration) -> None:
        self._name = registration.optimizer
        self.slots = registration.slots
        self.parts = [Part(part, self.slots, registration.workers) for part in parts]
        self.done = 0  # updates so far

    def update(self, ranks: Sequence[int], hyper: Sequence[Hyper]) -> None:
        """One update from the gradients in the ranks' inboxes."""
        with torch.inference_mode():
            for part in self.parts:
                part.update(self._name, ranks, hyper[part.segment.group], self.done)
        self.done += 1

    def load(self, kept: Kept) -> None:
        """Wire copies were written, and what `kept` names."""
        self.done = kept.done
        with torch.inference_mode():
            for part in self.parts:
                part.loaded(kept)

    def copy_out(self, rank: int) -> None:
        """Puts the parameters into the rank's inbox, whose gradient was used."""
        for part in self.parts:
            part.inbox[rank].copy_(part.wire)

    def inbox(self, rank: int) -> list[Tensor]:
        return [part.inbox[rank] for part in self.parts]

    def wires(self) -> list[Tensor]:
        return [part.wire for part in self.parts]

    def state(self, slots: bool = True, master: bool = True) -> list[Tensor]:
        """For each part its slots, in the order of `slots`, then for half types the master copy."""
        found: list[Tensor] = []
        for part in self.parts:
            found += [part.slots[slot] for slot in self.slots if slots]
            found += [part.master] if master and part.segment.is_half else []
        return found

"""Random numbers that do not depend on the number of stages, nor on where they begin.

From each place of a pass (model/streams.py) on a stream of (seed, step, microbatch, place) is drawn
from. So every stage repeats the glue with the same numbers, and no unit depends on those before it.
The state of torch's generator tells where a pass is: `torch.utils.checkpoint`, which brings it back
in backward, tells so what it runs again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

_BITS = (1 << 62) - 1
FUNCTION = 1 << 40
"""The first place of a step function, beyond those of its model."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The streams of one microbatch of one step."""

    seed: int = 0
    step: int = 0
    microbatch: int = 0
    base: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = f"{self.seed},{self.step},{self.microbatch}".encode()
        digest = hashlib.blake2b(words, digest_size=8).digest()
        object.__setattr__(self, "base", int.from_bytes(digest, "big") & _BITS)

    def __hash__(self) -> int:
        return self.base

    def at(self, place: int) -> None:
        """From here on the stream of that place is drawn from."""
        _seed((self.base + place) & _BITS)

    def now(self) -> int:
        """The place of the model whose stream is drawn from now; -1 for none of these."""
        seed = torch.initial_seed()
        place = (seed - self.base) & _BITS
        return place if seed <= _BITS and place < FUNCTION else -1


@contextmanager
def kept_random_state() -> Iterator[None]:
    """After the block torch's generators are where they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


_seed_cpu = torch.default_generator.manual_seed


def _seed(seed: int) -> None:
    _seed_cpu(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)

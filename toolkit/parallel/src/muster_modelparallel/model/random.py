"""Random numbers that do not depend on the number of stages.

Call n of a unit draws from a stream of (seed, step, microbatch, n), the glue before it from another
one. So every stage repeats the glue with the same numbers. The state of torch's generator tells
which glue draws: `torch.utils.checkpoint`, which brings it back in backward, tells so what it runs
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

_UNIT = 1 << 62
_BITS = (1 << 62) - 1


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

    def glue(self, call: int) -> None:
        """From here on draws the glue before that call."""
        _seed((self.base + call) & _BITS)

    def unit(self, call: int) -> None:
        """From here on draws that call of a unit."""
        _seed((self.base + call) & _BITS | _UNIT)

    def call_now(self, count: int) -> int:
        """The call before which the glue of these streams draws now, of `count`; -1 if none."""
        call = (torch.initial_seed() - self.base) & _BITS
        return call if torch.initial_seed() <= _BITS and call < count else -1


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

"""Random numbers that do not depend on the number of stages.

The glue before call n of a microbatch draws from a stream of (seed, step, microbatch, n), a unit
from one that follows from that of the glue before it. So every stage repeats the glue with the
same numbers, and a unit that `torch.utils.checkpoint` runs again in backward, with the random state
of its beginning, finds its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_UNIT = "unit"


def derived(*words: object) -> int:
    """A seed of 63 bits that follows from the words."""
    text = ",".join(map(str, words)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class Draw:
    """The streams of one microbatch of one step."""

    seed: int = 0
    step: int = 0
    microbatch: int = 0

    def glue(self, call: int) -> None:
        """From here on draws the glue before that call."""
        _seed(self.seed_of(call))

    def seed_of(self, call: int) -> int:
        return derived(self.seed, self.step, self.microbatch, call)


def enter_unit() -> None:
    """From here on draws the unit that the glue calls now."""
    _seed(derived(_UNIT, torch.initial_seed()))


@contextmanager
def kept_random_state() -> Iterator[None]:
    """After the block torch's generators are where they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)

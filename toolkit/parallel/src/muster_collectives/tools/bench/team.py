"""What ranks tell each other while they measure, through our core."""

from __future__ import annotations

from array import array

from muster_collectives.core import Communicator, DType, Op, Verb


class Team:
    """The ranks of `core`. Every method is called by all of them."""

    def __init__(self, core: Communicator) -> None:
        self.core = core
        self.rank, self.size = core.rank, core.size

    def barrier(self) -> None:
        self.core.barrier()

    def most(self, value: float) -> float:
        """The largest of all ranks' values."""
        return self._over_ranks(value, Op.MAX)

    def total(self, value: float) -> float:
        return self._over_ranks(value, Op.SUM)

    def texts(self, text: str) -> list[str]:
        """What each rank has to say, on every rank."""
        own = text.encode()
        length = int(self.most(len(own)))
        padded = bytearray(own.ljust(length + 1, b"\0"))
        everything = bytearray(len(padded) * self.size)
        self.core.all_gather(everything, padded)
        step = len(padded)
        return [everything[at : at + step].rstrip(b"\0").decode()
                for at in range(0, len(everything), step)]  # fmt: skip

    def _over_ranks(self, value: float, op: Op) -> float:
        word = array("d", [value])
        address, _ = word.buffer_info()
        self.core.run(
            Verb.ALL_REDUCE, source=address, target=address, count=1, dtype=DType.F64, op=op
        )
        return word[0]

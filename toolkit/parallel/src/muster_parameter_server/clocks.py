"""Who may go on, and what is still missing (pure). A clock is the number of a worker's pushes.

Source: Ho et al. 2013, section 3: the fastest worker is at most `staleness` clocks ahead of the
slowest, and a worker at clock c sees every push of clocks up to c - staleness - 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster_parameter_server.errors import AgreementError


class Clocks:
    """The workers' clocks. `of[rank]`: how many of its pushes were applied. `gone`: who has said
    goodbye; nobody waits for them any more. `staleness` None: no bound."""

    def __init__(self, workers: int, staleness: int | None) -> None:
        self.of = [0] * workers
        self.gone: set[int] = set()
        self._staleness = staleness

    def behind(self, rank: int) -> list[int]:
        """The workers that this one has to wait for before it may begin its next clock."""
        if self._staleness is None:
            return []
        limit = self.of[rank] - self._staleness
        return [
            other for other, clock in enumerate(self.of) if clock < limit and other not in self.gone
        ]


class Rounds:
    """The steps of `sync` mode: a step is complete when every worker has brought its part."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._brought: dict[int, tuple[str, object]] = {}

    def bring(self, rank: int, what: str, part: object) -> bool:
        """Whether the step is complete now. Raises AgreementError unless all bring the same.

        `what`: the act ("push of step 3"); `part`: what has to be equal on all workers.
        """
        for other, (act, theirs) in self._brought.items():
            if act != what:
                raise AgreementError(
                    f"rank {rank} came with a {what}, but rank {other} with a {act}",
                    "call push_pull, step and load equally often on every worker",
                )
            if theirs != part:
                raise AgreementError(
                    f"rank {rank} has {part!r} in its {what}, but rank {other} {theirs!r}",
                    "compute learning rates alike on every worker",
                )
        self._brought[rank] = (what, part)
        return len(self._brought) == self._workers

    def clear(self) -> None:
        """The step is done."""
        self._brought.clear()

    def missing(self) -> Sequence[int]:
        return [rank for rank in range(self._workers) if rank not in self._brought]

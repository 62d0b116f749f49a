"""What a run of the soak found."""

from __future__ import annotations

from typing import NamedTuple


class NotRunError(Exception):
    """This machine cannot do what the scenario asks for; the message says why."""


class Verdict(NamedTuple):
    """`codes`: of every host, None for one that never started. `landed`: the kinds of the faults
    that hit somebody, one for each fault. `wrong`: what did not hold.
    `why_not`: why nothing ran, "" when it ran."""

    seed: int
    took_s: float
    codes: tuple[int | None, ...]
    landed: tuple[str, ...]
    wrong: tuple[str, ...]
    story: str
    why_not: str = ""

    @property
    def ran(self) -> bool:
        return not self.why_not


def not_run(seed: int, why: str) -> Verdict:
    return Verdict(seed, 0.0, (), (), (), "", why)

"""How sparse gradients are at which step: dense at first, when they change fastest."""

from __future__ import annotations

from dataclasses import dataclass

# Lin et al. 2018, 3.3: an epoch each, then the final sparsity
_STAGES = (0.75, 0.9375, 0.984375, 0.996)


@dataclass(frozen=True)
class WarmUp:
    """The stages in which top-k becomes sparse. `steps` optimizer steps in as many equal stages as
    there are `sparsities`; 0: none."""

    steps: int = 0
    sparsities: tuple[float, ...] = _STAGES

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"warm-up of {self.steps} steps: 0 or more")
        if self.steps and not self.sparsities:
            raise ValueError("warm-up without sparsities: name at least one, or 0 steps")
        for sparsity in self.sparsities:
            if not 0 <= sparsity < 1:
                raise ValueError(f"sparsity {sparsity:g} is not in [0, 1)")

    def sparsity(self, step: int, final: float) -> float:
        """Of step `step`, counted from 0."""
        if step >= self.steps:
            return final
        return min(self.sparsities[step * len(self.sparsities) // self.steps], final)

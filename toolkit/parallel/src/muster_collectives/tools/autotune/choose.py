"""From times to sizes (pure)."""

from __future__ import annotations

from collections.abc import Mapping

MARGIN = 1.03  # what is not clearly better leaves things as they are


def crossover(small: Mapping[int, float], large: Mapping[int, float]) -> int:
    """The largest size up to which the algorithm `small` is not slower than `large`, and never was
    at a smaller one. Seconds by size in bytes; 0: it is slower at once."""
    found = 0
    for size in sorted(small):
        if small[size] > large[size] * MARGIN:
            break
        found = size
    return found


def threshold(small: Mapping[int, float], large: Mapping[int, float], never: int) -> int:
    """The smallest size from which `large` is clearly faster at every size; `never` without any."""
    found = never
    for size in sorted(small, reverse=True):
        if large[size] * MARGIN > small[size]:
            break
        found = size
    return found


def fastest(seconds: Mapping[int, float], default: int) -> int:
    """The size with the least time, where that is clearly less than the default's."""
    best = min(sorted(seconds), key=lambda size: seconds[size])
    usual = seconds.get(default)
    return default if usual is not None and usual <= seconds[best] * MARGIN else best

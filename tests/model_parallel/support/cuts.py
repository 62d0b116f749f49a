"""The simplest plan: as many units for each stage as the constraints allow."""

from __future__ import annotations

from muster_modelparallel.shape.units import ModelProfile


def equal_cut(profile: ModelProfile, parts: int) -> list[int]:
    """The stage of each unit. Raises ValueError where there are fewer places to cut than needed."""
    count = len(profile.units)
    places = [
        place
        for place in range(1, count)
        if not any(min(one.units) < place <= max(one.units) for one in profile.constraints)
    ]
    cuts: list[int] = []
    for part in range(1, parts):
        left = len(places) - (parts - part - 1)  # the others need one each
        free = [place for place in places[:left] if not cuts or place > cuts[-1]]
        cuts.append(min(free, key=lambda place: abs(place - count * part / parts)))
    return [sum(place >= cut for cut in cuts) for place in range(count)]

"""Summaries put together: the ranks of a group, the groups of a run (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from muster_collectives.tools.summary.read import RankSummary
from muster_collectives.tools.summary.stragglers import Straggler, find

_NEARLY = 0.5  # verdicts of groups whose lead is this part of the largest speak of the same thing


@dataclass(frozen=True, slots=True)
class Group:
    """The summaries of all ranks of one group. `members` by rank; `missing` are ranks (of the
    group) without a summary: killed, still at work, or their folder is not here."""

    members: tuple[RankSummary, ...]
    missing: tuple[int, ...]
    straggler: Straggler | None

    @property
    def name(self) -> str:
        return self.members[0].group


@dataclass(frozen=True, slots=True)
class Run:
    """What one launcher started, by its word for it ("" where it has none: all such are one run).
    `straggler` is the narrowest verdict of the groups among those that weigh about the same."""

    name: str
    groups: tuple[Group, ...]
    straggler: Straggler | None


def runs_of(found: Iterable[RankSummary]) -> tuple[Run, ...]:
    """In the order in which they began."""
    lives: dict[tuple[str, str, str], list[RankSummary]] = {}
    for one in sorted(found, key=lambda one: (one.began_s, one.group, one.rank)):
        lives.setdefault((one.run, one.group, one.life), []).append(one)
    runs: dict[str, list[Group]] = {}
    for (run, _, _), members in lives.items():
        runs.setdefault(run, []).append(_group(members))
    return tuple(
        Run(name, tuple(groups), _narrowest(each.straggler for each in groups))
        for name, groups in runs.items()
    )


def _group(members: list[RankSummary]) -> Group:
    members.sort(key=lambda one: one.rank)
    here = {one.rank for one in members}
    missing = tuple(rank for rank in range(members[0].size) if rank not in here)
    return Group(tuple(members), missing, find(members))


def _narrowest(verdicts: Iterable[Straggler | None]) -> Straggler | None:
    """Ranks that wait for a straggler in a small group come late to a large one together with it:
    the small group tells them apart."""
    told = [each for each in verdicts if each is not None]
    if not told:
        return None
    most_s = max(each.lead_s for each in told)
    heavy = [each for each in told if each.lead_s >= _NEARLY * most_s]
    return min(heavy, key=lambda each: (len(each.ranks), -each.lead_s))

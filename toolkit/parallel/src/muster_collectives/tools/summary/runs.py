"""Who held a group up, from the time that each rank spent in its calls (pure).

In a call that no rank leaves before all have come (barrier, all-reduce, all-gather, reduce-scatter,
all-to-all) the time of a rank is how long it waited for the last one, and the work itself, which is
the same for all. So the sums over a run differ by when ranks come: who comes last spends the least
time there, in whatever node it is, and a rank that waits only because its own node's leader does
spends as much as that leader. Calls with a root are left out: their ranks do not wait for each
other alike. A rank that waits for nobody is what the others have in common; no link need be timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster_collectives.runtime.messages import ranks_text
from muster_collectives.runtime.stragglers import LEAST_FACTOR
from muster_collectives.tools.summary.read import RankSummary

JOINT = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True)
class Straggler:
    """The ranks that held a run up. `ranks` (of the world) came last: each other rank spent at
    least `lead_s` longer in joint calls than any of them. `factor`: how many times as long the
    group's life took as it would have without that. `hosts` theirs. `is_node`: they are all ranks
    of one node, of several. `own_s`: the most time of one of them, `others_s`: the least of the
    others. `seen_s`: for how long each other rank of its node saw it come last, at least; None
    where there is no other."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    is_node: bool
    lead_s: float
    factor: float
    own_s: float
    others_s: float
    seen_s: float | None

    def __str__(self) -> str:
        where = ", all of one node" if self.is_node else ""
        text = (
            f"{ranks_text(self.ranks)} ({', '.join(self.hosts)}{where}): each other rank was "
            f"{self.lead_s:.2f} s longer in calls ({self.others_s:.2f} s and more, here "
            f"{self.own_s:.2f} s): the run took {self.factor:.2f} times as long as without "
            "waiting for it"
        )
        if self.seen_s is None:
            return text
        return f"{text}; its node's other ranks saw it come last for {self.seen_s:.2f} s"


def joint_s(one: RankSummary) -> float:
    """Its time in calls that all ranks leave together."""
    return sum(verb.time_s for name, verb in one.verbs.items() if name in JOINT)


def find(members: Sequence[RankSummary]) -> Straggler | None:
    """Of the ranks of one group, those that the others waited for: at most half of them, and for so
    long that it matters. None where there are none, or fewer than two summaries."""
    order = sorted(members, key=lambda one: (joint_s(one), one.rank))
    times = [joint_s(one) for one in order]
    leads = [(times[count] - times[count - 1], count) for count in range(1, len(order) // 2 + 1)]
    if not leads:
        return None
    lead_s, count = max(leads)
    lasted_s = min(one.lasted_s for one in order)
    lead_s = min(lead_s, 0.999 * lasted_s)
    factor = lasted_s / (lasted_s - lead_s) if lead_s > 0 else 1.0
    if factor < LEAST_FACTOR:
        return None
    late = sorted(order[:count], key=lambda one: one.rank)
    return Straggler(
        ranks=tuple(one.global_ranks[one.rank] for one in late),
        hosts=tuple(dict.fromkeys(one.host for one in late)),
        is_node=_is_node(late),
        lead_s=lead_s,
        factor=factor,
        own_s=times[count - 1],
        others_s=times[count],
        seen_s=_seen_s(late, members),
    )


def _is_node(late: Sequence[RankSummary]) -> bool:
    nodes = late[0].nodes
    if not nodes or len(set(nodes)) == 1:
        return False
    node = nodes[late[0].rank]
    return [one.rank for one in late] == [rank for rank, each in enumerate(nodes) if each == node]


def _seen_s(late: Sequence[RankSummary], members: Sequence[RankSummary]) -> float | None:
    if len(late) > 1 or not late[0].nodes:
        return None
    rank, nodes = late[0].rank, late[0].nodes
    seen = [one.waits_s[rank] for one in members
            if one.rank != rank and nodes[one.rank] == nodes[rank] and one.waits_s]  # fmt: skip
    return min(seen, default=None)


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

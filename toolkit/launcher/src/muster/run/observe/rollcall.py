"""The roll call: looks at all ranks in, one verdict out. Pure, and linear in the ranks.

Evidence in this order: who has not come in which collective call; what waiting ranks' stacks have
in common; what the kernel says of the processes. A rank that works is never called hung, and of
two ranks at two lines neither is guilty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from muster.run.observe.looks import Call, RankLook
from muster.run.observe.wording import (
    MPI,
    call_in_words,
    doing,
    is_busy,
    is_gone,
    is_idle,
    is_stopped,
    library_call,
    of_ranks,
    place,
    seconds,
    where,
)
from muster.types.names import listed
from muster.types.values import NamedTuple

BRIEF_S = 1.0  # a shorter wait is part of any healthy job
NAMED = 3  # guilty ranks that a sentence describes
MOST_SHARE = 2 / 3  # of the ranks at one line, for the others to stand out
WORK = "work"
# of these one rank's meets another rank's of another name
_PAIRED = frozenset(("send", "ssend", "bsend", "rsend", "recv", "mprobe", "probe", "sendrecv"))
# ranks that stand still for a reason that does not go away by itself
STUCK = frozenset({"waiting", "mismatch", "circle", "transfer", "stopped", "gone"})


class RollVerdict(NamedTuple):
    """What a roll call found.

    `kind`: waiting (for `guilty`, which do nothing useful), busy (for `guilty`, which compute, save
    or evaluate), mismatch (different calls), circle (of groups), transfer (all have come),
    stopped, gone, idle, apart (most are idle at one line, `guilty` elsewhere or in another call),
    or work.
    """

    kind: str
    sentence: str
    guilty: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    waited_s: float = 0.0


class _Wait:
    """One call of one group in which members wait."""

    def __init__(self, call: Call, at: list[int], absent: list[int], odd: list[list[int]]) -> None:
        self.call = call
        self.at = at
        self.absent = absent
        self.odd = odd  # members by what they called, when that differs; the fewest first
        self.odd_calls: list[Call] = []
        self.age_s = call.age_s


def call_roll(
    looks: Sequence[RankLook],
    silent: Mapping[int, str] = {},
    brief_s: float = BRIEF_S,
) -> RollVerdict:
    """The verdict. `silent`: rank -> its host, of hosts that did not answer; `brief_s`: shorter
    waits do not count."""
    by_rank = {look.rank: look for look in sorted(looks, key=lambda look: look.rank)}
    roll = _Roll(by_rank, silent)
    waits = [wait for wait in _waits(by_rank) if wait.age_s >= brief_s]
    verdict = _of_calls(roll, waits) or _of_processes(roll)
    if silent:
        hosts = listed(sorted(set(silent.values())), NAMED)
        verdict = verdict._replace(sentence=f"{verdict.sentence}; {hosts} did not answer")
    return verdict


class _Roll:
    """The ranks, and how they are named."""

    def __init__(self, by_rank: Mapping[int, RankLook], silent: Mapping[int, str]) -> None:
        self.by_rank = by_rank
        self.silent = silent
        self.world = len(by_rank) + len(silent)
        self._names_hosts = len({look.host for look in by_rank.values()} | set(silent.values())) > 1

    def name(self, rank: int) -> str:
        look = self.by_rank.get(rank)
        host = look.host if look is not None else self.silent.get(rank, "")
        return f"rank {rank} ({host})" if host and self._names_hosts else f"rank {rank}"

    def tells(self, ranks: Sequence[int]) -> str:
        """What each of the ranks does; of many the first, and how many there are more."""
        said = [f"{self.name(rank)} {self._does(rank)}" for rank in ranks[:NAMED]]
        more = len(ranks) - NAMED
        rest = f" and {more} more rank{'s' if more > 1 else ''}" if more > 0 else ""
        return ", ".join(said) + rest

    def _does(self, rank: int) -> str:
        look = self.by_rank.get(rank)
        return doing(look) if look is not None else "is not known: its host did not answer"

    def place(self, ranks: Iterable[int]) -> str:
        """` (train.py:41)`, where most of the ranks are."""
        frames = (where(self.by_rank[rank]) for rank in ranks if rank in self.by_rank)
        found = Counter(place(frame) for frame in frames if frame is not None)
        return f" ({found.most_common(1)[0][0]})" if found else ""

    def those(self, ranks: Iterable[int], test: Callable[[RankLook], bool]) -> list[int]:
        return [rank for rank in ranks if rank in self.by_rank and test(self.by_rank[rank])]


# collective calls


def _waits(by_rank: Mapping[int, RankLook]) -> list[_Wait]:
    """The calls in which ranks wait, one for each group."""
    groups: dict[tuple[object, ...], dict[int, Call]] = {}
    for rank, look in by_rank.items():
        if look.ended is not None:
            continue
        for call in look.answer.calls:
            if not call.ranks:
                continue
            # a name stands for one group on its first member, so the members need no comparing
            key = (call.library, call.group, len(call.ranks), call.ranks[0], call.ranks[-1])
            calls = groups.setdefault(key, {})
            calls[rank] = _telling(calls.get(rank), call)
    found = (_wait(calls) for calls in groups.values())
    return [wait for wait in found if wait is not None]


def _telling(one: Call | None, other: Call) -> Call:
    """Of two calls of a rank the one that it waits in, else its last."""
    if one is None or (other.running and not one.running):
        return other
    if one.running != other.running:
        return one
    return min(one, other, key=lambda call: call.number if call.running else -call.number)


def _wait(calls: Mapping[int, Call]) -> _Wait | None:
    """What members wait for in the earliest call of the group that still runs."""
    running = [call for call in calls.values() if call.running]
    if not running:
        return None
    number = min(call.number for call in running)
    at = sorted(r for r, call in calls.items() if call.running and call.number == number)
    first = max((calls[rank] for rank in at), key=lambda call: call.age_s)
    told = {rank for member in at for rank in calls[member].absent[: len(first.ranks)]}
    behind = [r for r in first.ranks if r in calls and calls[r].number < number]
    unknown = [r for r in first.ranks if r not in calls]
    absent = behind + [rank for rank in unknown if rank in told]
    wait = _Wait(first, at, sorted(absent or unknown), [])
    came = [rank for rank, call in calls.items() if call.number == number]
    kinds: dict[tuple[str, str], list[int]] = {}
    for rank in came:
        kinds.setdefault((calls[rank].op, calls[rank].shape), []).append(rank)
    if len(kinds) > 1:
        wait.odd = sorted((sorted(ranks) for ranks in kinds.values()), key=len)
        wait.odd_calls = [calls[ranks[0]] for ranks in wait.odd]
    return wait


def _of_calls(roll: _Roll, waits: list[_Wait]) -> RollVerdict | None:
    """The verdict by what libraries of collectives recorded; None where they say nothing."""
    odd = [wait for wait in waits if wait.odd]
    if odd:
        return _mismatch(roll, max(odd, key=lambda wait: wait.age_s), waits)
    blocked = [wait for wait in waits if wait.absent]
    if not blocked:
        return _in_transfer(roll, waits)
    of_rank: dict[int, _Wait] = {}
    for wait in sorted(blocked, key=lambda wait: wait.age_s):
        of_rank.update(dict.fromkeys(wait.at, wait))
    roots = [w for w in blocked if any(of_rank.get(r, w) is w for r in w.absent)]
    if not roots:
        return _circle(roll, blocked, of_rank)
    root = max(roots, key=lambda wait: wait.age_s)
    guilty = sorted({r for w in roots for r in w.absent if of_rank.get(r, w) is w})
    own = [rank for rank in root.absent if of_rank.get(rank, root) is root]
    waiting = tuple(sorted({rank for wait in blocked for rank in wait.at}))
    looks = [roll.by_rank[rank] for rank in guilty if rank in roll.by_rank]
    busy = bool(looks) and len(looks) == len(guilty) and all(map(is_busy, looks))
    verb = "waits" if len(root.at) == 1 else "wait"
    sentence = (
        f"{of_ranks(root.at)} {verb} in {call_in_words(root.call, roll.world)}"
        f"{roll.place(root.at)} since {seconds(root.age_s)}; {roll.tells(own)}"
    )
    late = len(own) - NAMED
    if late > 0:
        sentence += f" ha{'ve' if late > 1 else 's'} not come"
    others = len(waiting) - len(root.at)
    if others > 0:
        sentence += f"; {others} more rank{'s wait' if others > 1 else ' waits'} behind these"
    if not busy:
        sentence += ": look there"
    kind = "busy" if busy else "waiting"
    return RollVerdict(kind, sentence, tuple(guilty), waiting, root.age_s)


def _mismatch(roll: _Roll, wait: _Wait, waits: list[_Wait]) -> RollVerdict:
    """Members are in the same call of their group, which is not the same to all of them."""
    named = [
        f"{of_ranks(ranks)} called {call_in_words(call, roll.world)}"
        + (f" {call.shape[:80]}").rstrip()
        + roll.place(ranks)
        for ranks, call in zip(wait.odd[::-1], wait.odd_calls[::-1], strict=True)
    ]
    same_op = len({call.op for call in wait.odd_calls}) == 1
    what = "shapes or types differ" if same_op else "the order of calls differs"
    tie = len(wait.odd[0]) == len(wait.odd[-1])
    few = wait.odd if tie else wait.odd[:-1]
    guilty = tuple(sorted(rank for ranks in few for rank in ranks))
    waiting = tuple(sorted({rank for one in waits for rank in one.at}))
    said = listed(named, NAMED).replace("\n", " ")
    return RollVerdict(
        "mismatch",
        f"{said}, since {seconds(wait.age_s)}: {what}, all ranks must make the same calls",
        guilty,
        waiting,
        wait.age_s,
    )


def _circle(roll: _Roll, blocked: list[_Wait], of_rank: Mapping[int, _Wait]) -> RollVerdict:
    """Every rank that is waited for waits itself, in another group."""
    path: list[_Wait] = []
    seen: set[int] = set()
    wait = max(blocked, key=lambda wait: wait.age_s)
    while id(wait) not in seen:
        seen.add(id(wait))
        path.append(wait)
        wait = of_rank[wait.absent[0]]
    path = path[path.index(wait) :]
    said = [
        f"{of_ranks(w.at)} in {call_in_words(w.call, roll.world)} for {of_ranks(w.absent)}"
        for w in path
    ]
    guilty = tuple(sorted({w.absent[0] for w in path}))
    waiting = tuple(sorted({rank for w in blocked for rank in w.at}))
    return RollVerdict(
        "circle",
        f"ranks wait for one another in a circle: {listed(said, NAMED)}, since "
        f"{seconds(min(w.age_s for w in path))}: all ranks must call them in one order",
        guilty,
        waiting,
        min(w.age_s for w in path),
    )


def _in_transfer(roll: _Roll, waits: list[_Wait]) -> RollVerdict | None:
    """All members have come, and the call does not end. Libraries may keep calls that nobody waits
    for, so a rank that computes shows that this is none."""
    held = [
        w
        for w in waits
        if all(is_idle(roll.by_rank[r]) or is_stopped(roll.by_rank[r]) for r in w.at)
    ]
    if not held:
        return None
    wait = max(held, key=lambda wait: wait.age_s)
    guilty = tuple(roll.those(wait.call.ranks, lambda look: is_stopped(look) or is_gone(look)))
    why = f"{roll.tells(guilty)}: look there" if guilty else "look at the network and the devices"
    return RollVerdict(
        "transfer",
        f"all ranks of {call_in_words(wait.call, roll.world)}{roll.place(wait.at)} have come, and "
        f"it has not ended since {seconds(wait.age_s)}: {why}",
        guilty,
        tuple(rank for rank in wait.at if rank not in guilty),
        wait.age_s,
    )


# stacks and processes


def _of_processes(roll: _Roll) -> RollVerdict:
    """The verdict by what the kernel says of processes, where no library says anything."""
    ranks = sorted(roll.by_rank)
    stopped = roll.those(ranks, is_stopped)
    gone = roll.those(ranks, is_gone)
    here = [rank for rank in ranks if rank not in set(stopped) | set(gone)]
    looks = [roll.by_rank[rank] for rank in here]
    quiet_s = min((look.silent_s for look in looks), default=0.0)
    if stopped:
        return RollVerdict("stopped", f"{roll.tells(stopped)}", tuple(stopped), (), quiet_s)
    if not here:
        return RollVerdict(WORK, "all ranks have ended" if gone else "there are no ranks")
    called = _in_libraries(roll, looks) if not gone else None
    if called is not None:
        return called
    idle = [look for look in looks if is_idle(look)]
    if len(idle) < len(looks):
        return _apart(roll, looks) or RollVerdict(WORK, "all ranks work, nobody waits")
    waiting = tuple(here)
    since = f"{of_ranks(here)} {'is' if len(here) == 1 else 'are'} idle"
    if gone:
        said = f"{since}{roll.place(here)}, and {roll.tells(gone)}"
        return RollVerdict("gone", said, tuple(gone), waiting, quiet_s)
    apart = _apart(roll, looks)
    if apart is not None:
        return apart
    # a sleep alone says nothing: it may be how a library polls
    told = {one.rank: one.process.waits_for not in ("", "sleeping") for one in looks}
    named = [one.rank for one in looks if told[one.rank] or one.process.state == "D"]
    same = len({place(f) if (f := where(look)) else "" for look in looks}) == 1
    guilty = tuple(named or (here if same else ()))
    said = f"{since} and silent since {seconds(quiet_s)}: {roll.tells(guilty or here)}"
    return RollVerdict("idle", said, guilty, waiting, quiet_s)


def _in_libraries(roll: _Roll, looks: Sequence[RankLook]) -> RollVerdict | None:
    """Ranks are in calls that no library records, and others are not, or in other calls. How long
    that has been so is not known: nobody is said to be stuck."""
    calls: dict[str, list[int]] = {}
    for look in looks:
        call = library_call(look)
        if call and is_idle(look) and not any(one.running for one in look.answer.calls):
            calls.setdefault(call, []).append(look.rank)
    at = sorted(rank for ranks in calls.values() for rank in ranks)
    others = [look.rank for look in looks if look.rank not in set(at)]
    if not at or (not others and len(calls) == 1 and not next(iter(calls)).endswith(MPI)):
        return None
    said = ", ".join(
        f"{of_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} in {call}{roll.place(ranks)}"
        for call, ranks in islice(calls.items(), NAMED)
    )
    if others:
        busy = all(is_busy(roll.by_rank[rank]) for rank in others)
        sentence = f"{said}, since when is not known; {roll.tells(others)}"
        return RollVerdict("busy" if busy else "apart", sentence, tuple(others), tuple(at))
    if all(call.partition(" ")[0].lower() in _PAIRED for call in calls) or len(calls) == 1:
        return RollVerdict(WORK, f"all ranks communicate: {said}")
    least = min(map(len, calls.values()))
    few = sorted(r for ranks in calls.values() if len(ranks) == least for r in ranks)
    said += ": if that stays so, these calls wait for one another"
    return RollVerdict("apart", said, tuple(few), tuple(at))


def _apart(roll: _Roll, looks: Sequence[RankLook]) -> RollVerdict | None:
    """Most ranks are idle at one line, and a few are somewhere else: they are what to look at."""
    at: dict[str, list[RankLook]] = {}
    for look in looks:
        frame = where(look)
        if frame is not None:
            at.setdefault(place(frame), []).append(look)
    if len(looks) < 3 or not at:
        return None
    line, most = max(at.items(), key=lambda item: len(item[1]))
    there = {look.rank for look in most}
    others = [look for look in looks if look.rank not in there]
    enough = len(most) >= MOST_SHARE * len(looks) and all(map(is_idle, most))
    if not others or not enough or all(map(is_busy, others)):
        return None
    guilty = tuple(look.rank for look in others)
    waiting = tuple(look.rank for look in most)
    quiet_s = min(look.silent_s for look in most)
    said = f"{of_ranks(waiting)} are idle at {line}; {roll.tells(guilty)}: look there"
    return RollVerdict("apart", said, guilty, waiting, quiet_s)

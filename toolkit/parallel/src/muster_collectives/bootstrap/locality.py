"""From candidates to nodes: tries the means in turn, and all ranks hear the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from muster_collectives.binding import shared_memory
from muster_collectives.bootstrap.agreement import Agreement, Said
from muster_collectives.bootstrap.node_info import (
    GroupPlan,
    ProbeResult,
    better,
    decode_probe_result,
    encode_probe_result,
    nodes_of,
)
from muster_collectives.runtime.layout import ShmMethod, numbered


@dataclass(frozen=True, slots=True)
class Locality:
    """Which ranks share a node, and this rank's way into its memory. `fd` is this rank's descriptor
    of its node's memory, -1 where it is alone; `why` makes words for each rank, if somebody asks:
    a large group is made often, and asked seldom."""

    nodes: tuple[int, ...]
    shm_method: ShmMethod
    fd: int
    why: Callable[[], tuple[str, ...]]


def find_locality(
    agreement: Agreement, plan: GroupPlan, bytes_of: Callable[[int], int]
) -> Locality:
    """`bytes_of(locals)` is the size of a node's memory. Raises CollectiveError."""
    rank = agreement.rank
    probe = _Probe(agreement, plan, bytes_of(len(plan.of(rank).members)))
    try:
        answer = probe.turn(0)
        if answer["again"]:
            answer = probe.turn(1, answer)
        leaders, results = tuple(answer["leaders"]), _results(answer)
        shared = leaders.count(leaders[rank]) > 1
        shm_method = results[rank].shm_method if shared else ShmMethod.ALONE
        fd = probe.held.pop(shm_method, -1) if shared else -1
    finally:
        for unused in probe.held.values():
            shared_memory.close(unused)

    def why() -> tuple[str, ...]:
        return tuple(_why(rank, other, leaders, results, plan) for other in range(len(results)))

    return Locality(numbered(leaders), shm_method, fd, why)


class _Probe:
    """This rank's tries to share memory with its candidates. `held`: the memory in hand."""

    def __init__(self, agreement: Agreement, plan: GroupPlan, bytes_: int) -> None:
        self.held: dict[ShmMethod, int] = {}
        self._agreement = agreement
        self._plan = plan
        self._mine = plan.of(agreement.rank)
        self._bytes = bytes_
        self._words: Said = {}  # of an offer that still has a name

    def turn(self, turn: int, before: Said | None = None) -> Said:
        """The leader offers, the others accept, rank 0 sees who shares."""
        mine = self._mine
        shm_method = mine.shm_method[turn] if len(mine.shm_method) > turn else ShmMethod.ALONE
        if before is not None and mine.leader not in before["again"]:
            shm_method = ShmMethod.ALONE
        try:
            if shm_method is ShmMethod.ALONE:
                why = "" if len(mine.members) == 1 else "nothing to share"
                said = ProbeResult(ShmMethod.ALONE, False, why)
            elif self._agreement.rank == mine.leader:
                said = self._offer(f"offer{turn}/{mine.leader}", shm_method)
            else:
                said = self._accept(turn, shm_method)
            return self._agreement.decide(
                f"share{turn}",
                encode_probe_result(said),
                lambda all_: _decide(self._plan, all_, before),
            )
        finally:
            shared_memory.withdraw(self._words)

    def _offer(self, key: str, shm_method: ShmMethod) -> ProbeResult:
        try:
            self.held[shm_method], self._words = shared_memory.offer(shm_method, self._bytes)
        except OSError as error:
            self._agreement.leave(key, {"failed": str(error.strerror)})
            return ProbeResult(shm_method, False, f"{shm_method.value}: {error.strerror}")
        self._agreement.leave(key, self._words)
        return ProbeResult(shm_method, True, f"{shm_method.value} offered")

    def _accept(self, turn: int, shm_method: ShmMethod) -> ProbeResult:
        leader = self._mine.leader
        what = f"{shm_method.value} of rank {leader}"
        words = self._agreement.read(f"offer{turn}/{leader}", f"share{turn}")
        if words is None:  # rank 0 misses the leader as well, and names it
            return ProbeResult(shm_method, False, f"{what}: it has not come")
        if "failed" in words:
            return ProbeResult(shm_method, False, f"{what}: {words['failed']}")
        try:
            self.held[shm_method] = shared_memory.accept(shm_method, words)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return ProbeResult(shm_method, False, f"{what}: {reason}")
        return ProbeResult(shm_method, True, f"{what}, nonce found")


def _decide(plan: GroupPlan, all_: Sequence[Said], before: Said | None) -> Said:
    """On rank 0: which candidates try again, and what counts otherwise."""
    results = [decode_probe_result(said) for said in all_]
    if before is not None:
        first = _results(before)
        for each in plan.probe_groups:
            if each.leader in before["again"]:
                best = better(each, first, results)
                for rank in each.members:
                    first[rank] = _both(best[rank], first[rank], results[rank])
        return _decided(plan, first, [])
    again = [
        each.leader
        for each in plan.probe_groups
        if len(each.shm_method) > 1 and not all(results[rank].is_shared for rank in each.members)
    ]
    return _decided(plan, results, again)


def _decided(plan: GroupPlan, results: Sequence[ProbeResult], again: list[int]) -> Said:
    """`again`: the leaders of those that try once more. All ranks read this, and most have found
    the same as others: each result stands there once."""
    kinds = {each: number for number, each in enumerate(dict.fromkeys(results))}
    return {
        "kinds": [encode_probe_result(each) for each in kinds],
        "proofs": [kinds[each] for each in results],
        "leaders": nodes_of(plan.probe_groups, results), "again": again,
    }  # fmt: skip


def _results(answer: Said) -> list[ProbeResult]:
    """By rank, of what `_decided` made."""
    kinds = [decode_probe_result(said) for said in answer["kinds"]]
    return [kinds[number] for number in answer["proofs"]]


def _both(chosen: ProbeResult, first: ProbeResult, second: ProbeResult) -> ProbeResult:
    """The chosen try, and why the other was no good, so that both reasons can be read."""
    other = first if chosen is second else second
    if other.is_shared or not other.why:
        return chosen
    return replace(chosen, why=f"{chosen.why}; {other.why}")


def _why(
    rank: int, other: int, leaders: Sequence[int], results: Sequence[ProbeResult], plan: GroupPlan
) -> str:
    if rank == other:
        return "itself"
    if leaders[rank] == leaders[other]:
        said = results[other] if other != leaders[other] else results[rank]
        return f"shared memory ({said.why})"
    if plan.of(rank) is plan.of(other):
        alone = [each.why for each in (results[other], results[rank]) if not each.is_shared]
        failed = next(filter(None, alone), results[other].why)
        return f"TCP, on one machine but nothing is shared ({failed})"
    return (
        f"TCP to {plan.addresses[other]}: another machine or COLLECTIVES_NODE, or neither "
        "processes nor /dev/shm in common"
    )

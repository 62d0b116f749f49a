"""From candidates to nodes: tries the means in turn, and all ranks hear the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from muster_collectives.binding import shared_memory
from muster_collectives.bootstrap.agreement import Agreement, Said
from muster_collectives.bootstrap.node_info import (
    GroupPlan,
    ProbeGroup,
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
    of its node's memory, -1 where it is alone; `why` [size]."""

    nodes: tuple[int, ...]
    shm_method: ShmMethod
    fd: int
    why: tuple[str, ...]


def find_locality(
    agreement: Agreement, plan: GroupPlan, rank: int, size: int, bytes_of: Callable[[int], int]
) -> Locality:
    """`bytes_of(locals)` is the size of a node's memory. Raises CollectiveError."""
    mine = plan.of(rank)
    held: dict[ShmMethod, int] = {}
    try:
        answer = _try(agreement, plan, rank, 0, held, bytes_of(len(mine.members)))
        if answer["again"]:
            answer = _try(agreement, plan, rank, 1, held, bytes_of(len(mine.members)), answer)
        results = [decode_probe_result(said) for said in answer["proofs"]]
        leaders = nodes_of(plan.probe_groups, results)
        shared = leaders.count(leaders[rank]) > 1
        shm_method = results[rank].shm_method if shared else ShmMethod.ALONE
        fd = held.pop(shm_method, -1) if shared else -1
    finally:
        for unused in held.values():
            shared_memory.close(unused)
    why = tuple(_why(rank, other, leaders, results, plan) for other in range(size))
    return Locality(numbered(leaders), shm_method, fd, why)


def _try(
    agreement: Agreement,
    plan: GroupPlan,
    rank: int,
    turn: int,
    held: dict[ShmMethod, int],
    bytes_: int,
    before: Said | None = None,
) -> Said:
    """One turn: the leader offers, the others accept, rank 0 sees who shares."""
    mine = plan.of(rank)
    shm_method = mine.shm_method[turn] if len(mine.shm_method) > turn else ShmMethod.ALONE
    words: Said = {}
    try:
        if shm_method is ShmMethod.ALONE or (
            before is not None and mine.leader not in before["again"]
        ):
            said = ProbeResult(
                ShmMethod.ALONE, False, "" if len(mine.members) == 1 else "nothing to share"
            )
        elif rank == mine.leader:
            said, words = _offer(agreement, mine, shm_method, turn, held, bytes_)
        else:
            said = _accept(agreement, mine, shm_method, turn, held)
        return agreement.decide(
            f"share{turn}",
            encode_probe_result(said),
            lambda all_: _decide(plan, turn, all_, before),
        )
    finally:
        shared_memory.withdraw(words)


def _offer(
    agreement: Agreement,
    mine: ProbeGroup,
    shm_method: ShmMethod,
    turn: int,
    held: dict[ShmMethod, int],
    bytes_: int,
) -> tuple[ProbeResult, Said]:
    try:
        fd, words = shared_memory.offer(shm_method, bytes_)
    except OSError as error:
        agreement.leave(f"offer{turn}/{mine.leader}", {"failed": str(error.strerror)})
        return ProbeResult(shm_method, False, f"{shm_method.value}: {error.strerror}"), {}
    held[shm_method] = fd
    agreement.leave(f"offer{turn}/{mine.leader}", words)
    return ProbeResult(shm_method, True, f"{shm_method.value} offered"), words


def _accept(
    agreement: Agreement,
    mine: ProbeGroup,
    shm_method: ShmMethod,
    turn: int,
    held: dict[ShmMethod, int],
) -> ProbeResult:
    words = agreement.read(f"offer{turn}/{mine.leader}", f"rank {mine.leader}'s offer of memory")
    if "failed" in words:
        return ProbeResult(
            shm_method, False, f"{shm_method.value} of rank {mine.leader}: {words['failed']}"
        )
    try:
        held[shm_method] = shared_memory.accept(shm_method, words)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return ProbeResult(shm_method, False, f"{shm_method.value} of rank {mine.leader}: {reason}")
    return ProbeResult(shm_method, True, f"{shm_method.value} of rank {mine.leader}, nonce found")


def _decide(plan: GroupPlan, turn: int, all_: Sequence[Said], before: Said | None) -> Said:
    """On rank 0: which candidates try again, and what counts otherwise."""
    results = [decode_probe_result(said) for said in all_]
    if before is not None:
        first = [decode_probe_result(said) for said in before["proofs"]]
        for each in plan.probe_groups:
            best = better(each, first, results) if each.leader in before["again"] else first
            for rank in each.members:
                first[rank] = _both(best[rank], first[rank], results[rank], each, before)
        return {"proofs": [encode_probe_result(each) for each in first], "again": []}
    again = [
        each.leader
        for each in plan.probe_groups
        if len(each.shm_method) > turn + 1
        and not all(results[rank].is_shared for rank in each.members)
    ]
    return {"proofs": list(all_), "again": again}


def _both(
    chosen: ProbeResult, first: ProbeResult, second: ProbeResult, of: ProbeGroup, before: Said
) -> ProbeResult:
    """The chosen try, and why the other was no good, so that both reasons can be read."""
    other = first if chosen is second else second
    if of.leader not in before["again"] or other.is_shared or not other.why:
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

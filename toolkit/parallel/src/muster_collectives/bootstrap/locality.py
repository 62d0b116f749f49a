"""From candidates to nodes: tries the means in turn, and all ranks hear the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from muster_collectives.binding import shared_memory
from muster_collectives.bootstrap.agreement import Council, Said
from muster_collectives.bootstrap.node_info import (
    Candidates,
    Plan,
    Proof,
    better,
    decode_proof,
    encode_proof,
    nodes_of,
)
from muster_collectives.runtime.layout import Means, numbered


@dataclass(frozen=True, slots=True)
class Place:
    """`fd` is this rank's descriptor of its node's memory, -1 where it is alone; `why` [size]."""

    nodes: tuple[int, ...]
    means: Means
    fd: int
    why: tuple[str, ...]


def find_place(
    council: Council, plan: Plan, rank: int, size: int, bytes_of: Callable[[int], int]
) -> Place:
    """`bytes_of(locals)` is the size of a node's memory. Raises CollectiveError."""
    mine = plan.of(rank)
    held: dict[Means, int] = {}
    try:
        answer = _try(council, plan, rank, 0, held, bytes_of(len(mine.members)))
        if answer["again"]:
            answer = _try(council, plan, rank, 1, held, bytes_of(len(mine.members)), answer)
        proofs = [decode_proof(said) for said in answer["proofs"]]
        leaders = nodes_of(plan.candidates, proofs)
        shared = leaders.count(leaders[rank]) > 1
        means = proofs[rank].means if shared else Means.ALONE
        fd = held.pop(means, -1) if shared else -1
    finally:
        for unused in held.values():
            shared_memory.close(unused)
    why = tuple(_why(rank, other, leaders, proofs, plan) for other in range(size))
    return Place(numbered(leaders), means, fd, why)


def _try(
    council: Council, plan: Plan, rank: int, turn: int, held: dict[Means, int], bytes_: int,
    before: Said | None = None,
) -> Said:  # fmt: skip
    """One turn: the leader offers, the others accept, rank 0 sees who shares."""
    mine = plan.of(rank)
    means = mine.means[turn] if len(mine.means) > turn else Means.ALONE
    words: Said = {}
    try:
        if means is Means.ALONE or (before is not None and mine.leader not in before["again"]):
            said = Proof(Means.ALONE, False, "" if len(mine.members) == 1 else "nothing to share")
        elif rank == mine.leader:
            said, words = _offer(council, mine, means, turn, held, bytes_)
        else:
            said = _accept(council, mine, means, turn, held)
        return council.settle(
            f"share{turn}", encode_proof(said), lambda all_: _decide(plan, turn, all_, before)
        )
    finally:
        shared_memory.withdraw(words)


def _offer(
    council: Council, mine: Candidates, means: Means, turn: int, held: dict[Means, int], bytes_: int
) -> tuple[Proof, Said]:
    try:
        fd, words = shared_memory.offer(means, bytes_)
    except OSError as error:
        council.leave(f"offer{turn}/{mine.leader}", {"failed": str(error.strerror)})
        return Proof(means, False, f"{means.value}: {error.strerror}"), {}
    held[means] = fd
    council.leave(f"offer{turn}/{mine.leader}", words)
    return Proof(means, True, f"{means.value} offered"), words


def _accept(
    council: Council, mine: Candidates, means: Means, turn: int, held: dict[Means, int]
) -> Proof:
    words = council.read(f"offer{turn}/{mine.leader}", f"rank {mine.leader}'s offer of memory")
    if "failed" in words:
        return Proof(means, False, f"{means.value} of rank {mine.leader}: {words['failed']}")
    try:
        held[means] = shared_memory.accept(means, words)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Proof(means, False, f"{means.value} of rank {mine.leader}: {reason}")
    return Proof(means, True, f"{means.value} of rank {mine.leader}, nonce found")


def _decide(plan: Plan, turn: int, all_: Sequence[Said], before: Said | None) -> Said:
    """On rank 0: which candidates try again, and what counts otherwise."""
    proofs = [decode_proof(said) for said in all_]
    if before is not None:
        first = [decode_proof(said) for said in before["proofs"]]
        for each in plan.candidates:
            best = better(each, first, proofs) if each.leader in before["again"] else first
            for rank in each.members:
                first[rank] = _both(best[rank], first[rank], proofs[rank], each, before)
        return {"proofs": [encode_proof(each) for each in first], "again": []}
    again = [
        each.leader
        for each in plan.candidates
        if len(each.means) > turn + 1 and not all(proofs[rank].is_shared for rank in each.members)
    ]
    return {"proofs": list(all_), "again": again}


def _both(chosen: Proof, first: Proof, second: Proof, of: Candidates, before: Said) -> Proof:
    """The chosen try, and why the other was no good, so that both reasons can be read."""
    other = first if chosen is second else second
    if of.leader not in before["again"] or other.is_shared or not other.why:
        return chosen
    return replace(chosen, why=f"{chosen.why}; {other.why}")


def _why(rank: int, other: int, leaders: Sequence[int], proofs: Sequence[Proof], plan: Plan) -> str:
    if rank == other:
        return "itself"
    if leaders[rank] == leaders[other]:
        said = proofs[other] if other != leaders[other] else proofs[rank]
        return f"shared memory ({said.why})"
    if plan.of(rank) is plan.of(other):
        alone = [each.why for each in (proofs[other], proofs[rank]) if not each.is_shared]
        failed = next(filter(None, alone), proofs[other].why)
        return f"TCP, on one machine but nothing is shared ({failed})"
    return (
        f"TCP to {plan.addresses[other]}: another machine or COLLECTIVES_NODE, or neither "
        "processes nor /dev/shm in common"
    )


def alone(plan: Plan, size: int) -> Place:
    """Without a core: nodes by what the ranks say, for nothing is shared."""
    leaders = [plan.of(rank).leader for rank in range(size)]
    why = tuple(f"TCP through rank 0 ({plan.addresses[0]}), no compiled core" for _ in range(size))
    return Place(numbered(leaders), Means.ALONE, -1, why)

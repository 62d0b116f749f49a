"""What a rank says of itself when a group is made, and what follows from all of it (pure)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from muster_collectives.runtime.errors import SettingsError
from muster_collectives.runtime.layout import Address, Means
from muster_collectives.runtime.messages import ranks_text
from muster_collectives.runtime.tuning import Tuning, decode, encode

MAX_LOCALS = 256  # of the core; more on one machine are more than one node
_LEAST_PART_BYTES = 64


@dataclass(frozen=True, slots=True)
class Claim:
    """One rank. `abi` 0: it has no core and `no_core` says why. `shm` is which file system /dev/shm
    is, "" where the rank cannot write there; `memfd` whether it can make one."""

    abi: int
    no_core: str
    boot: str
    pid_namespace: str
    net_namespace: str
    shm: str
    memfd: bool
    user: int
    node: str
    host: str
    processors: int
    hosts: tuple[str, ...]
    port: int
    is_spin_given: bool
    tuning: Tuning
    key_mark: str = ""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Ranks that may be one node, first of all `leader`; `means` are tried in turn to prove it."""

    leader: int
    members: tuple[int, ...]
    means: tuple[Means, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What rank 0 decides from the claims."""

    native: bool
    candidates: tuple[Candidates, ...]
    addresses: tuple[Address, ...]
    tuning: Tuning
    note: str

    def of(self, rank: int) -> Candidates:
        return next(each for each in self.candidates if rank in each.members)


def plan(claims: Sequence[Claim]) -> Plan:
    """Raises SettingsError for sizes that do not fit the number of ranks, and for other keys than
    rank 0's."""
    _one_key(claims)
    native = all(claim.abi == claims[0].abi and claim.abi for claim in claims)
    candidates = _candidates(claims)
    one_network = len({(claim.boot, claim.net_namespace) for claim in claims}) == 1
    addresses = tuple(Address(_host_of(claim, one_network), claim.port) for claim in claims)
    tuning = _tuning(claims, candidates)
    most = max(len(each.members) for each in candidates)
    if tuning.chunk_bytes // most < _LEAST_PART_BYTES:
        raise SettingsError(
            f"COLLECTIVES_CHUNK_BYTES={tuning.chunk_bytes} leaves less than {_LEAST_PART_BYTES} "
            f"bytes for each of {most} ranks of a node",
            f"at least {-(-most * _LEAST_PART_BYTES // 4096) * 4096}",
        )
    return Plan(native, candidates, addresses, tuning, "" if native else _note(claims))


def key_mark(key: bytes, group: str) -> str:
    """The same for the same key and group; it does not lead back to the key."""
    text = f"muster-collectives claim\0{group}".encode()
    return hmac.digest(key, text, "sha256").hex() if key else ""


def _one_key(claims: Sequence[Claim]) -> None:
    other = [rank for rank, claim in enumerate(claims) if claim.key_mark != claims[0].key_mark]
    if other:
        raise SettingsError(
            f"COLLECTIVES_KEY of {ranks_text(other)} is not that of rank 0",
            "set the same on all ranks (openssl rand -hex 32), or on none",
            ranks=other,
        )


def _candidates(claims: Sequence[Claim]) -> tuple[Candidates, ...]:
    """Ranks of one machine and one COLLECTIVES_NODE that could share memory in one way or another:
    they see each other's processes, or have /dev/shm in common (pods, containers with one IPC)."""
    groups: list[set[int]] = []
    keys: list[set[tuple[str, ...]]] = []
    for rank, claim in enumerate(claims):
        joined, seen = {rank}, _ways(claim, rank)
        for index in reversed(range(len(groups))):
            if keys[index] & seen:
                joined |= groups.pop(index)
                seen = seen | keys.pop(index)
        groups.append(joined)
        keys.append(seen)
    cut = [
        members[begin : begin + MAX_LOCALS]
        for members in (tuple(sorted(group)) for group in groups)
        for begin in range(0, len(members), MAX_LOCALS)
    ]
    return tuple(
        Candidates(members[0], members, _means([claims[rank] for rank in members]))
        for members in sorted(cut)
    )


def _ways(claim: Claim, rank: int) -> set[tuple[str, ...]]:
    """What two ranks must have in common, one of these, to share memory."""
    machine = (claim.boot or f"rank {rank}", claim.node)
    found: set[tuple[str, ...]] = {(*machine, "only", str(rank))}
    if claim.memfd and claim.pid_namespace:
        found.add((*machine, "pid", claim.pid_namespace))
    if claim.shm:
        found.add((*machine, "shm", claim.shm))
    return found


def _means(claims: Sequence[Claim]) -> tuple[Means, ...]:
    """Those by which the first has a chance to share with another."""
    first, others = claims[0], claims[1:]
    found = []
    if first.memfd and any(
        each.memfd and each.pid_namespace == first.pid_namespace for each in others
    ):
        found.append(Means.MEMFD)
    if first.shm and any(each.shm == first.shm for each in others):
        found.append(Means.FILE)
    return tuple(found)


def _host_of(claim: Claim, one_network: bool) -> str:
    """The first is the preferred one; a loopback address is of no use to other machines."""
    return claim.hosts[0] if one_network else claim.hosts[-1]


def _tuning(claims: Sequence[Claim], candidates: Sequence[Candidates]) -> Tuning:
    tuning = claims[0].tuning
    crowded = any(len(each.members) > min(claims[rank].processors for rank in each.members)
                  for each in candidates)  # fmt: skip
    if crowded and not claims[0].is_spin_given:
        return replace(tuning, spin_s=0.0)
    return tuning


def _note(claims: Sequence[Claim]) -> str:
    rank = next((rank for rank, claim in enumerate(claims) if not claim.abi), -1)
    if rank >= 0:
        return f"rank {rank} has no compiled core: {claims[rank].no_core}"
    return "ranks have cores of different interfaces: install the same muster-parallel everywhere"


@dataclass(frozen=True, slots=True)
class Proof:
    """What a rank has found: whether it has the leader's memory in hand by `means`."""

    means: Means
    is_shared: bool
    why: str


def nodes_of(candidates: Sequence[Candidates], proofs: Sequence[Proof]) -> tuple[int, ...]:
    """The leader of each rank's node: who did not prove that it shares is a node of its own."""
    leaders = list(range(len(proofs)))
    for each in candidates:
        if not proofs[each.leader].is_shared:
            continue
        for rank in each.members:
            if proofs[rank].is_shared:
                leaders[rank] = each.leader
    return tuple(leaders)


def better(
    candidates: Candidates, first: Sequence[Proof], second: Sequence[Proof]
) -> Sequence[Proof]:
    """Of two tries of the candidates the one that brought more ranks together."""

    def together(proofs: Sequence[Proof]) -> int:
        if not proofs[candidates.leader].is_shared:
            return 0
        return sum(proofs[rank].is_shared for rank in candidates.members)

    return second if together(second) > together(first) else first


# --- on the wire


def encode_claim(claim: Claim) -> dict[str, Any]:
    return {**asdict(claim), "tuning": encode(claim.tuning)}


def decode_claim(said: Mapping[str, Any]) -> Claim:
    """Raises TypeError, ValueError, KeyError for what is no claim."""
    tuning = decode(said["tuning"])
    return Claim(**{**said, "hosts": tuple(said["hosts"]), "tuning": tuning})


def encode_plan(plan: Plan) -> dict[str, Any]:
    return {
        "native": plan.native,
        "candidates": [
            [each.leader, list(each.members), [means.value for means in each.means]]
            for each in plan.candidates
        ],
        "addresses": [[each.host, each.port, each.scope] for each in plan.addresses],
        "tuning": encode(plan.tuning),
        "note": plan.note,
    }


def decode_plan(said: Mapping[str, Any]) -> Plan:
    return Plan(
        native=bool(said["native"]),
        candidates=tuple(
            Candidates(leader, tuple(members), tuple(Means(means) for means in ways))
            for leader, members, ways in said["candidates"]
        ),
        addresses=tuple(Address(host, port, scope) for host, port, scope in said["addresses"]),
        tuning=decode(said["tuning"]),
        note=str(said["note"]),
    )


def encode_proof(proof: Proof) -> dict[str, Any]:
    return {"means": proof.means.value, "is_shared": proof.is_shared, "why": proof.why}


def decode_proof(said: Mapping[str, Any]) -> Proof:
    return Proof(Means(said["means"]), bool(said["is_shared"]), str(said["why"]))

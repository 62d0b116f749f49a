"""What a rank says of itself when a group is made, and what follows from all of it (pure)."""

from __future__ import annotations

import base64
import functools
import hmac
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from muster_collectives.runtime.errors import CoreError, SettingsError
from muster_collectives.runtime.layout import Address, Addresses, ShmMethod
from muster_collectives.runtime.messages import ranks_text
from muster_collectives.runtime.tuning import Tuning, decode, encode

MAX_LOCALS = 256  # of the core; more on one machine are more than one node
_LEAST_PART_BYTES = 64
_LEAST_SLOT_BYTES = 16384  # of those that are made smaller
_SHARE = 3 / 32  # of /dev/shm for one group: a tenth, less what lies beside slots and rings


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a rank says of itself and its machine. `abi` is its core's interface. `shm` is which
    file system /dev/shm is, "" where the rank cannot write there, `shm_bytes` its size; `memfd`
    whether it can make one."""

    abi: int
    boot: str
    pid_namespace: str
    net_namespace: str
    shm: str
    shm_bytes: int
    memfd: bool
    node: str
    processors: int
    hosts: tuple[str, ...]
    port: int
    endpoint: int
    is_spin_given: bool
    is_slot_given: bool
    tuning: Tuning
    key_mark: str = ""


@dataclass(frozen=True, slots=True)
class ProbeGroup:
    """Ranks that may share a node, `leader` first; each `shm_method` is tried in turn."""

    leader: int
    members: tuple[int, ...]
    shm_method: tuple[ShmMethod, ...]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What rank 0 decides from what all ranks say."""

    probe_groups: tuple[ProbeGroup, ...]
    addresses: Addresses
    tuning: Tuning

    def of(self, rank: int) -> ProbeGroup:
        return next(each for each in self.probe_groups if rank in each.members)


def plan(infos: Sequence[NodeInfo]) -> GroupPlan:
    """Raises SettingsError for sizes that do not fit the number of ranks, and for other keys than
    rank 0's; CoreError for another core than rank 0's."""
    _require_alike(infos)
    probe_groups = _probe_groups(infos)
    one_network = len({(info.boot, info.net_namespace) for info in infos}) == 1
    # the first is the preferred one; a loopback address is of no use to other machines
    hosts = (info.hosts[0] if one_network else info.hosts[-1] for info in infos)
    addresses = Addresses.of(
        Address(host, info.port, info.endpoint) for host, info in zip(hosts, infos, strict=True)
    )
    crowded = any(len(each.members) > min(infos[rank].processors for rank in each.members)
                  for each in probe_groups)  # fmt: skip
    tuning = infos[0].tuning
    if crowded and not infos[0].is_spin_given:
        tuning = replace(tuning, spin_s=0.0)
    if not infos[0].is_slot_given:
        for each in probe_groups:
            if each.shm_method[:1] == (ShmMethod.FILE,):
                tuning = _fit(tuning, len(each.members), infos[each.leader].shm_bytes)
    most = max(len(each.members) for each in probe_groups)
    if tuning.chunk_bytes // most < _LEAST_PART_BYTES:
        raise SettingsError(
            f"COLLECTIVES_CHUNK_BYTES={tuning.chunk_bytes} leaves less than {_LEAST_PART_BYTES} "
            f"bytes for each of {most} ranks of a node",
            f"at least {-(-most * _LEAST_PART_BYTES // 4096) * 4096}",
        )
    return GroupPlan(probe_groups, addresses, tuning)


def _fit(tuning: Tuning, locals_: int, shm_bytes: int) -> Tuning:
    """With slots so small that ten groups like this have room in a /dev/shm of `shm_bytes`, where
    all of a group's memory is allocated; the rings of its pairs shrink with them. 0: it has no
    bound, or none that is known."""
    slot_bytes = tuning.slot_bytes
    while (
        shm_bytes
        and slot_bytes >= 2 * _LEAST_SLOT_BYTES
        and locals_ * 4 * slot_bytes + locals_**2 * slot_bytes // 4 > shm_bytes * _SHARE
    ):
        slot_bytes = slot_bytes // 2 // 4096 * 4096
    chunk_bytes = min(tuning.chunk_bytes, slot_bytes)
    return replace(tuning, slot_bytes=slot_bytes, chunk_bytes=chunk_bytes)


def key_mark(key: bytes, group: str) -> str:
    """The same for the same key and group; it does not lead back to the key."""
    text = f"muster-collectives claim\0{group}".encode()
    return hmac.digest(key, text, "sha256").hex() if key else ""


def _require_alike(infos: Sequence[NodeInfo]) -> None:
    other = [rank for rank, info in enumerate(infos) if info.key_mark != infos[0].key_mark]
    if other:
        raise SettingsError(
            f"COLLECTIVES_KEY of {ranks_text(other)} is not that of rank 0",
            "set the same on all ranks (openssl rand -hex 32), or on none",
            ranks=other,
        )
    other = [rank for rank, info in enumerate(infos) if info.abi != infos[0].abi]
    if other:
        raise CoreError(
            f"the compiled core of {ranks_text(other)} has another interface than that of rank 0",
            "install the same muster-parallel everywhere",
            ranks=other,
        )


def _probe_groups(infos: Sequence[NodeInfo]) -> tuple[ProbeGroup, ...]:
    """Ranks of one machine and one COLLECTIVES_NODE that could share memory in one way or another:
    they see each other's processes, or have /dev/shm in common (pods, containers with one IPC)."""
    groups: list[set[int]] = []
    keys: list[set[tuple[str, ...]]] = []
    for rank, info in enumerate(infos):
        joined, seen = {rank}, _ways(info, rank)
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
        ProbeGroup(members[0], members, _means([infos[rank] for rank in members]))
        for members in sorted(cut)
    )


def _ways(info: NodeInfo, rank: int) -> set[tuple[str, ...]]:
    """What two ranks must have in common, one of these, to share memory."""
    machine = (info.boot or f"rank {rank}", info.node)
    found: set[tuple[str, ...]] = {(*machine, "only", str(rank))}
    if info.memfd and info.pid_namespace:
        found.add((*machine, "pid", info.pid_namespace))
    if info.shm:
        found.add((*machine, "shm", info.shm))
    return found


def _means(infos: Sequence[NodeInfo]) -> tuple[ShmMethod, ...]:
    """Those by which the first has a chance to share with another."""
    first, others = infos[0], infos[1:]
    found = []
    if first.memfd and any(
        each.memfd and each.pid_namespace == first.pid_namespace for each in others
    ):
        found.append(ShmMethod.MEMFD)
    if first.shm and any(each.shm == first.shm for each in others):
        found.append(ShmMethod.FILE)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a rank has found: whether it has the leader's memory in hand by `shm_method`."""

    shm_method: ShmMethod
    is_shared: bool
    why: str


def nodes_of(probe_groups: Sequence[ProbeGroup], results: Sequence[ProbeResult]) -> tuple[int, ...]:
    """The leader of each rank's node: who did not prove that it shares is a node of its own."""
    leaders = list(range(len(results)))
    for each in probe_groups:
        if not results[each.leader].is_shared:
            continue
        for rank in each.members:
            if results[rank].is_shared:
                leaders[rank] = each.leader
    return tuple(leaders)


def better(
    probe_groups: ProbeGroup, first: Sequence[ProbeResult], second: Sequence[ProbeResult]
) -> Sequence[ProbeResult]:
    """Of two tries of the candidates the one that brought more ranks together."""

    def together(results: Sequence[ProbeResult]) -> int:
        if not results[probe_groups.leader].is_shared:
            return 0
        return sum(results[rank].is_shared for rank in probe_groups.members)

    return second if together(second) > together(first) else first


# --- on the wire


def encode_node_info(info: NodeInfo) -> dict[str, Any]:
    said = {field.name: getattr(info, field.name) for field in fields(info)}
    return {**said, "tuning": encode(info.tuning)}


def decode_node_info(said: Mapping[str, Any]) -> NodeInfo:
    """Raises TypeError, ValueError, KeyError, AttributeError for what is no claim."""
    tuning = _tuning(tuple(said["tuning"].items()))
    return NodeInfo(**{**said, "hosts": tuple(said["hosts"]), "tuning": tuning})


@functools.lru_cache(maxsize=16)  # as a rule all ranks say the same
def _tuning(items: tuple[tuple[str, Any], ...]) -> Tuning:
    return decode(dict(items))


def encode_plan(plan: GroupPlan) -> dict[str, Any]:
    return {
        "candidates": [
            [each.leader, list(each.members), [shm_method.value for shm_method in each.shm_method]]
            for each in plan.probe_groups
        ],
        "addresses": base64.b64encode(zlib.compress(plan.addresses.packed, 1)).decode(),
        "tuning": encode(plan.tuning),
    }


def decode_plan(said: Mapping[str, Any]) -> GroupPlan:
    probe_groups = tuple(
        ProbeGroup(leader, tuple(members), tuple(ShmMethod(shm_method) for shm_method in ways))
        for leader, members, ways in said["candidates"]
    )
    addresses = Addresses(_unpacked(said["addresses"]))
    if len(addresses) != sum(len(each.members) for each in probe_groups):
        raise ValueError(f"{len(addresses)} addresses are not those of all ranks")
    return GroupPlan(probe_groups, addresses, decode(said["tuning"]))


def _unpacked(text: str) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(text))
    except zlib.error as error:
        raise ValueError(str(error)) from error


def encode_probe_result(proof: ProbeResult) -> dict[str, Any]:
    return {"means": proof.shm_method.value, "is_shared": proof.is_shared, "why": proof.why}


def decode_probe_result(said: Mapping[str, Any]) -> ProbeResult:
    return ProbeResult(ShmMethod(said["means"]), bool(said["is_shared"]), str(said["why"]))

"""Objects between ranks: barrier, broadcast, send, recv_from, allgather.

Source: "Communication API" of the public documentation. Every call waits for its partners, at most
MODELPARALLEL_OBJECTS_TIMEOUT_S seconds (600), and then raises ExchangeError that says who waited
for whom; the connection to who was late is of no use after that. Messages of one rank to another
come in the order in which they were sent, whatever the rank type; a process must not exchange
objects on two threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from enum import Enum
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from muster_modelparallel.errors import ExchangeError, SettingsError
from muster_modelparallel.run.encoding import decode, encode
from muster_modelparallel.run.mesh import Mesh
from muster_modelparallel.run.ranks import members
from muster_modelparallel.run.session import current
from muster_modelparallel.shape.topology import GroupKind

_TAG = 7
_E = TypeVar("_E", bound=Enum)


class CommGroup(Enum):
    """Which processes take part: this rank's group of that kind."""

    WORLD = "world"
    MP_GROUP = "mp"
    DP_GROUP = "dp"
    PP_GROUP = "pp"
    TP_GROUP = "tp"
    RDP_GROUP = "rdp"


class RankType(Enum):
    """How the number of a rank is meant: within which of this rank's groups."""

    WORLD_RANK = "world"
    MP_RANK = "mp"
    DP_RANK = "dp"
    PP_RANK = "pp"
    TP_RANK = "tp"
    RDP_RANK = "rdp"


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Waits until all ranks of the group have come here."""
    kind = _kind(CommGroup, group)
    _collect(kind, b"", f"barrier(group={group})")


def dp_barrier() -> None:
    """`barrier(DP_GROUP)`."""
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    """`barrier(MP_GROUP)`."""
    barrier(CommGroup.MP_GROUP)


def broadcast(obj: object, group: CommGroup) -> None:
    """Sends an object to all other ranks of the group, each of which calls `recv_from`; returns
    when all have it."""
    kind = _kind(CommGroup, group)
    rank = current().mesh.rank
    others = [each for each in members(kind) if each != rank]
    _send(obj, others, f"broadcast(group={group})")


def send(obj: object, dest_rank: int, rank_type: RankType) -> None:
    """Sends an object to a rank that calls `recv_from`; returns when it has it."""
    name = f"send(dest_rank={dest_rank}, rank_type={rank_type})"
    _send(obj, [_peer(dest_rank, rank_type, name)], name)


def recv_from(src_rank: int, rank_type: RankType) -> Any:
    """The object of that rank's next `send` to this rank, or `broadcast`."""
    name = f"recv_from(src_rank={src_rank}, rank_type={rank_type})"
    source = _peer(src_rank, rank_type, name)
    mesh = current().mesh
    group = mesh.objects(GroupKind.WORLD)
    limit = timedelta(seconds=mesh.objects_timeout_s)
    length = torch.zeros(1, dtype=torch.int64, device="cpu")
    with _wait(mesh, [source], name):
        dist.irecv(length, source, group=group, tag=_TAG).wait(limit)
        data = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        dist.irecv(data, source, group=group, tag=_TAG).wait(limit)
    return decode(memoryview(data.numpy()), mesh.device)


def allgather(obj: object, group: CommGroup) -> list[Any]:
    """The objects of all ranks of the group, in the order of their ranks within it. Collective."""
    kind = _kind(CommGroup, group)
    mesh = current().mesh
    ranks = members(kind)
    if len(ranks) == 1:
        return [obj]
    gathered = _collect(kind, encode(obj), f"allgather(group={group})")
    return [
        obj if each == mesh.rank else decode(data, mesh.device)
        for each, data in zip(ranks, gathered, strict=True)
    ]


def _collect(kind: GroupKind, data: bytes | bytearray, name: str) -> list[memoryview]:
    """The bytes of all ranks of the group. Nothing is sent where all have none."""
    mesh, ranks = current().mesh, members(kind)
    if len(ranks) == 1:
        return [memoryview(data)]
    group = mesh.objects(kind)
    place = f"{kind.value}/{ranks[0]}"
    turn = _come(mesh, place, mesh.rank, 1)

    def missing() -> list[int]:
        return [each for each in ranks if _come(mesh, place, each, 0) < turn]

    with _wait(mesh, ranks, name, missing):
        lengths = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in ranks]
        dist.all_gather(lengths, torch.tensor([len(data)], device="cpu"), group=group)
        sizes = [int(each) for each in lengths]
        most = max(sizes)
        if not most:
            return [memoryview(b"")] * len(ranks)
        padded = torch.zeros(most, dtype=torch.uint8, device="cpu")
        if data:
            padded[: len(data)] = torch.frombuffer(data, dtype=torch.uint8)
        rows = [torch.empty(most, dtype=torch.uint8, device="cpu") for _ in ranks]
        dist.all_gather(rows, padded, group=group)
    return [memoryview(row.numpy())[:each] for row, each in zip(rows, sizes, strict=True)]


def _send(obj: object, ranks: Sequence[int], name: str) -> None:
    """To all of them at once."""
    mesh = current().mesh
    if not ranks:
        return
    data = torch.frombuffer(encode(obj), dtype=torch.uint8)
    length = torch.tensor([data.numel()], device="cpu")
    limit = timedelta(seconds=mesh.objects_timeout_s)
    group = mesh.objects(GroupKind.WORLD)
    with _wait(mesh, ranks, name):
        works = [
            (dist.isend(length, each, group=group, tag=_TAG),
             dist.isend(data, each, group=group, tag=_TAG)) for each in ranks
        ]  # fmt: skip
    for each, pair in zip(ranks, works, strict=True):
        with _wait(mesh, [each], name):
            for work in pair:
                work.wait(limit)


@contextmanager
def called(name: str) -> Iterator[None]:
    """Inside, or in a function that this decorates, what a rank waits in is that call."""
    session = current()
    before, session.calling = session.calling, name
    try:
        yield
    finally:
        session.calling = before


@contextmanager
def _wait(
    mesh: Mesh, ranks: Sequence[int], name: str, missing: Callable[[], list[int]] | None = None
) -> Iterator[None]:
    """Says in the store what this rank does, in the log where that takes long, and turns what the
    group raises into an ExchangeError. `missing`: which of the ranks have not come, where that is
    known."""
    name = current().calling or name
    _say(mesh, name)
    began = time.monotonic()

    def late() -> list[int]:
        return (missing() if missing is not None else []) or [r for r in ranks if r != mesh.rank]

    with mesh.waits.waiting(lambda: f"rank {mesh.rank} waits for {_words(late())} in {name}"):
        try:
            yield
        except RuntimeError as error:
            took_s, lost = time.monotonic() - began, late()
            whom, heard = _words(lost), _heard(mesh, lost)
            if took_s >= 0.9 * mesh.objects_timeout_s:
                raise ExchangeError(
                    f"rank {mesh.rank} waited {took_s:.1f} s for {whom} in {name}{heard}",
                    "see that every rank makes the calls that belong together; "
                    "MODELPARALLEL_OBJECTS_TIMEOUT_S sets how long to wait",
                ) from error
            raise ExchangeError(
                f"rank {mesh.rank} lost {whom} after {took_s:.1f} s in {name}{heard} "
                f"({str(error).rsplit('] ', 1)[-1].split('. ')[0]})",
                f"the output of {whom} says why it ended",
            ) from error


def _words(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _come(mesh: Mesh, place: str, rank: int, more: int) -> int:
    """How often a rank has come to a group's collective calls, with those that it comes to now."""
    with suppress(dist.DistError):
        return int(mesh.store.add(f"{place}/{rank}", more))
    return 0  # the store went with rank 0; the groups work without it


def _say(mesh: Mesh, name: str) -> None:
    with suppress(dist.DistError):
        mesh.store.set(f"call/{mesh.rank}", name)


def _heard(mesh: Mesh, ranks: Sequence[int]) -> str:
    """The last call of each of the first few ranks, as far as it can be had."""
    said = []
    with suppress(dist.DistError):
        for each in ranks[:4]:
            if mesh.store.check([f"call/{each}"]):
                word = bytes(mesh.store.get(f"call/{each}")).decode()
                said.append(f"rank {each} was last in {word}")
            else:
                said.append(f"rank {each} has made no such call yet")
    return f" ({'; '.join(said)})" if said else ""


def _peer(number: int, rank_type: RankType, name: str) -> int:
    """The rank among all processes. Raises SettingsError for one that is not there, or oneself."""
    ranks = members(_kind(RankType, rank_type))
    if not isinstance(number, int) or not 0 <= number < len(ranks):
        raise SettingsError(
            f"{name}: there is no such rank", f"{rank_type} goes from 0 to {len(ranks) - 1}"
        )
    if ranks[number] == current().mesh.rank:
        raise SettingsError(f"{name}: this is the rank itself", "a rank exchanges with others only")
    return ranks[number]


def _kind(choices: type[_E], chosen: _E) -> GroupKind:
    if not isinstance(chosen, choices):
        raise SettingsError(
            f"{chosen!r} is no {choices.__name__}",
            f"one of {', '.join(f'smp.{each}' for each in choices)}",
        )
    return GroupKind(chosen.value)

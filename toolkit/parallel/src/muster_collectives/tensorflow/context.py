"""The one group of a TensorFlow process, kept here: the legacy API has no object for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from muster_collectives import core
from muster_collectives.binding.communicator import Communicator
from muster_collectives.bootstrap.world import WORLD
from muster_collectives.runtime.errors import UsageError
from muster_collectives.runtime.reentrancy import ReentrancyGuard

_T = TypeVar("_T")


class _Process:
    """TensorFlow runs Python from several threads, and a group takes one call at a time."""

    def __init__(self) -> None:
        self.turn = ReentrancyGuard(self._refusal)
        self.world: Communicator | None = None

    def _refusal(self, what: str, fix: str) -> UsageError:
        rank = -1 if self.world is None else self.world.rank
        where = f"group {WORLD!r}" if rank < 0 else f"group {WORLD!r}, rank {rank}"
        return UsageError(f"{where}: {what}", fix, group=WORLD, rank=rank)


_process = _Process()


def init(timeout_s: float | None = None) -> None:
    """Joins the group: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or Open MPI's variables.

    Once; again it does nothing. Raises CollectiveError if the others do not come.
    """
    with _process.turn:
        if _process.world is None:
            _process.world = core.init(timeout_s=timeout_s, layer="tensorflow")


def shutdown() -> None:
    """Leaves the group; nothing if there is none. `init` may be called again."""
    with _process.turn:
        world, _process.world = _process.world, None
        if world is not None:
            world.close()


def is_initialized() -> bool:
    return _process.world is not None


def size() -> int:
    """Ranks of all hosts."""
    return _world().size


def rank() -> int:
    """Of this process, from 0 to size() - 1."""
    return _world().rank


def local_size() -> int:
    """Ranks on this host."""
    world = _world()
    return world.nodes.count(world.nodes[world.rank])


def local_rank() -> int:
    """This process among those of its host: from 0 to local_size() - 1."""
    world = _world()
    return world.nodes[: world.rank].count(world.nodes[world.rank])


def with_world(action: Callable[[Communicator], _T]) -> _T:
    """Runs `action` while no other thread uses the group."""
    with _process.turn:
        return action(_world())


def _world() -> Communicator:
    world = _process.world
    if world is None:
        raise RuntimeError("no group yet: call init() before any other function")
    return world

"""Collectives with the standard library and our C core alone; no torch, no numpy.

    from muster_collectives.core import init

    with init() as world:  # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or Open MPI's variables
        world.all_reduce(array("f", [1.0, 2.0]))

`connect` makes a group from any store that the ranks share; `new_group` makes one of some ranks.
"""

from __future__ import annotations

from muster_collectives.binding.communicator import Communicator
from muster_collectives.binding.memory import Region
from muster_collectives.binding.requests import Request
from muster_collectives.bootstrap.connect import connect
from muster_collectives.bootstrap.world import init, new_group
from muster_collectives.runtime.errors import (
    AbortedError,
    ChecksumError,
    ClosedError,
    CollectiveError,
    CollectiveTimeout,
    CoreError,
    ForkError,
    MismatchError,
    PeerError,
    RendezvousError,
    ResourceError,
    SettingsError,
    UsageError,
    WireError,
)
from muster_collectives.runtime.settings import Settings
from muster_collectives.runtime.store import PrefixStore, Store
from muster_collectives.runtime.tuning import Tuning
from muster_collectives.runtime.types import (
    DTYPE_BYTES,
    Code,
    Description,
    DType,
    Op,
    Path,
    Record,
    Stats,
    Status,
    Verb,
    Wire,
)

__all__ = [
    "DTYPE_BYTES",
    "AbortedError",
    "ChecksumError",
    "ClosedError",
    "Code",
    "CollectiveError",
    "CollectiveTimeout",
    "Communicator",
    "CoreError",
    "DType",
    "Description",
    "ForkError",
    "MismatchError",
    "Op",
    "Path",
    "PeerError",
    "PrefixStore",
    "Record",
    "Region",
    "RendezvousError",
    "Request",
    "ResourceError",
    "Settings",
    "SettingsError",
    "Stats",
    "Status",
    "Store",
    "Tuning",
    "UsageError",
    "Verb",
    "Wire",
    "WireError",
    "connect",
    "init",
    "new_group",
]

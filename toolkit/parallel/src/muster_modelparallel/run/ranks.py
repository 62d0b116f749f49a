"""Who this rank is: its number, and its group's process group and members, for each kind of group.

Source: "MPI Basics" of the public documentation. All raise NotStartedError before `init`.
"""

from __future__ import annotations

from typing import Any

from muster_modelparallel.run.session import current
from muster_modelparallel.shape.topology import GroupKind


def rank() -> int:
    """The rank among all processes."""
    return current().mesh.rank


def size() -> int:
    """How many processes there are."""
    return current().mesh.size


def local_rank() -> int:
    """The rank among the processes of this host."""
    return current().mesh.local_rank


def local_size() -> int:
    """How many processes are on this host."""
    return current().mesh.local_size


def mp_rank() -> int:
    """The rank within the processes that hold one replica of the model."""
    return members(GroupKind.MP).index(rank())


def mp_size() -> int:
    """How many processes hold one replica of the model."""
    return len(members(GroupKind.MP))


def pp_rank() -> int:
    """The stage that this process holds."""
    return members(GroupKind.PP).index(rank())


def pp_size() -> int:
    """How many stages there are."""
    return len(members(GroupKind.PP))


def tp_rank() -> int:
    """Which slices of its tensors this process holds."""
    return members(GroupKind.TP).index(rank())


def tp_size() -> int:
    """Over how many processes tensors are cut."""
    return len(members(GroupKind.TP))


def dp_rank() -> int:
    """The rank within the processes that hold the same stage."""
    return members(GroupKind.DP).index(rank())


def dp_size() -> int:
    """How many processes hold the same stage."""
    return len(members(GroupKind.DP))


def rdp_rank() -> int:
    """The rank within the processes that hold the same slices of the same stage."""
    return members(GroupKind.RDP).index(rank())


def rdp_size() -> int:
    """How many processes hold the same slices of the same stage."""
    return len(members(GroupKind.RDP))


def get_world_process_group() -> Any:
    """torch's process group of all processes."""
    return current().mesh.group(GroupKind.WORLD)


def get_mp_process_group() -> Any:
    """torch's process group of the processes that hold one replica."""
    return current().mesh.group(GroupKind.MP)


def get_pp_process_group() -> Any:
    """torch's process group of the stages of a replica."""
    return current().mesh.group(GroupKind.PP)


def get_tp_process_group() -> Any:
    """torch's process group of the slices of a stage."""
    return current().mesh.group(GroupKind.TP)


def get_dp_process_group() -> Any:
    """torch's process group of the processes that hold the same stage."""
    return current().mesh.group(GroupKind.DP)


def get_rdp_process_group() -> Any:
    """torch's process group of the processes that hold the same slices of the same stage."""
    return current().mesh.group(GroupKind.RDP)


def get_mp_group() -> list[int]:
    """The ranks that hold one replica, this one's."""
    return list(members(GroupKind.MP))


def get_pp_group() -> list[int]:
    """The ranks of the stages of a replica, this one's."""
    return list(members(GroupKind.PP))


def get_tp_group() -> list[int]:
    """The ranks of the slices of a stage, this one's."""
    return list(members(GroupKind.TP))


def get_dp_group() -> list[int]:
    """The ranks that hold the same stage as this one."""
    return list(members(GroupKind.DP))


def get_rdp_group() -> list[int]:
    """The ranks that hold the same slices of the same stage as this one."""
    return list(members(GroupKind.RDP))


def members(kind: GroupKind) -> tuple[int, ...]:
    """The ranks of this rank's group of that kind, in the order of their ranks within it."""
    session = current()
    return session.topology.group(kind, session.mesh.rank)

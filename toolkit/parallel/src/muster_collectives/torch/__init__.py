"""The `torch.distributed` backend: importing this makes "muster" and its alias "smddp" known.

    import muster_collectives.torch
    torch.distributed.init_process_group("muster")

All of torch.distributed works with it, on CPU and CUDA tensors: docs/reference/collectives.md.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from muster_collectives.runtime.summary import GroupStats
from muster_collectives.torch.creation import NAMES, register
from muster_collectives.torch.group import MusterProcessGroup

__all__ = ["NAMES", "GroupStats", "MusterProcessGroup", "register", "stats"]


def stats(group: Any = None) -> GroupStats:
    """Counters of a group (the default one where none is given). Raises TypeError for a group of
    another backend."""
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, MusterProcessGroup):
        raise TypeError(f"{found!r} is no group of backend 'muster'")
    return found.stats()


register()

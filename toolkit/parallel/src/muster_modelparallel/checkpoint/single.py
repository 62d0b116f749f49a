"""`save` and `load`: one object in one file, or a part of it in a file for each rank."""

from __future__ import annotations

import os
from typing import Any

from muster_modelparallel.checkpoint.files import load_object, save_object
from muster_modelparallel.errors import CheckpointError
from muster_modelparallel.run.session import current


def save(obj: object, f: str, partial: bool = True, *, v3: bool = False, **options: Any) -> None:
    """As `torch.save(obj, f, **options)`, whole or not at all.

    `partial`: this rank's part, in `f_P_T`, P and T its places on the pipeline and tensor axes;
    `v3`: the part of each data-parallel rank, in `f_P_T_D`, for a sharded optimizer. Ranks of one
    place write the same file: as a rule one of them should (`rdp_rank() == 0`).
    Raises CheckpointError when it cannot be written.
    Source: SDK documentation, "APIs for Saving and Loading".
    """
    if not isinstance(f, str | os.PathLike):
        raise CheckpointError(f"save: expected the name of a file, got {type(f).__name__}")
    name = os.fspath(f) + (_suffix(v3) if partial else "")
    try:
        save_object(obj, name, **options)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{name} could not be written: {error}") from error


def load(f: str, map_location: Any = None, partial: bool = True, **options: Any) -> Any:
    """What `save` saved under this name, for this rank where it is `partial`.

    Read with `weights_only=True` unless the options say otherwise. Raises CheckpointError for a
    file that is missing, cut short, or needs `weights_only=False`.
    """
    name = os.fspath(f)
    if not partial:
        return load_object(name, map_location, **options)
    suffixes = (_suffix(False), _suffix(True), f"_{_mp_rank()}")
    there = [name + suffix for suffix in suffixes if os.path.exists(name + suffix)]
    if not there:
        raise CheckpointError(
            f"{name}{suffixes[0]} is not there: no part of {name} was saved for this rank",
            "run with the degrees that it was saved with, or load with partial=False",
        )
    return load_object(there[0], map_location, **options)


def _suffix(sharded: bool) -> str:
    session = current()
    place = session.topology.place(session.mesh.rank)
    return f"_{place.pp}_{place.tp}" + (f"_{place.rdp}" if sharded else "")


def _mp_rank() -> int:
    """As files of before tensor parallelism are named."""
    session = current()
    return session.topology.mp_rank(session.mesh.rank)

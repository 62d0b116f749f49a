"""`resume_from_checkpoint`: back to where a checkpoint was saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from muster_modelparallel.checkpoint import layout
from muster_modelparallel.checkpoint.files import load_object, load_user_content
from muster_modelparallel.errors import CheckpointError
from muster_modelparallel.run.session import Session, current


def resume_from_checkpoint(
    path: str,
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> Any:
    """Loads a checkpoint into the DistributedModel and the DistributedOptimizer of this process,
    and returns what was saved as `user_content`, {} if nothing was.

    `tag`: None for the newest one. `partial=False`: a file with the state of a whole model, also
    one that a plain PyTorch script saved. `strict`: a name too many or too few is an error.
    `translate_function` is given the state of a full checkpoint first.
    `load_sharded_optimizer_state` matters where the optimizer is sharded.
    Raises CheckpointError for a checkpoint that is missing, not whole, of another model or saved
    with other degrees. Source: SDK documentation, "APIs for Saving and Loading".
    """
    session, path = current(), os.fspath(path)
    if session.model is None:
        raise CheckpointError(
            "resume_from_checkpoint: there is no DistributedModel to load into",
            "wrap the model and the optimizer first",
        )
    tag = layout.checked_tag(tag) if tag is not None else layout.read_newest(path)
    if partial:
        return _resume_partial(session, path, tag, strict, load_optimizer)
    state = load_object(os.path.join(path, tag))
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"{path}/{tag} holds a {type(state).__name__}, not the state of a model"
        )
    if translate_function is not None:
        state = translate_function(state)
    _load(session.model, state, os.path.join(path, tag), strict=strict)
    kept = os.path.join(path, f"optimizer_{tag}")
    if load_optimizer and session.optimizer is not None and os.path.exists(kept):
        _load(session.optimizer, load_object(kept), kept)
    content = os.path.join(path, f"user_content_{tag}")
    return load_user_content(content) if os.path.exists(content) else {}


def _resume_partial(
    session: Session, path: str, tag: str, strict: bool, load_optimizer: bool
) -> Any:
    folder = layout.find(path, tag)
    manifest, topology = layout.read_manifest(folder), session.topology
    if manifest is not None:
        saved, now = manifest[:2], (topology.pipeline, topology.tensor)
        if saved != now:
            raise CheckpointError(
                f"{folder} was saved with pipeline {saved[0]} x tensor {saved[1]}, "
                f"this job has pipeline {now[0]} x tensor {now[1]}",
                "use the same degrees, or save with partial=False",
            )
    place = topology.place(session.mesh.rank)
    name = os.path.join(folder, f"model_{place.pp}_{place.tp}.pt")
    assert session.model is not None
    _load(session.model, load_object(name), name, strict=strict)
    name = os.path.join(folder, f"optimizer_{place.pp}_{place.tp}.pt")
    if load_optimizer and session.optimizer is not None and os.path.exists(name):
        _load(session.optimizer, load_object(name), name)
    content = os.path.join(folder, layout.USER_CONTENT)
    return load_user_content(content) if os.path.exists(content) else {}


def _load(into: Any, state: object, name: str, **options: Any) -> None:
    """Says which file it was when its content does not fit."""
    try:
        into.load_state_dict(state, **options)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{name} does not fit this {type(into).__name__}: {error}",
            "is it of the same model, and of an optimizer over the same parameters?",
        ) from error

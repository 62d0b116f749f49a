"""`resume_from_checkpoint`: back to where a checkpoint was saved."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from muster_modelparallel.checkpoint import layout, piecewise
from muster_modelparallel.checkpoint.files import load_object, load_user_content
from muster_modelparallel.checkpoint.together import together
from muster_modelparallel.errors import CheckpointError
from muster_modelparallel.run.objects import CommGroup, allgather, called
from muster_modelparallel.run.session import Session, current
from muster_modelparallel.wrap.model import PARTIAL
from muster_modelparallel.wrap.optimizer_state import merged_states

_log = logging.getLogger("muster_modelparallel")


@called("resume_from_checkpoint")
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
    and returns what was saved as `user_content`, {} if nothing was. All ranks call it alike.

    `tag`: None for the newest one. Checkpoints in pieces are for any degrees, as full ones are.
    `partial=False`: a file with the state of a whole model, also
    one that a plain PyTorch script saved. `strict`: a name too many or too few is an error.
    `translate_function` is given the state of a full checkpoint first.
    `load_sharded_optimizer_state=False`: of an optimizer that is sharded (`shard_optimizer_state`,
    or parameters that are cut over replicas) the master weights and the loss scale alone.
    Raises CheckpointError for a checkpoint that is missing, not whole, of another model or saved
    with other degrees. Source: SDK documentation, "APIs for Saving and Loading".
    """
    session, path = current(), os.fspath(path)
    piecewise.end(session)
    what = f"cannot resume from {path}"
    if session.model is None:
        raise CheckpointError(
            f"{what}: there is no DistributedModel to load into",
            "wrap the model and the optimizer first",
        )
    is_sharded = session.optimizer is not None and session.optimizer.is_sharded
    masters_only = is_sharded and not load_sharded_optimizer_state
    agreed = _agreed(path, None if tag is None else layout.checked_tag(tag), partial, what)
    if partial and _is_in_pieces(path, agreed):
        folder = layout.find(path, agreed)
        return _load_pieces(session, folder, load_optimizer, masters_only, strict, what)
    read: list[_Read] = []
    own: list[Any] = []

    def look() -> None:
        folder, names = path, layout.full_names(agreed)
        if partial:
            folder, names = layout.find(path, agreed), _names_here(session, path, agreed)
        translate = None if partial else translate_function
        read.append(_read_files(folder, names, load_optimizer, translate))

    together(look, what)
    found = read[0]
    if partial and session.topology.pipeline > 1:  # stages may be others than they were
        found = _of_all_stages(found)
    together(lambda: own.append(_load(session, found, masters_only, strict)), what)
    return own[0]


def _agreed(path: str, tag: str | None, partial: bool, what: str) -> str:
    """The tag of the checkpoint that all ranks resume from: that of one save on all hosts. The
    newest, where it is whole on all of them, else the latest that is."""

    def look() -> tuple[str, dict[str, tuple[int, str]]]:
        named = tag or layout.read_newest(path, layout.NEWEST if partial else layout.NEWEST_FULL)
        if not partial:
            layout.finish_full(path, named)
        whole = {name: (one.order, one.save) for name, one in layout.saved(path, partial).items()}
        if named not in whole:
            manifest = layout.read_manifest(path, named, partial)
            whole[named] = (manifest.order, manifest.save) if manifest else (0, "")
        return named, whole

    said = together(look, what)
    common = set(said[0][1].items())
    for _, whole in said[1:]:
        common &= set(whole.items())
    names = {name for name, _ in common}
    first = said[0][0]
    if all(named == first for named, _ in said) and first in names:
        return first
    if tag is not None or not names:
        seen = ", ".join(f"{named} on rank {rank}" for rank, (named, _) in enumerate(said))
        raise CheckpointError(
            f"{what}: the hosts have no checkpoint{f' {tag}' if tag else ''} of one save in common "
            f"({seen})",
            "give all hosts one folder, or copy one host's checkpoints to the others",
        )
    latest = max(common, key=lambda one: one[1])[0]
    _log.warning("%s: not every host has the newest, all resume from %s", path, latest)
    return latest


def _names_here(session: Session, path: str, tag: str) -> tuple[str, str, str]:
    """This rank's files of a partial checkpoint. Raises CheckpointError for other degrees."""
    manifest, topology = layout.read_manifest(path, tag), session.topology
    if manifest is not None:
        saved, now = (manifest.pipeline, manifest.tensor), (topology.pipeline, topology.tensor)
        if saved != now:
            raise CheckpointError(
                f"checkpoint {tag} in {path} was saved with pipeline {saved[0]} x tensor "
                f"{saved[1]}, this job has pipeline {now[0]} x tensor {now[1]}",
                "use the same degrees, or save with partial=False",
            )
    place = topology.place(session.mesh.rank)
    return layout.partial_names(place.pp, place.tp)


def _is_in_pieces(path: str, tag: str) -> bool:
    manifest = layout.read_manifest(path, tag)
    return manifest is not None and manifest[2:4] == layout.ANY_DEGREES


def _load_pieces(
    session: Session, folder: str, load_optimizer: bool, masters_only: bool, strict: bool, what: str
) -> Any:
    """Loads model and optimizer, and returns the script's own values."""
    from muster_modelparallel.checkpoint import pieces  # takes a second

    model: Any = session.model
    optimizer: Any = session.optimizer if load_optimizer else None
    room: list[pieces.Room] = []
    group = piecewise.group_of(session)
    together(lambda: room.append(pieces.room_for(folder, model, optimizer, strict)), what)
    if load_optimizer and optimizer is None and "optimizer" in room[0].rest:
        _log.warning("the state of the optimizer in %s was not loaded: there is no "
                     "DistributedOptimizer yet", folder)  # fmt: skip
    together(lambda: pieces.read(room[0], group), what)
    together(lambda: pieces.put(room[0], model, optimizer, strict, masters_only), what)
    model.share_buffers()  # of each one rank has saved, and read, its own
    content = os.path.join(folder, layout.USER_CONTENT)
    return load_user_content(content) if os.path.exists(content) else {}


class _Read(NamedTuple):
    """What the files of a checkpoint hold, with the names of the first two."""

    model_file: str
    model: Mapping[str, Any]
    optimizer_file: str
    optimizer: Any
    content: Any


def _read_files(
    folder: str,
    names: tuple[str, str, str],
    load_optimizer: bool,
    translate_function: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None,
) -> _Read:
    model, optimizer, content = (os.path.join(folder, name) for name in names)
    state = load_object(model)
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{model} holds a {type(state).__name__}, not the state of a model")
    if translate_function is not None:
        state = translate_function(state)
    has_optimizer = load_optimizer and os.path.exists(optimizer)
    return _Read(
        model,
        state,
        optimizer,
        load_object(optimizer) if has_optimizer else None,
        load_user_content(content) if os.path.exists(content) else {},
    )


def _of_all_stages(found: _Read) -> _Read:
    """The whole model and the state of its optimizer, of what the ranks of a pipeline have read."""
    models = allgather(dict(found.model), CommGroup.PP_GROUP)
    whole = {name: value for state in reversed(models) for name, value in state.items()}
    whole.pop(PARTIAL, None)
    states = allgather(found.optimizer, CommGroup.PP_GROUP)
    optimizer = None if any(one is None for one in states) else merged_states(states)
    return found._replace(model=whole, optimizer=optimizer)


def _load(session: Session, found: _Read, masters_only: bool, strict: bool) -> Any:
    """Loads model and optimizer, and returns the script's own values."""
    _load_state(session.model, found.model, found.model_file, strict=strict)
    if found.optimizer is not None and session.optimizer is None:
        _log.warning(
            "%s was not loaded: there is no DistributedOptimizer yet", found.optimizer_file
        )
    elif found.optimizer is not None:
        _load_state(
            session.optimizer, found.optimizer, found.optimizer_file, masters_only=masters_only
        )
    return found.content


def _load_state(into: Any, state: object, name: str, **options: Any) -> None:
    """Says which file it was when its content does not fit."""
    try:
        into.load_state_dict(state, **options)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{name} does not fit this {type(into).__name__}: {error}",
            "is it of the same model, and of an optimizer over the same parameters?",
        ) from error

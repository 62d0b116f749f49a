"""`save_checkpoint`: the model, the optimizer and the script's own values, by all ranks at once."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from muster_modelparallel.checkpoint import layout, piecewise
from muster_modelparallel.checkpoint.files import save_object
from muster_modelparallel.checkpoint.together import at_length, together
from muster_modelparallel.errors import CheckpointError
from muster_modelparallel.run.objects import called
from muster_modelparallel.run.session import Session, current
from muster_modelparallel.wrap.model import DistributedModel
from muster_modelparallel.wrap.optimizer import DistributedOptimizer

States = Mapping[str, Callable[[], object]]


@called("save_checkpoint")
def save_checkpoint(
    path: str,
    tag: str,
    partial: bool = True,
    model: DistributedModel | None = None,
    optimizer: DistributedOptimizer | None = None,
    user_content: Any = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
    *,
    in_pieces: bool = False,
    in_background: bool = False,
) -> None:
    """Saves a checkpoint in the documented layout (`layout.py`). All ranks call it alike.

    When it returns, the checkpoint is whole on every host and `newest` names it. Whenever it is
    cut short, the checkpoint before is still there and can be resumed from. `partial=False`: one
    file with the state of the whole model, under the names of the user's own module, and none of
    what is left out. `translate_if_full` matters where layers were replaced, which this release
    does not do.

    `in_pieces`, muster's own: each rank writes what it has, and a job of any degrees may resume;
    the hosts share the folder. `in_background`: such a save returns once values are copied. It is
    over when the next one begins, `wait_for_checkpoint` returns or the script ends.

    Raises CheckpointError on all ranks when any of them could not write, and
    ExchangeError when one gets no further for MODELPARALLEL_OBJECTS_TIMEOUT_S: a save that takes
    longer than that because there is much to write is none.
    """
    session, tag, path = current(), layout.checked_tag(tag), os.path.abspath(path)
    kept = num_kept_partial_checkpoints
    if kept is not None and kept < 1:
        raise CheckpointError("num_kept_partial_checkpoints must be at least 1, or None for all")
    if in_background and not in_pieces:
        raise CheckpointError("in_background is for checkpoints in pieces", "add in_pieces=True")
    if in_pieces and not partial:
        raise CheckpointError("a checkpoint in pieces is no full one", "leave out partial=False")
    if not translate_if_full:
        session.note(
            "translate_if_full has no effect: no layer is replaced, so both formats are one"
        )
    piecewise.end(session)
    save, sharing = _begin(session, path, (tag, "in pieces" if in_pieces else partial))
    if in_pieces:
        into = _Target(path, tag, save, sharing, kept)
        _save_in_pieces(session, into, model, optimizer, user_content, in_background)
        return
    what = f"checkpoint {tag} could not be written"
    place = session.topology.place(session.mesh.rank)
    states: dict[str, Callable[[], object]] = {}
    model_name, optimizer_name, content_name = (
        layout.partial_names(place.pp, place.tp) if partial else layout.full_names(tag)
    )
    shares = optimizer is not None and optimizer.is_sharded
    stages = not partial and session.topology.pipeline > 1
    cut = model is not None and model.sharding is not None
    model_state = _state(model, partial, stages or cut)
    optimizer_state = _state(optimizer, partial, stages or shares)
    if sharing.is_first(lambda rank: not partial or session.topology.place(rank)[:2] == place[:2]):
        if model_state is not None:
            states[model_name] = model_state
        if optimizer_state is not None:
            states[optimizer_name] = optimizer_state
    if sharing.is_first() and user_content is not None:
        states[content_name] = lambda: user_content
    target = layout.partial_folder(path, tag) if partial else os.path.join(path, tag)
    together(lambda: layout.begin(target) if sharing.is_first() else "", what)
    folder = target + layout.INCOMPLETE
    written = at_length(lambda wrote: _write(folder, states, wrote), what)
    files = {name: size for rank in sharing.ranks for name, size in written[rank].items()}
    topology = session.topology
    manifest = layout.Manifest(save.name, save.order, topology.pipeline, topology.tensor, files)

    def finish() -> None:
        if not sharing.is_first():
            return
        if partial:
            layout.finish_partial(target, manifest)
            layout.write_newest(path, tag)
        else:
            layout.finish_full(path, tag, manifest)

    together(finish, what)
    if partial and kept is not None:  # once it is whole on every host
        together(lambda: layout.remove_oldest(path, kept) if sharing.is_first() else None, what)


@called("wait_for_checkpoint")
def wait_for_checkpoint() -> None:
    """Returns when a save `in_background` is over and `newest` names it; at once without one. All
    ranks call it. Raises CheckpointError on all where it failed on any."""
    piecewise.end(current())


class _Target(NamedTuple):
    """Where a checkpoint in pieces goes; `kept`: how many of them stay."""

    path: str
    tag: str
    save: _Save
    sharing: _Sharing
    kept: int | None


def _save_in_pieces(
    session: Session,
    target: _Target,
    model: DistributedModel | None,
    optimizer: DistributedOptimizer | None,
    user_content: Any,
    in_background: bool,
) -> None:
    path, tag, save, sharing, kept = target
    if len(sharing.ranks) < session.mesh.size:
        raise CheckpointError(
            f"the hosts do not share {path}, and the pieces of a checkpoint lie together",
            "give all hosts one folder, or leave out in_pieces",
        )
    place = layout.partial_folder(path, tag)

    def put(files: Mapping[str, int]) -> None:
        manifest = layout.Manifest(save.name, save.order, *layout.ANY_DEGREES, files)
        layout.finish_partial(place, manifest)
        layout.write_newest(path, tag)
        if kept is not None:
            layout.remove_oldest(path, kept)

    piecewise.begin(session, place, model, optimizer, user_content, in_background, put)


class _Save(NamedTuple):
    """What tells this save from all others, alike on all ranks."""

    name: str
    order: int


class _Sharing(NamedTuple):
    """The ranks whose folder of checkpoints is the same as this one's."""

    rank: int
    ranks: tuple[int, ...]

    def is_first(self, among: Callable[[int], bool] = lambda _: True) -> bool:
        """Whether this rank is the first of them, or of those of them that are meant."""
        return self.rank == next(rank for rank in self.ranks if among(rank))


def _begin(session: Session, path: str, called: tuple[str, object]) -> tuple[_Save, _Sharing]:
    """Hosts may share the folder or have one each: rank 0 leaves a file there, and who sees it
    shares. Those of one host that do not share with rank 0 share with each other."""
    name = f".{secrets.token_hex(8)}.tmp"

    def leave() -> tuple[str, int, tuple[str, object]]:
        os.makedirs(path, exist_ok=True)
        if session.mesh.rank == 0:
            layout.write_file(os.path.join(path, name), lambda to: None)
        return name, time.time_ns(), called

    said = together(leave, f"the folder {path} cannot be used")
    token, order, first = said[0]
    hosts = together(
        lambda: "" if os.path.exists(os.path.join(path, token)) else socket.gethostname(), path
    )
    if session.mesh.rank == 0:
        layout.remove_file(os.path.join(path, token))
    for rank, (_, _, other) in enumerate(said):
        if other != first:
            raise CheckpointError(
                f"save_checkpoint: rank 0 saves {first} and rank {rank} saves {other} (tag, kind)",
                "call it with the same tag on all ranks",
            )
    mine = hosts[session.mesh.rank]
    ranks = tuple(rank for rank, host in enumerate(hosts) if host == mine)
    return _Save(token.strip(".")[:16], order), _Sharing(session.mesh.rank, ranks)


def _state(
    one: DistributedModel | DistributedOptimizer | None, partial: bool, together: bool
) -> Callable[[], object] | None:
    """What gives the state of a model or an optimizer; where ranks have to give it together, it is
    there already."""
    if one is None:
        return None
    give = one.local_state_dict if partial else one.state_dict
    if not together:
        return give
    found = give()
    return lambda: found


def _write(folder: str, states: States, wrote: layout.Wrote) -> dict[str, int]:
    return {
        name: save_object(state(), os.path.join(folder, name), wrote)
        for name, state in states.items()
    }

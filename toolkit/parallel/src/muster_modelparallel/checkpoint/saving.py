"""`save_checkpoint`: the model, the optimizer and the script's own values, by all ranks at once."""

from __future__ import annotations

import functools
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from muster_modelparallel.checkpoint import layout
from muster_modelparallel.checkpoint.files import save_object
from muster_modelparallel.errors import CheckpointError
from muster_modelparallel.run import objects
from muster_modelparallel.run.session import Session, current
from muster_modelparallel.wrap.model import DistributedModel
from muster_modelparallel.wrap.optimizer import DistributedOptimizer

T = TypeVar("T")


class _States(NamedTuple):
    """What a checkpoint holds; None for what is left out."""

    model: DistributedModel | None
    optimizer: DistributedOptimizer | None
    user_content: Any


def save_checkpoint(
    path: str,
    tag: str,
    partial: bool = True,
    model: DistributedModel | None = None,
    optimizer: DistributedOptimizer | None = None,
    user_content: Any = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Saves a checkpoint in the documented layout (`layout.py`). All ranks call it alike.

    When it returns, the checkpoint is whole on every host and `newest` names it. Whenever it is
    cut short, the checkpoint before is still there and can be resumed from. `partial=False`: one
    file with the state of the whole model, under the names of the user's own module.
    `translate_if_full` matters where layers were replaced, which this release does not do.
    Raises CheckpointError on all ranks when any of them could not write.
    """
    session, tag = current(), layout.checked_tag(tag)
    if num_kept_partial_checkpoints is not None and num_kept_partial_checkpoints < 1:
        raise CheckpointError("num_kept_partial_checkpoints must be at least 1, or None for all")
    _agree(session, tag, partial)
    path = os.fspath(path)
    if partial:
        kept = num_kept_partial_checkpoints
        _save_partial(session, path, tag, _States(model, optimizer, user_content), kept)
    else:
        _save_full(session, path, tag, _States(model, optimizer, user_content))


def _save_partial(
    session: Session,
    path: str,
    tag: str,
    what: _States,
    kept: int | None,
) -> None:
    place = session.topology.place(session.mesh.rank)
    hosts = _hosts_by_folder(session, path)
    info = f"{place.pp}_{place.tp}"
    states: dict[str, Callable[[], object]] = {}
    if hosts.is_first(lambda rank: session.topology.place(rank)[:2] == place[:2]):
        if what.model is not None:
            states[f"model_{info}.pt"] = what.model.local_state_dict
        if what.optimizer is not None:
            states[f"optimizer_{info}.pt"] = what.optimizer.local_state_dict
    if hosts.is_first() and what.user_content is not None:
        states[layout.USER_CONTENT] = lambda: what.user_content
    begin = functools.partial(layout.begin_partial, path, tag)
    _together(begin if hosts.is_first() else _nothing, f"checkpoint {tag}")
    folder = layout.partial_folder(path, tag) + layout.INCOMPLETE

    def write() -> dict[str, int]:
        return {
            name: save_object(state(), os.path.join(folder, name)) for name, state in states.items()
        }

    written = _together(write, f"checkpoint {tag}")
    files = {name: size for rank in hosts.ranks for name, size in written[rank].items()}
    manifest = layout.Manifest(session.topology.pipeline, session.topology.tensor, files)

    def finish() -> None:
        layout.finish_partial(path, tag, manifest)
        layout.write_newest(path, tag)
        if kept is not None:
            layout.remove_oldest(path, kept)

    _together(finish if hosts.is_first() else _nothing, f"checkpoint {tag}")


def _save_full(session: Session, path: str, tag: str, what: _States) -> None:
    hosts = _hosts_by_folder(session, path)
    states = {  # what names the checkpoint comes last
        f"user_content_{tag}": what.user_content,
        f"optimizer_{tag}": what.optimizer.state_dict() if what.optimizer is not None else None,
        tag: what.model.state_dict() if what.model is not None else None,
    }

    def write() -> None:
        for name, state in states.items():
            if state is not None:
                save_object(state, os.path.join(path, name))

    _together(write if hosts.is_first() else _nothing, f"checkpoint {tag}")


class _Sharing(NamedTuple):
    """The ranks whose folder of checkpoints is the same as this one's."""

    rank: int
    ranks: tuple[int, ...]

    def is_first(self, among: Callable[[int], bool] = lambda _: True) -> bool:
        """Whether this rank is the first of them, or of those of them that are meant."""
        return self.rank == next(rank for rank in self.ranks if among(rank))


def _hosts_by_folder(session: Session, path: str) -> _Sharing:
    """Hosts may share the folder or have one each: rank 0 leaves a file there, and who sees it
    shares. Those of one host that do not share with rank 0 share with each other."""
    token = os.path.join(path, f".{secrets.token_hex(8)}.tmp")

    def leave() -> str:
        if session.mesh.rank == 0:
            os.makedirs(path, exist_ok=True)
            layout.write_file(token, lambda to: open(to, "xb").close())
        return token

    token = _together(leave, f"the folder {path}")[0]
    host = "" if os.path.exists(token) else socket.gethostname()
    hosts = objects.allgather(host, objects.CommGroup.WORLD)
    if session.mesh.rank == 0:
        os.unlink(token)
    return _Sharing(session.mesh.rank, tuple(r for r, one in enumerate(hosts) if one == host))


def _agree(session: Session, tag: str, partial: bool) -> None:
    said = objects.allgather((tag, partial), objects.CommGroup.WORLD)
    if len(set(said)) > 1:
        other = next(one for one in said if one != said[0])
        raise CheckpointError(
            f"save_checkpoint: rank 0 saves {said[0]} and rank {said.index(other)} saves {other} "
            "(tag, partial)",
            "call it with the same tag on all ranks",
        )


def _together(act: Callable[[], T], what: str) -> list[T]:
    """What `act` returns on each rank. Raises CheckpointError on all when it fails on any."""
    result, failed = None, ""
    try:
        result = act()
    except (OSError, RuntimeError, ValueError) as error:
        failed = str(error) or type(error).__name__
    said = objects.allgather((failed, result), objects.CommGroup.WORLD)
    for rank, (why, _) in enumerate(said):
        if why:
            raise CheckpointError(f"{what} could not be written by rank {rank}: {why}")
    return [one for _, one in said]


def _nothing() -> Any:
    return {}

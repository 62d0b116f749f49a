"""Saves in pieces: begun, perhaps written while training goes on, and put in their place."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster_modelparallel.checkpoint import layout
from muster_modelparallel.checkpoint.files import save_object
from muster_modelparallel.checkpoint.together import at_length, together
from muster_modelparallel.errors import CheckpointError
from muster_modelparallel.run.session import Saving, Session
from muster_modelparallel.wrap.model import DistributedModel
from muster_modelparallel.wrap.optimizer import DistributedOptimizer

_log = logging.getLogger("muster_modelparallel")
_POLL_S = 0.5
_LONGEST = timedelta(hours=6)  # that a rank writes longer than another one; a dead one is seen


def begin(
    session: Session,
    place: str,
    model: DistributedModel | None,
    optimizer: DistributedOptimizer | None,
    user_content: Any,
    in_background: bool,
    finish: Callable[[Mapping[str, int]], None],
) -> None:
    """Begins to write into the folder that is to become `place`, which all ranks see. `finish` is
    called on rank 0 with the files, by name their bytes, when all ranks have written; in a thread
    of its own. Collective; returns when that is over or, `in_background`, at once."""
    from muster_modelparallel.checkpoint import pieces  # takes a second

    what = f"checkpoint {os.path.basename(place)} could not be written"
    folder = place + layout.INCOMPLETE
    is_first = session.mesh.rank == 0

    def prepare() -> None:
        layout.begin(place)
        if user_content is not None:
            save_object(user_content, os.path.join(folder, layout.USER_CONTENT))

    mine: list[pieces.Pieces] = []

    def gather() -> dict[str, Any]:
        if is_first:
            prepare()
        mine.append(pieces.pieces_of(model, optimizer, in_background))
        return mine[0].rest

    every = together(gather, what)
    together(lambda: pieces.save_rest(folder, every) if is_first else None, what)
    group, device = group_of(session), session.mesh.device
    saving = Saving(what, folder, pieces.save(folder, mine[0].tensors, group, device), Future())

    def settle(written: Future[None]) -> None:
        if saving.done.cancelled():  # it was given up
            return
        try:
            written.result()
            if is_first:
                finish({name: _bytes_of(os.path.join(folder, name)) for name in os.listdir(folder)})
        except BaseException as error:
            _log.error("%s: %s", what, error)
            with suppress(InvalidStateError):  # it was given up meanwhile
                saving.done.set_exception(error)
        else:
            with suppress(InvalidStateError):
                saving.done.set_result(None)

    saving.written.add_done_callback(settle)
    session.saving = saving
    if in_background:
        atexit.unregister(_end_at_exit)
        atexit.register(_end_at_exit, session)
    else:
        end(session)


def end(session: Session) -> None:
    """Waits until the save that was begun last is over. Collective. Raises CheckpointError on all
    ranks where it failed on any, or got no further for MODELPARALLEL_OBJECTS_TIMEOUT_S."""
    saving, session.saving = session.saving, None
    if saving is None:
        return
    limit_s = session.mesh.objects_timeout_s
    try:
        at_length(lambda get_further: _wait(saving, limit_s, get_further), saving.what)
    except BaseException:
        saving.done.cancel()  # whatever comes of it is not put in its place
        session.pieces_group = None  # its ranks may be at different places
        raise


def _end_at_exit(session: Session) -> None:
    """Its thread would end with Python."""
    saving, session.saving = session.saving, None
    if saving is not None:
        with suppress(Exception):  # it has been said
            _wait(saving, session.mesh.objects_timeout_s, lambda: None)


def _wait(saving: Saving, limit_s: float, get_further: Callable[[], None]) -> None:
    """Raises what the save did, CheckpointError where nothing is written for so long."""
    size, since = -1, time.monotonic()
    while True:
        try:
            saving.done.result(_POLL_S)
            return
        except NotYetError:
            if saving.done.done():
                raise
        found = _bytes_in(saving.folder)
        if found != size:
            size, since = found, time.monotonic()
            get_further()
        elif time.monotonic() - since > limit_s:
            raise CheckpointError(f"nothing was written to {saving.folder} for {limit_s:g} s")


def group_of(session: Session) -> Any:
    """All ranks on their CPUs, for pieces alone: they may be written while others are at work.
    Collective when it is made."""
    if session.pieces_group is None:
        session.pieces_group = dist.new_group(backend="gloo", timeout=_LONGEST)
    return session.pieces_group


def _bytes_in(folder: str) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder))
    except OSError:  # it has just been put in its place
        return -2


def _bytes_of(file: str) -> int:
    with open(file, "rb") as opened:  # a file system of several hosts looks again then
        return os.fstat(opened.fileno()).st_size

"""How a group comes to its communicator, or does without one.

It must always start. All ranks say first whether they can load the core; where one cannot, all of
them use gloo. Where the core is there but the group cannot be made with it, gloo too, and the
reason is said once.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster_collectives.binding.communicator import Communicator
from muster_collectives.runtime.errors import CollectiveError, CoreError, SettingsError
from muster_collectives.torch.cuda.settings import read_settings as read_device_settings
from muster_collectives.torch.store import TorchStore, meet, vote

__all__ = ["Made", "group_timeout_s", "make_communicator", "member_text"]

_log = logging.getLogger("muster_collectives")
_SHOWN_RANKS = 8
_VOTE_S = 10.0  # after the deadline of making the group, for the slowest rank to say how it ended
_WRONG = "settings: "


@dataclass(frozen=True)
class Made:
    """What a new process group is made of. `communicator` None: CPU tensors go to gloo, `why` says
    the reason. `life` is the prefix in the store that only this making of the group has."""

    communicator: Communicator | None
    life: str
    why: str = ""


def member_text(group_id: str, ranks: list[int]) -> str:
    """A group's name as errors say it: `world`, or its name and its global ranks."""
    if not ranks:
        return "world"
    shown = " ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" ... {ranks[-1]}" if len(ranks) > _SHOWN_RANKS else ""
    return f"{group_id} (global ranks {shown}{more})"


def group_timeout_s(timeout: timedelta | None, environ: Mapping[str, str]) -> float:
    """The group's deadline: what the program said; COLLECTIVES_TIMEOUT_S where it said nothing."""
    default: timedelta = dist.distributed_c10d.default_pg_timeout
    if timeout is not None and timeout != default:
        return timeout.total_seconds()
    try:
        named = float(environ.get("COLLECTIVES_TIMEOUT_S", "") or 0)
    except ValueError:
        named = 0.0  # the core's settings raise for it
    return named if named > 0 else default.total_seconds()


def make_communicator(store: Any, rank: int, size: int, name: str, timeout_s: float) -> Made:
    """Collective over the group's ranks. Raises RendezvousError, and SettingsError on all ranks
    where a variable of one of them cannot be used."""
    problem = _problem()
    life, words = meet(store, rank, size, name, problem, timeout_s)
    _raise_settings(words, name, rank)
    if any(words):
        why = _said("the core cannot be used", words)
        if rank == 0:
            _tell_once(why)
        return Made(None, life, why)
    began = time.monotonic()
    wrong: SettingsError | None = None
    try:
        from muster_collectives.core import connect

        communicator = connect(
            TorchStore(store, life), rank, size, name=name, timeout_s=timeout_s, layer=None
        )
        failed = ""
    except SettingsError as error:  # on all ranks, unless one has lost the store
        communicator, wrong, failed = None, error, f"{_WRONG}{error}"
    except (CollectiveError, OSError) as error:
        communicator, failed = None, str(error) or type(error).__name__
    # a rank whose making failed at once votes long before one that has waited for the deadline
    left_s = max(0.0, began + timeout_s - time.monotonic())
    words = vote(store, rank, size, life, failed, left_s + _VOTE_S)
    if not any(words):
        return Made(communicator, life)
    if communicator is not None:
        communicator.close()
    if wrong is not None:
        raise wrong
    _raise_settings(words, name, rank)
    why = _said("the group could not be made with the core", words)
    if rank == 0:
        _log.warning("group %r: %s; CPU tensors go to gloo", name, why)
    return Made(None, life, why)


def _problem() -> str:
    """Why this rank cannot use the core; "" if it can."""
    try:
        from muster_collectives.binding import library
        from muster_collectives.runtime import settings
    except ImportError as error:
        return f"muster_collectives.core cannot be imported: {error}"
    try:
        found = settings.read(os.environ)
        read_device_settings(os.environ)
    except SettingsError as error:
        return f"{_WRONG}{error}"
    if found.gloo:
        return "COLLECTIVES_GLOO=1"
    try:
        library.load(found.core)
    except CoreError as error:
        return f"{error.message} (fix: {error.fix})"
    return ""


def _raise_settings(words: tuple[str, ...], name: str, rank: int) -> None:
    wrong = [number for number, word in enumerate(words) if word.startswith(_WRONG)]
    if wrong:
        raise SettingsError(
            f"group {name!r}: rank {wrong[0]}: {words[wrong[0]].removeprefix(_WRONG)}",
            group=name, rank=rank, ranks=wrong,
        )  # fmt: skip


@functools.cache
def _tell_once(why: str) -> None:
    """Every group of a process lacks the core for the same reason: the first one says so."""
    _log.warning("%s; CPU tensors go to gloo", why)


def _said(what: str, words: tuple[str, ...]) -> str:
    rank, word = next((number, word) for number, word in enumerate(words) if word)
    return f"{what}: rank {rank}: {word.splitlines()[0]}"

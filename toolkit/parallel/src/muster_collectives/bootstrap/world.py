"""The world of a job without torch: `init` finds the others, `new_group` takes some of them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from muster_collectives.binding.communicator import Communicator
from muster_collectives.bootstrap import rendezvous
from muster_collectives.bootstrap.agreement import Agreement
from muster_collectives.bootstrap.connect import connect
from muster_collectives.bootstrap.rendezvous import Rendezvous
from muster_collectives.runtime import environment
from muster_collectives.runtime.environment import Where
from muster_collectives.runtime.errors import UsageError
from muster_collectives.runtime.settings import Settings
from muster_collectives.runtime.settings import read as read_settings
from muster_collectives.runtime.store import LocalStore, PrefixStore

WORLD = "world"


def init(
    *,
    timeout_s: float | None = None,
    environ: Mapping[str, str] | None = None,
    layer: str = "core",
) -> Communicator:
    """The group of all ranks of the job, from what torchrun, mpirun or muster have set.

    `timeout_s` bounds the meeting and is the deadline of calls that give none
    (COLLECTIVES_TIMEOUT_S, 1800 s). Closing it closes rank 0's store as well. A process without a
    launcher is a world of one. `layer`: who calls, for the summary of the run.
    Raises SettingsError, RendezvousError, CollectiveTimeout that names who has not come.
    """
    environ = os.environ if environ is None else environ
    settings = read_settings(environ)
    where = environment.read(environ)
    limit_s = settings.timeout_s if timeout_s is None else timeout_s
    began = time.monotonic()
    store = _meet(where, limit_s, settings)
    try:
        left_s = max(1.0, limit_s - (time.monotonic() - began))
        made = connect(store, where.rank, where.size, name=WORLD, timeout_s=left_s,
                       settings=settings, environ=environ, layer=layer,
                       global_ranks=range(where.size))  # fmt: skip
        try:
            # rank 0 may close, and its store with it, once nobody needs it for this any more
            Agreement(PrefixStore(store, "in"), where.rank, where.size, WORLD, left_s).barrier()
        except BaseException:
            made.close()
            raise
    except BaseException:
        store.close()
        raise
    made.timeout_s, made.store, made.on_close = limit_s, store, store.close
    return made


def new_group(
    parent: Communicator, ranks: Sequence[int], *, timeout_s: float | None = None
) -> Communicator | None:
    """A group of these ranks of `parent`, numbered as they stand. All ranks of `parent` call it in
    the same order; those that are not in it get None. `parent` comes from `init` or `new_group`."""
    ranks = tuple(ranks)
    if parent.store is None:
        raise UsageError(
            f"group {parent.name!r} has no store of its own", "make groups with connect and a store"
        )
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < parent.size for rank in ranks):
        raise UsageError(
            f"ranks {list(ranks)} are not {len(ranks)} ranks of group {parent.name!r}",
            f"different ranks from 0 to {parent.size - 1}",
        )
    parent.children += 1
    name = f"{parent.name}.{parent.children}"
    if parent.rank not in ranks:
        return None
    made = connect(
        parent.store, ranks.index(parent.rank), len(ranks), name=name,
        timeout_s=parent.timeout_s if timeout_s is None else timeout_s,
        global_ranks=[parent.global_ranks[each] for each in ranks],
    )  # fmt: skip
    made.store = parent.store
    return made


def _meet(where: Where, limit_s: float, settings: Settings) -> Rendezvous | LocalStore:
    """The store of the world."""
    if where.size == 1:
        return LocalStore()
    secret = rendezvous.secret_of(where.port, where.size, where.run, settings.key)
    return rendezvous.join(
        where.host, where.port + where.has_store_at_port, where.rank, where.size,
        secret=secret, timeout_s=limit_s,
    )  # fmt: skip

"""How the ranks meet before there are groups: torch's store, and one exchange of words over it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from muster_modelparallel.errors import ModelParallelError
from muster_modelparallel.run.launched_rank import ALONE, LaunchedRank, launched_rank

JOIN_S = 600.0  # for ranks whose hosts load their packages at very different speeds
_LEAVING_S = 10.0
_LATER_S = 5.0  # what rank 0 says last is still heard


class JobStore(NamedTuple):
    """A store that all ranks reach, and who we are at it."""

    store: Any
    me: LaunchedRank

    def exchange(self, word: str, limit_s: float = JOIN_S) -> tuple[str, ...]:
        """The words of all ranks, by rank. Raises ModelParallelError that names who did not come
        within so many seconds. Rank 0 returns last, so that it may end at once, and its store.
        """
        rank, size = self.me.rank, self.me.size
        if size == 1:
            return (word,)
        # how often this rank has done this: a process may start, end and start again
        turn = int(self.store.add(f"turn/{rank}", 1))
        self.store.set(f"{turn}/word/{rank}", word)
        if rank == 0:
            answer = self._gather(turn, limit_s)
            self.store.set(f"{turn}/answer", json.dumps(answer))
        else:
            answer = json.loads(self._get(f"{turn}/answer", limit_s + _LATER_S) or '{"missing": 0}')
        self._leave(turn)
        if "missing" in answer:
            other = answer["missing"]
            raise ModelParallelError(
                f"rank {rank} waited for rank {other} in smp.init(), which did not come",
                f"all {size} ranks must call smp.init(); see whether rank {other} ended",
            )
        words = tuple(answer["words"])
        return words if len(words) == size else words * size

    def _gather(self, turn: int, limit_s: float) -> dict[str, Any]:
        """On rank 0: all words, or one where all are the same; or who is missing."""
        end = time.monotonic() + limit_s
        words = []
        for other in range(self.me.size):
            word = self._get(f"{turn}/word/{other}", end - time.monotonic())
            if word is None:
                return {"missing": other}
            words.append(word)
        return {"words": words if len(set(words)) > 1 else words[:1]}

    def _get(self, key: str, limit_s: float) -> str | None:
        """The value; None where nobody has set it in time, or the store is gone."""
        try:
            self.store.wait([key], timedelta(seconds=max(0.001, limit_s)))
            return bytes(self.store.get(key)).decode()
        except dist.DistError:
            return None

    def _leave(self, turn: int) -> None:
        with suppress(dist.DistError):
            self.store.add(f"{turn}/left", 1)
        end = time.monotonic() + _LEAVING_S
        while self.me.rank == 0 and int(self.store.add(f"{turn}/left", 0)) < self.me.size:
            if time.monotonic() > end:
                return  # who has not read yet has other troubles
            time.sleep(0.002)


def job_store(environ: Mapping[str, str], known: JobStore | None = None) -> JobStore:
    """The store of a process group that exists already, of the launcher, or of rank 0; in memory
    for a process that is alone. `known`, from an earlier `init`, is taken again for the same rank.
    Raises SettingsError for variables that cannot be used, ModelParallelError where rank 0 is not
    reached."""
    me = launched = launched_rank(environ)
    if dist.is_initialized():
        me = me._replace(rank=dist.get_rank(), size=dist.get_world_size())
        store = dist.distributed_c10d._get_default_store()
    elif known is not None and known.me == me:
        return known
    elif me.size == 1:
        store = dist.HashStore()
    else:
        store = _remote(me, environ)
    found = JobStore(dist.PrefixStore("modelparallel", store), me)
    return found if me in (launched, ALONE) else _on_its_host(found)


def _on_its_host(found: JobStore) -> JobStore:
    """The script began the process group and no launcher says who is on one host: hosts' names
    do."""
    hosts = found.exchange(socket.gethostname())
    rank = found.me.rank
    same = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    return found._replace(me=found.me._replace(local_rank=same.index(rank), local_size=len(same)))


def _remote(me: LaunchedRank, environ: Mapping[str, str]) -> Any:
    is_launchers = environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"
    try:
        store = dist.TCPStore(
            me.host, me.port, me.size, me.rank == 0 and not is_launchers,
            timeout=timedelta(seconds=JOIN_S), wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
    except (dist.DistError, RuntimeError) as error:
        raise ModelParallelError(
            f"rank {me.rank} of {me.size} cannot meet the others at {me.host}:{me.port} "
            f"({str(error).splitlines()[0]})",
            "MASTER_ADDR and MASTER_PORT must be rank 0's host and a free port of it, on all ranks",
        ) from error
    # a launcher's store may serve all attempts of a job
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_launchers else "0"
    return dist.PrefixStore(f"attempt-{attempt}", store)

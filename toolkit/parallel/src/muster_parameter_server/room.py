"""What the connections of one server share: who is there, whose turn it is, what went wrong.

Every method is called by the thread of one worker's connection, and may let it wait for others.
Consistency. sync: an update happens when all workers have pushed the step; then all go on.
async: an update happens at once; the worker goes on when it is at most `staleness` clocks ahead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from torch import Tensor

from muster_parameter_server.clocks import Clocks, Rounds
from muster_parameter_server.errors import (
    AgreementError,
    DeadlineError,
    ParameterServerError,
    ProtocolError,
    WorkerLostError,
)
from muster_parameter_server.layout import segments
from muster_parameter_server.options import SYNC, Hyper, Registration, differences
from muster_parameter_server.settings import ServerSettings
from muster_parameter_server.shard import Kept, Shard
from muster_parameter_server.wire.channel import Channel, GoneError
from muster_parameter_server.wire.frames import Kind

_LOOK_S = 0.25  # so often a waiting thread looks whether its own worker is still there
_WAIT_EVERY_S = 1.0  # a worker that waits while others' tensors come is told so


class Room:
    """The state that a server's connections share. Methods raise ParameterServerError when the job
    cannot go on, GoneError for a lost peer."""

    def __init__(self, settings: ServerSettings, on_end: Callable[[], None]) -> None:
        self.me = f"server {settings.number} at {settings.address}"
        self._settings = settings
        self._on_end = on_end
        self._changed = threading.Condition()
        self._channels: dict[int, Channel] = {}
        self._first: tuple[int, Registration] | None = None
        self._agreed: set[int] = set()
        # when all workers but one had said goodbye, on the monotonic clock; None before that
        self.others_left: float | None = None
        self._rounds = Rounds(settings.workers)
        self._turn = 0
        self._clocks = Clocks(settings.workers, None)
        self._shard: Shard | None = None
        self.failure: ParameterServerError | None = None

    @property
    def registration(self) -> Registration:
        if self._first is None:
            raise ProtocolError("nothing was registered yet")
        return self._first[1]

    @property
    def shard(self) -> Shard:
        if self._shard is None:
            raise ProtocolError("nothing was registered yet")
        return self._shard

    @property
    def anyone(self) -> bool:
        """Whether a worker has ever come."""
        return bool(self._channels)

    @property
    def finished(self) -> bool:
        return len(self._clocks.gone) == self._settings.workers

    def enter(self, rank: int, channel: Channel) -> None:
        """Raises ProtocolError, which concerns this peer alone."""
        with self._changed:
            self._require_fine()
            if rank >= self._settings.workers:
                raise ProtocolError(
                    f"{self.me} has {self._settings.workers} workers, so there is no rank {rank}",
                    "set PARAMETER_SERVER_WORKERS to the workers' WORLD_SIZE",
                )
            if rank in self._channels:
                raise ProtocolError(
                    f"rank {rank} is connected to {self.me} already",
                    "give every worker its own RANK, and connect once in each",
                )
            self._channels[rank] = channel

    def register(self, rank: int, told: Registration) -> None:
        """Waits until all workers have registered the same."""
        with self._changed:
            self._require_fine()
            self._compare(rank, told)
            self._agreed.add(rank)
            everyone = set(range(self._settings.workers))
            if self._agreed == everyone:
                mine = segments(told.tensors, len(told.servers))[self._settings.number]
                self._shard = Shard(mine, told)
                self._clocks = Clocks(told.workers, told.staleness)
                self._changed.notify_all()
            self._wait(
                rank, "connect", lambda: self._shard is not None,
                lambda: sorted(everyone - self._agreed),
            )  # fmt: skip

    def meet(self, rank: int, what: str, kept: Kept | None = None) -> None:
        """Waits until all workers have come to the same point. `kept`: what rank 0 has brought
        beside the values of a load."""
        with self._changed:
            if kept is not None:
                self.shard.load(kept)
            self._together(rank, what, None, lambda: None)

    def push(self, rank: int, step: int, hyper: tuple[Hyper, ...]) -> int:
        """Uses the gradient in the rank's inbox; returns when the worker may begin another.

        The result is the number of updates that made what the worker is sent.
        """
        with self._changed:
            self._require_fine()
            clocks, what = self._clocks, f"push of step {step}"
            if step != clocks.of[rank]:
                raise ProtocolError(
                    f"rank {rank} pushed step {step} where {clocks.of[rank]} was due"
                )
            if self.registration.mode == SYNC:
                everyone = range(self._settings.workers)
                self._together(rank, what, hyper, lambda: self._update(everyone, hyper))
            else:
                self._update((rank,), hyper)
                self._changed.notify_all()
                self._wait(rank, what, lambda: not clocks.behind(rank), lambda: clocks.behind(rank))
                self.shard.copy_out(rank)
            return self.shard.done

    def pull(self, rank: int) -> int:
        """Makes the worker's parameters one version, whatever others push; its number."""
        with self._changed:
            if self.registration.mode != SYNC:
                self.shard.copy_out(rank)
            return self.shard.done

    def state(self) -> tuple[int, list[Tensor]]:
        """The optimizer's state as one version, with its number; copies where others may write."""
        with self._changed:
            found = self.shard.state()
            if self.registration.mode != SYNC:
                found = [one.clone() for one in found]
            return self.shard.done, found

    def leave(self, rank: int) -> None:
        """The worker has said goodbye. In sync mode those that wait for it cannot go on."""
        with self._changed:
            self._clocks.gone.add(rank)
            if len(self._clocks.gone) == self._settings.workers - 1:
                self.others_left = time.monotonic()
            self._changed.notify_all()
            finished = self.finished
        if finished:
            self._on_end()

    def lost(self, rank: int, why: str) -> WorkerLostError:
        """The error for a worker that went away without goodbye."""
        return WorkerLostError(
            f"rank {rank} was lost at step {self._clocks.of[rank]}, says {self.me}: {why}",
            f"look at the output of rank {rank}: it failed or was killed first",
        )

    def fail(self, error: ParameterServerError) -> None:
        """The first error ends the job: all threads wake and tell their workers."""
        with self._changed:
            if self.failure is not None or self.finished:
                return
            self.failure = error
            channels = list(self._channels.values())
            self._changed.notify_all()
        for channel in channels:
            channel.wake()
        self._on_end()

    def _compare(self, rank: int, told: Registration) -> None:
        here = (self._settings.workers, len(self._settings.addresses))
        if (told.workers, len(told.servers)) != here:
            raise AgreementError(
                f"rank {rank} was told of {told.workers} workers and {len(told.servers)} servers, "
                f"but {self.me} of {here[0]} workers and {here[1]} servers",
                "set the variables alike everywhere",
            )
        if self._first is None:
            self._first = (rank, told)
        first, known = self._first
        for name, theirs, ours in differences(known, told):
            raise AgreementError(
                f"rank {rank} and rank {first} disagree on {name}: rank {rank} has {ours}, "
                f"rank {first} {theirs}",
                "pass the same tensors and options on every worker",
            )

    def _update(self, ranks: Sequence[int], hyper: tuple[Hyper, ...]) -> None:
        self.shard.update(ranks, hyper)
        for rank in ranks:
            self._clocks.of[rank] += 1

    def _together(self, rank: int, what: str, part: object, act: Callable[[], None]) -> None:
        """Waits until all have come; the last one acts before all go on."""
        self._require_fine()
        turn = self._turn
        if self._rounds.bring(rank, what, part):
            act()
            self._rounds.clear()
            self._turn += 1
            self._changed.notify_all()
        self._wait(rank, what, lambda: self._turn > turn, self._rounds.missing)

    def _wait(
        self, rank: int, what: str, ready: Callable[[], bool], missing: Callable[[], Sequence[int]]
    ) -> None:
        limit_s = self.registration.timeout_s
        began = said = time.monotonic()
        moved = self._moved(missing())
        while not ready():
            self._require_fine()
            self._require_present(rank, what, missing())
            now, before, moved = time.monotonic(), moved, self._moved(missing())
            if any(count > before.get(other, count) for other, count in moved.items()):
                began = now  # their tensors are on the way, which is no silence
                if now - said > _WAIT_EVERY_S:
                    self._channels[rank].send(Kind.WAIT, {}, _WAIT_EVERY_S)
                    said = now
            left = began + limit_s - now
            if left <= 0:
                raise DeadlineError(
                    f"rank {rank} waited {limit_s:g} s at {self.me} in its {what} for "
                    f"{self._places(missing())}",
                    "find out what those workers do; timeout_s of connect sets the time",
                )
            self._changed.wait(min(left, _LOOK_S))
            if self._channels[rank].is_gone() and self.failure is None:
                raise GoneError("it closed the connection while it waited for others")

    def _moved(self, ranks: Sequence[int]) -> dict[int, int]:
        """Bytes that came from those of the workers that are connected."""
        return {rank: self._channels[rank].moved for rank in ranks if rank in self._channels}

    def _require_fine(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _require_present(self, rank: int, what: str, missing: Sequence[int]) -> None:
        for other in missing:
            if other in self._clocks.gone:
                raise WorkerLostError(
                    f"rank {other} has said goodbye after {self._clocks.of[other]} steps, so the "
                    f"{what} of rank {rank} cannot be completed",
                    "give every worker the same number of steps, or use mode='async'",
                )

    def _places(self, ranks: Sequence[int]) -> str:
        if self._shard is None:
            return ", ".join(f"rank {rank}, which has not connected" for rank in ranks)
        return ", ".join(f"rank {rank}, at step {self._clocks.of[rank]}" for rank in ranks)

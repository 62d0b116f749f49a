"""What can be done to the hosts and ranks of one run: an interface, one for each kind of host."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from muster.types.values import NamedTuple

PERIOD_S = 0.1  # of what is slow: a part of it stands still
SLOWED_S = 8.0  # for a period to come to its end


class NotLandedError(Exception):
    """The fault did not hit anybody: a sentence that says why."""


class Target(NamedTuple):
    """A rank, or with `rank` None a whole host. `pid`: of the rank's script, as its host counts;
    `pid_namespace`: in which it counts, None when unknown."""

    host: str
    rank: int | None = None
    pid: int = 0
    pid_namespace: int | None = None

    def in_words(self) -> str:
        if self.rank is None:
            return self.host
        return f"rank {self.rank} (pid {self.pid}) of {self.host}"


class Means(ABC):
    """Used by one thread at a time for each target; every call ends within seconds.

    Each returns once it is proved to have landed, and raises NotLandedError.
    """

    @abstractmethod
    def kill(self, target: Target) -> None:
        """SIGKILL to a script; of a host, as a machine that loses its power."""

    @abstractmethod
    def freeze(self, target: Target) -> None:
        """Every process of the target stands still."""

    @abstractmethod
    def thaw(self, target: Target) -> None:
        """The inverse of `freeze`; what has ended meanwhile is passed over."""

    def slow(self, target: Target, percent: int) -> Callable[[], None]:
        """The target runs for so much of each period, and stands still for the rest. What is
        returned ends that, and nothing else that slows it; what has ended is passed over."""
        self.freeze(target)
        slowing = _Slowing(self, target, percent)
        slowing.start()
        return slowing.end

    def cut(self, one: str, other: str) -> None:
        """What one host sends to the other is lost, both ways, without a word."""
        raise NotLandedError("these hosts have no network of their own")

    def fill(self, host: str) -> None:
        """Nothing more can be written on the host's disk, nor in its temporary folders."""
        raise NotLandedError("these hosts have no disk of their own")

    def empty(self, host: str) -> None:
        """The inverse of `fill`."""
        raise NotLandedError("these hosts have no disk of their own")

    def heal(self, one: str, other: str) -> None:
        """The inverse of `cut`."""
        raise NotLandedError("these hosts have no network of their own")


class _Slowing(threading.Thread):
    """Lets a target run for `percent` of each period. It stands still when this begins."""

    def __init__(self, means: Means, target: Target, percent: int) -> None:
        super().__init__(name="slowing", daemon=True)
        self._means = means
        self._slowed = target
        self._runs_s = PERIOD_S * percent / 100
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.wait(PERIOD_S - self._runs_s):
                self._means.thaw(self._slowed)
                if self._over.wait(self._runs_s):
                    break
                self._means.freeze(self._slowed)
        except NotLandedError:
            pass  # it has ended
        self._means.thaw(self._slowed)

    def end(self) -> None:
        self._over.set()
        self.join(SLOWED_S)

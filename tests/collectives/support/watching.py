"""What a rank does at the moment at which it waits for another in a call, and no sooner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from muster_collectives.core import Communicator

_LOOK_S = 0.005


def once_it_waits(comm: Communicator, act: Callable[[], None]) -> AbstractContextManager[None]:
    """Another thread does `act` once this one waits in a call of `comm`, made in the block.

    A mark before the call would say too much: a signal that is sent on it may land in the lines
    that lead to the call. A block that ends without a wait ends without `act`.
    """
    return once(_looking(comm), act)


@contextmanager
def once(is_so: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
    """Another thread does `act` once it is so, which this one brings about in the block."""
    ended = threading.Event()

    def watch() -> None:
        while not is_so():
            if ended.wait(_LOOK_S):
                return
        act()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _looking(comm: Communicator) -> Callable[[], bool]:
    """Tells any thread whether the one that asks here has begun to wait since."""
    before = comm.stats().sleeps
    return lambda: comm.stats().sleeps > before

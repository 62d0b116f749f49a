"""A supervised process whose shim goes at a bad moment."""

from __future__ import annotations

import os
import signal

from muster.run.base.logs import Pump
from muster.run.base.loop import Loop
from muster.run.child.child import Child
from muster.run.child.shim_handle import ShimHandle
from muster.run.child.shims import ShimPool

LIMIT_S = 20.0


class _Noted(Child):
    def __init__(self, loop: Loop) -> None:
        super().__init__(loop, "a process", None)
        self.loop = loop
        self.ends: list[tuple[str, int]] = []

    def on_end(self) -> None:
        self.ends.append(("end", self.status))

    def on_gone(self) -> None:
        self.ends.append(("gone", self.status))
        self.loop.stop()


def test_the_end_of_a_shim_that_dies_before_its_order_is_noted() -> None:
    """The spare has said that it is there, and dies after it was taken for a process."""
    loop, pump = Loop(), Pump()
    pool, child = ShimPool(loop), _Noted(loop)

    class Taker:
        def registered(self, handle: ShimHandle, out_fd: int, err_fd: int) -> None:
            os.close(out_fd)
            os.close(err_fd)
            child.begin(handle, pump, (), ["true"], {}, "/")

        def exited_before_register(self, role: str) -> None:
            raise AssertionError(role)

    def take_the_dying_spare() -> None:
        if not pool.all:
            loop.after(0.01, take_the_dying_spare)
            return
        (handle,) = pool.all
        pool.spawn("rank:0", {}, Taker())  # its registration is handed over in the loop's next turn
        os.kill(handle.shim_pid, signal.SIGKILL)
        os.waitpid(handle.shim_pid, 0)

    try:
        pool.serve(Taker(), lambda handle: handle.child and handle.child.changed())
        pool.warm_up(dict(os.environ))
        loop.after(0.0, take_the_dying_spare)
        loop.after(LIMIT_S, loop.stop)
        loop.run()
    finally:
        pool.close()
    assert child.ends == [("end", 127), ("gone", 127)]

"""What observes takes nothing away from the loop that it borrows."""

from __future__ import annotations

import os

from muster.run.base.loop import Loop
from muster.run.observe.guard import GuardedLoop


def test_a_descriptor_that_was_closed_beside_it_is_another_ones_at_the_end() -> None:
    """A rank that ends while it is asked closes its agent's, and the next socket has the number."""
    loop, heard = Loop(), list[int]()
    guarded = GuardedLoop(loop, lambda error: None)
    reader, writer = os.pipe()
    guarded.watch(reader, lambda _events: heard.append(0))
    loop.forget(reader)
    loop.watch(reader, lambda _events: (heard.append(1), loop.stop())[0])
    guarded.end()
    os.write(writer, b"x")
    loop.after(5.0, loop.stop)
    loop.run()
    assert heard == [1]
    loop.close()
    os.close(reader)
    os.close(writer)


def test_what_it_watches_is_forgotten_at_the_end() -> None:
    loop, heard = Loop(), list[int]()
    guarded = GuardedLoop(loop, lambda error: None)
    reader, writer = os.pipe()
    guarded.watch(reader, lambda _events: heard.append(0))
    guarded.end()
    os.write(writer, b"x")
    loop.after(0.05, loop.stop)
    loop.run()
    assert not heard
    loop.close()
    os.close(reader)
    os.close(writer)

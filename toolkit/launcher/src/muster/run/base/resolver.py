"""Name look-ups off the loop's thread: a slow name server must not stop heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from muster.run.base.loop import Loop


def in_background(
    loop: Loop, look_up: Callable[[], Sequence[str]], done: Callable[[Sequence[str]], None]
) -> None:
    """Calls `look_up` on its own thread and `done` with its answer on the loop's thread.

    Any error counts as no answer: a name that no resolver takes, a thread that cannot be started.
    """

    def run() -> None:
        try:
            answer: Sequence[str] = look_up()
        except Exception:  # the caller waits for an answer
            answer = ()
        loop.post(lambda: done(answer))

    try:
        threading.Thread(target=run, name="resolver", daemon=True).start()
    except RuntimeError:
        loop.post(lambda: done(()))

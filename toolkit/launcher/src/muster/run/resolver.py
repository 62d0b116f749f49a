"""Name look-ups off the loop's thread: a slow name server must not stop heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from muster.run.loop import Loop


def in_background(
    loop: Loop, look_up: Callable[[], Sequence[str]], done: Callable[[Sequence[str]], None]
) -> None:
    """Calls `look_up` on a thread of its own and `done` with its answer on the loop's thread.

    An error of the look-up counts as no answer: a name that no resolver takes raises ValueError.
    """

    def run() -> None:
        try:
            answer: Sequence[str] = look_up()
        except (OSError, ValueError):
            answer = ()
        loop.post(lambda: done(answer))

    threading.Thread(target=run, name="resolver", daemon=True).start()

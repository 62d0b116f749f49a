"""Calls that may block for ever (a mount that does not answer), each on its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call that runs beside its caller from the moment this is made; `done` is called when it has
    ended. Where no thread can be had it runs in the caller's, who then waits for it."""

    def __init__(
        self, name: str, call: Callable[[], T], done: Callable[[], None] = lambda: None
    ) -> None:
        self._call = call
        self._done = done
        self._ended = threading.Event()
        self._values: list[T] = []
        self._error: Exception | None = None
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:  # the limit of processes counts threads too
            self._run()

    def _run(self) -> None:
        try:
            self._values.append(self._call())
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()
            self._done()

    def ended(self, limit_s: float | None = None) -> bool:
        """Waits for its end, for at most `limit_s`; whether it has come."""
        return self._ended.wait(limit_s)

    def result(self) -> T:
        """What the call returned, once it has; raises what it raised."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._values[0]

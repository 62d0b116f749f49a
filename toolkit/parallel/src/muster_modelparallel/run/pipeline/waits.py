"""What a rank waits for: said once where it takes long, and in the error where it never comes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from muster_modelparallel.errors import ExchangeError, ModelParallelError

_log = logging.getLogger("muster_modelparallel")
LONG_S = 30.0


class Waits:
    """The waits of one rank, one at a time. After LONG_S seconds of one a line in the log says who
    waits for what: the wait goes on."""

    def __init__(self) -> None:
        self._long_s = LONG_S
        self._now: _Wait | None = None
        self._thread: threading.Thread | None = None

    def waiting(self, what: str | Callable[[], str]) -> _Wait:
        """`what`: "stage 1 (rank 1) waits for ...", or what says so when it is asked. Raises
        ExchangeError with these words where torch raises an error of its own: the other rank is
        gone, or too late."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="waits")
            self._thread.start()
        return _Wait(self, what)

    def _watch(self) -> None:
        """On a thread of its own: the wait itself is in torch, where nothing can be said."""
        said: _Wait | None = None
        while True:
            time.sleep(self._long_s / 4)
            now = self._now
            if now is None or now is said:
                continue
            took_s = time.monotonic() - now.since
            if took_s >= self._long_s:
                said = now
                _log.warning("%s, since %.0f s", now, took_s)


class _Wait:
    """One wait, which is a context; a class, for each message has two of them."""

    __slots__ = ("_waits", "_what", "since")

    def __init__(self, waits: Waits, what: str | Callable[[], str]) -> None:
        self._waits, self._what = waits, what
        self.since = time.monotonic()

    def __str__(self) -> str:
        return self._what if isinstance(self._what, str) else self._what()

    def __enter__(self) -> None:
        self._waits._now = self

    def __exit__(self, kind: Any, error: BaseException | None, _: object) -> None:
        self._waits._now = None
        if isinstance(error, RuntimeError) and not isinstance(error, ModelParallelError):
            raise ExchangeError(
                f"{self}, which did not come: {type(error).__name__}: {error}",
                "look at the other rank's own error, which came first",
            ) from error

"""What a rank waits for: said once where it takes long, and in the error where it never comes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from muster_modelparallel.errors import ExchangeError, ModelParallelError

_log = logging.getLogger("muster_modelparallel")
LONG_S = 30.0


class _Wait(NamedTuple):
    what: str
    since: float


class Waits:
    """The waits of one rank, one at a time. After LONG_S seconds of one a line in the log says who
    waits for what: the wait goes on."""

    def __init__(self) -> None:
        self._long_s = LONG_S
        self._now: _Wait | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """`what`: "stage 1 (rank 1) waits for ...". Raises ExchangeError with these words where
        torch raises an error of its own: the other rank is gone, or too late."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="waits")
            self._thread.start()
        self._now = _Wait(what, time.monotonic())
        try:
            yield
        except ModelParallelError:
            raise
        except RuntimeError as error:
            raise ExchangeError(
                f"{what}, which did not come: {type(error).__name__}: {error}",
                "look at the other rank's own error, which came first",
            ) from error
        finally:
            self._now = None

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
                _log.warning("%s, since %.0f s", now.what, took_s)

"""Logs which path a slow file system makes the job wait for (F54)."""

from __future__ import annotations

import _thread  # `threading` costs more to import than everything else here

from muster.types.steps import Log


class Patience:
    """Logs one line when the block inside `with` takes longer than `after_s`."""

    def __init__(self, path: str, log: Log, after_s: float = 10.0) -> None:
        self._path = path
        self._log = log
        self._after_s = after_s
        self._done = _thread.allocate_lock()

    def __enter__(self) -> None:
        self._done.acquire()
        try:
            _thread.start_new_thread(self._watch, ())
        except RuntimeError:
            pass  # no thread can be had: it goes without the line

    def __exit__(self, *_: object) -> None:
        self._done.release()

    def _watch(self) -> None:
        if not self._done.acquire(timeout=self._after_s):
            self._log(
                "stage",
                "still reading",
                level="WARNING",
                path=self._path,
                waited_s=f"{self._after_s:g}",
            )

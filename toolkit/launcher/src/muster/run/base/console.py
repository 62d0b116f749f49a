"""The supervisor's own lines: one per event, `time host level component message key=value`.

They go to stderr from the job's log level on, and to `train.log` of the record from INFO on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from muster.run.base.logs import Pump
from muster.run.base.record import Recorder
from muster.types.plain import printable, wrapped

STDERR = 2
LOG = "train.log"
LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}


def format_line(host: str, level: str, component: str, message: str, facts: object) -> str:
    """One line; a value with spaces is quoted, line ends inside are shown as `\\n`."""
    pairs = facts.items() if isinstance(facts, dict) else ()
    text = " ".join([message, *(f"{name}={_value(value)}" for name, value in pairs)])
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"{stamp} {host} {level} {component} {text}".replace("\n", "\\n") + "\n"


def _value(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return f'"{text}"' if " " in text or not text else text


class Console:
    """The log of this host: writes through the pump, so that it never blocks.

    `mask` hides secrets. `wraps`: a person reads it on a screen. `mark`: comes before the block of
    a failure or a stop, on the screen.
    """

    def __init__(
        self,
        host: str,
        level: int,
        pump: Pump,
        recorder: Recorder,
        mask: Callable[[str], str],
        wraps: bool = False,
        mark: str = "",
    ) -> None:
        self._host = host
        self._level = level
        self._pump = pump
        self._keep = recorder.stream_log(LOG)
        self._mask = mask
        self._wraps = wraps
        self._mark = mark
        self._over = False

    def __call__(
        self, component: str, message: str, /, level: str = "INFO", **facts: object
    ) -> None:
        """Satisfies `types.steps.Log`."""
        rank = LEVELS.get(level, 20)
        if self._over or rank < min(self._level, LEVELS["INFO"]):
            return
        text = format_line(self._host, level, component, self._mask(message), facts)
        line = printable(self._mask(text))
        self._write(line, wrapped(line) if self._wraps else line, rank >= self._level)

    def last_block(self, notes: Iterable[str], block: str, marked: bool) -> None:
        """Several lines as they are: the summary and the block, `marked` when it is of a failure or
        a stop. No line of this host comes after them, not even of a thread that still works."""
        self._over = True
        before = "".join(printable(self._mask(note)) + "\n" for note in notes)
        last = printable(self._mask(block)) + "\n"
        self._write(before + last, before + self._mark * marked + last, True)

    def _write(self, kept: str, shown: str, is_shown: bool) -> None:
        if self._keep is not None:
            self._keep(kept.encode("utf-8", "replace"))
        if is_shown:
            self._pump.say(STDERR, shown.encode("utf-8", "replace"))

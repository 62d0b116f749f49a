"""The supervisor's own lines: one per event, `time host level component message key=value`."""

from __future__ import annotations

import time
from collections.abc import Callable

from muster.run.logs import Pump

STDERR = 2
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
    """Writes through the log pump, so that it never blocks. `mask` hides secrets."""

    def __init__(self, host: str, level: int, pump: Pump, mask: Callable[[str], str]) -> None:
        self._host = host
        self._level = level
        self._pump = pump
        self._mask = mask
        self._over = False

    def __call__(
        self, component: str, message: str, /, level: str = "INFO", **facts: object
    ) -> None:
        """Satisfies `spec.steps.Log`."""
        if not self._over and LEVELS.get(level, 20) >= self._level:
            line = format_line(self._host, level, component, self._mask(message), facts)
            self._pump.say(STDERR, self._mask(line).encode("utf-8", "replace"))

    def last_block(self, text: str) -> None:
        """Several lines as they are: the summary and the failure block. No line of this host comes
        after them (protocol.md 8), also none of a thread that is still at work."""
        self._over = True
        self._pump.say(STDERR, self._mask(text).encode("utf-8", "replace"))

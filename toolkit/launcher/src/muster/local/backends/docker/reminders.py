"""Which hosts get a stop signal again: pure, over what the hosts have shown so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping

AGAIN_S = 1.0
YOUNG_S = 60.0  # an older host that has shown nothing runs another toolkit: it gets one signal


class Reminders:
    """The kernel drops SIGTERM to PID 1 until that has handlers, and says nothing.

    So a host has certainly received only what was sent after its first event. `train` takes a
    second SIGTERM for the first. `started`: host -> when its container was started, 0 where that
    may be under way. Times are monotonic.
    """

    def __init__(
        self, now: float, started: Mapping[str, float], listening: Collection[str]
    ) -> None:
        """The first SIGTERM is sent to all now."""
        self._again_at = now + AGAIN_S
        young = {host for host, began in started.items() if not began or now - began < YOUNG_S}
        self._unsignalled = young.difference(listening)

    def is_due(self, now: float) -> bool:
        """Whether to look who is listening, and to ask `take`."""
        return bool(self._unsignalled) and now >= self._again_at

    def take(self, now: float, listening: Collection[str]) -> set[str]:
        """Whom to send it now; `listening`: hosts with an event."""
        due, self._again_at = self._unsignalled, now + AGAIN_S
        self._unsignalled = due.difference(listening)
        return due

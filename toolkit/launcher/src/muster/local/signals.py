"""Signals to `muster local` as events: nothing is interrupted half-way, nothing is missed."""

from __future__ import annotations

import os
import signal

from muster.types.errors import StoppedError

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Catches what asks a run to stop, from its making on. `fd` polls readable when one came."""

    def __init__(self) -> None:
        self.fd, wake_up = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(wake_up, False)
        signal.set_wakeup_fd(wake_up, warn_on_full_buffer=False)
        for number in STOPPING:
            # what the caller has set to be ignored (nohup, a shell's background job) stays ignored
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda caught, frame: None)

    def take(self) -> list[str]:
        """The names of the signals that came since the last call."""
        try:
            data = os.read(self.fd, 64)
        except BlockingIOError:
            return []
        return [signal.Signals(number).name for number in data if number in STOPPING]

    def check(self) -> None:
        """Raises StoppedError when a signal came; for work that polls nothing."""
        names = self.take()
        if names:
            raise StoppedError(f"stopped by {names[0]} before the hosts were started")

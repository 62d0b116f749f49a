"""What can go wrong, as one tree.

ParameterServerError
 |- SettingsError    variables or arguments that cannot be used: the user fixes them
 |- AgreementError   workers do not say the same: other options, tensors, learning rates or steps
 |- WorkerLostError  a worker went away without a goodbye, or before the others were done
 |- ServerLostError  a server cannot be reached, went away or was stopped
 |- DeadlineError    a wait took too long; names who was waited for
 `- ProtocolError    a peer broke the rules of the frames
"""

from __future__ import annotations

from collections.abc import Mapping


class ParameterServerError(RuntimeError):
    """An error that a person reads: who, at which step, what happened, and in `fix` what to do."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(f"{message}\n  Fix: {fix}" if fix else message)
        self.message = message
        self.fix = fix


class SettingsError(ParameterServerError, ValueError):
    """A variable or an argument cannot be used."""


class AgreementError(ParameterServerError):
    """Workers do not say the same; the message names both and what differs."""


class WorkerLostError(ParameterServerError):
    """A worker is gone; the message names its rank and the step."""


class ServerLostError(ParameterServerError):
    """A server is gone; the message names its address and the step."""


class DeadlineError(ParameterServerError, TimeoutError):
    """A wait took longer than `timeout_s`; the message names who was waited for."""


class ProtocolError(ParameterServerError):
    """What a peer sent is no frame of ours, or not the one that was due."""


_BY_NAME = {kind.__name__: kind for kind in ParameterServerError.__subclasses__()}


def to_message(error: ParameterServerError) -> dict[str, object]:
    """The error as what an ERROR frame carries."""
    return {"class": type(error).__name__, "message": error.message, "fix": error.fix}


def from_message(message: Mapping[str, object]) -> ParameterServerError:
    """The error of an ERROR frame; a class that is unknown becomes ParameterServerError."""
    kind = _BY_NAME.get(str(message.get("class")), ParameterServerError)
    return kind(str(message.get("message", "a server failed")), str(message.get("fix", "")))

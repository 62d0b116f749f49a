"""What can go wrong, as one tree. Each class has an exit code and says who can fix it.

MusterError
 |- ConfigError       100  the job request or its files            the user
 |- SourceError       101  fetching or unpacking the user's code   the user
 |- InstallError      101  requirements or packages of the user    the user
 |- ClusterError      102  hosts that do not join or resolve       the platform, retry
 |- PeerError         102  a host that was lost during the run     the platform, retry
 |- HangError         103  ranks that wait for ever (MUSTER_HANG_S) the user
 |- InternalError     105  a defect of muster                      us
 |- LaunchError       106  the launcher ended before its ranks     the platform, retry
 |- UserScriptError   the code of the first failing rank           the user
 `- StoppedError      143  stopped from outside                    no one, resume
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.types.values import NamedTuple

STOPPED_EXIT_CODE = 143
SUCCEEDED, FAILED, STOPPED = "succeeded", "failed", "stopped"  # how a job ended, for people
# 104 is kept for lost devices.
RESERVED_EXIT_CODES = frozenset({100, 101, 102, 103, 104, 105, 106, STOPPED_EXIT_CODE})


def word_of(code: int) -> str:
    """How a job ended that ended with this exit code."""
    return {0: SUCCEEDED, STOPPED_EXIT_CODE: STOPPED}.get(code, FAILED)


class MusterError(Exception):
    """An error that a person reads: what happened and where, and in `fix` what to do.

    `tail`: lines that stand below the message.
    """

    exit_code = 105

    def __init__(self, message: str, fix: str = "", tail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.tail = tail

    @property
    def headline(self) -> str:
        """The first line of the failure file: `Class: what, where`."""
        return f"{type(self).__name__}: {self.message}"


class Problem(NamedTuple):
    """One thing that is wrong with the request."""

    where: str  # the file or the variable
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class ConfigError(MusterError):
    """The request cannot be run; `problems` holds all that is wrong, the most important first.

    `warnings`: what was found beside it, such as a misspelt name that may be the cause.
    """

    exit_code = 100

    def __init__(self, problems: Sequence[Problem], warnings: Sequence[str] = ()) -> None:
        if not problems:
            raise ValueError("a ConfigError needs at least one problem")
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        more = len(self.problems) - 1
        text = str(self.problems[0]) + (f" (and {more} more, below)" if more else "")
        super().__init__(text, self.problems[0].fix)

    @property
    def detail(self) -> str:
        """The problems after the first, a line each and its fix; "" when there is only one."""
        return "\n".join(
            f"{problem}" + (f"\n  Fix: {problem.fix}" if problem.fix else "")
            for problem in self.problems[1:]
        )

    @classmethod
    def of(cls, where: str, what: str, fix: str = "") -> ConfigError:
        """The error of a single problem."""
        return cls([Problem(where, what, fix)])


class SourceError(MusterError):
    exit_code = 101


class InstallError(MusterError):
    """Installing the requirements failed.

    `tail` holds the installer's last lines, with credentials masked.
    """

    exit_code = 101


class ClusterError(MusterError):
    exit_code = 102


class PeerError(MusterError):
    exit_code = 102


class HangError(MusterError):
    """Ranks waited longer than `MUSTER_HANG_S` for what does not come."""

    exit_code = 103


class InternalError(MusterError):
    exit_code = 105


class LaunchError(MusterError):
    """A launcher or a rank could not be started."""

    exit_code = 106


class StoppedError(MusterError):
    exit_code = STOPPED_EXIT_CODE

"""What can happen to a host, and what its state machine may ask for. See `hostlife`."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Union

from muster.run.channel.messages import HostError, RankEnd, ToHost, ToLeader
from muster.types.machine import HostFacts
from muster.types.outcome import Outcome, RankFailure
from muster.types.values import Bare, NamedTuple

if TYPE_CHECKING:
    from muster.run.channel.digest import HostDigest

# events


class Joined(Bare):
    """Admitted by the leader."""


class NotJoined(NamedTuple):
    """The leader could not be reached in time."""

    why: str


class StageDone(NamedTuple):
    """The code of this host is ready and its devices are known."""

    facts: HostFacts


class HostFailed(NamedTuple):
    """Staging, planning or spawning failed on this host."""

    host_error: HostError


class Planned(NamedTuple):
    """This host has planned. `ends_with_rank0`: as in its plan."""

    digest: str
    ends_with_rank0: bool = False


class AllRegistered(NamedTuple):
    """Every rank of this host runs."""

    ranks: int


class RankFailed(NamedTuple):
    """A rank of this host failed before it was asked to end."""

    failure: RankFailure


class AllGone(NamedTuple):
    """No rank of this host runs any more and its output has been read, or they were given up.
    `digest`: as of HostEnded."""

    ranks: tuple[RankEnd, ...]
    failures: tuple[RankFailure, ...]
    digest: HostDigest | None = None


class Signalled(NamedTuple):
    """This host received a stop signal."""

    by: str


class LeaderLost(NamedTuple):
    """The connection to the leader is gone for good."""

    leader: str
    why: str


class FilesWritten(Bare):
    """The outcome stands in this host's files and its last lines are out."""


class FromLeader(NamedTuple):
    """A message of the leader arrived."""

    message: ToHost


Event = Union[  # noqa: UP007
    Joined,
    NotJoined,
    StageDone,
    HostFailed,
    Planned,
    AllRegistered,
    RankFailed,
    AllGone,
    Signalled,
    LeaderLost,
    FilesWritten,
    FromLeader,
]

# actions


class Do(Enum):
    """Actions that need no more words. The values stand in the table of states."""

    BEGIN_STAGE = "BeginStage"  # fetch the code and install what it requires, on a thread
    ABORT_STAGE = "AbortStage"  # end the installers that run
    SPAWN = "Spawn"  # start the ranks of this host, or their launcher
    WIND_DOWN_RANKS = "WindDownRanks"  # SIGTERM to each script that does nothing any more
    SIGNAL_RANKS = "SignalRanks"  # SIGTERM to the scripts
    STOP_RANKS = "StopRanks"  # the same, but for those that the engine's own signal has reached
    KILL_RANKS = "KillRanks"  # SIGKILL to everything below the shims and launchers
    GIVE_UP_RANKS = "GiveUpRanks"  # `AllGone` follows at once, with the ranks that are not gone
    FINISH = "Finish"  # close the channel and end


class Send(NamedTuple):
    """Sends a message to the leader."""

    message: ToLeader


class MakePlan(NamedTuple):
    """Plans from the facts of all hosts, on a thread."""

    facts: tuple[HostFacts, ...]


class SpawnDaemon(NamedTuple):
    """Starts this host's launch daemon, when what was asked for is in order."""

    asked: tuple[str, ...]


class WriteOutcome(NamedTuple):
    """Ends all processes of this host, then writes its files."""

    outcome: Outcome


class Say(NamedTuple):
    """Writes a line to the log."""

    text: str
    level: str = "INFO"


Action = Union[  # noqa: UP007
    Do,
    Send,
    MakePlan,
    SpawnDaemon,
    WriteOutcome,
    Say,
]

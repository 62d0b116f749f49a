"""What can happen to a host, and what its state machine may ask for. See `hostlife`."""

from __future__ import annotations

from typing import Union

from muster.run.channel.messages import HostError, RankEnd, ToHost, ToLeader
from muster.types.machine import HostFacts
from muster.types.outcome import Outcome, RankFailure
from muster.types.values import NamedTuple

# events


class Joined(NamedTuple):
    """Admitted by the leader."""


class NotJoined(NamedTuple):
    """The leader could not be reached in time."""

    why: str


class StageDone(NamedTuple):
    facts: HostFacts


class HostFailed(NamedTuple):
    """Staging, planning or spawning failed on this host."""

    host_error: HostError


class Planned(NamedTuple):
    digest: str
    ends_with_rank0: bool = False


class AllRegistered(NamedTuple):
    """Every rank of this host runs."""

    ranks: int


class RankFailed(NamedTuple):
    """A rank of this host failed before anybody asked it to end."""

    failure: RankFailure


class AllGone(NamedTuple):
    """No rank of this host runs any more and its output has been read, or they were given up."""

    ranks: tuple[RankEnd, ...]
    failures: tuple[RankFailure, ...]


class Signalled(NamedTuple):
    """This host was told to stop from outside."""

    by: str


class LeaderLost(NamedTuple):
    leader: str
    why: str


class FilesWritten(NamedTuple):
    """The outcome stands in this host's files and its last lines are out."""


class FromLeader(NamedTuple):
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


class Tell(NamedTuple):
    message: ToLeader


class BeginStage(NamedTuple):
    pass


class AbortStage(NamedTuple):
    pass


class MakePlan(NamedTuple):
    facts: tuple[HostFacts, ...]


class Spawn(NamedTuple):
    pass


class SpawnDaemon(NamedTuple):
    """Starts this host's launch daemon, when what was asked for is in order."""

    asked: tuple[str, ...]


class WindDownRanks(NamedTuple):
    """SIGTERM to each script of the distribution once it does nothing any more."""


class SignalRanks(NamedTuple):
    """SIGTERM to the scripts."""


class KillRanks(NamedTuple):
    """SIGKILL to everything below the shims and launchers of this host."""


class GiveUpRanks(NamedTuple):
    """Waits no longer for killed ranks: `AllGone` follows at once, with those not gone, too."""


class WriteOutcome(NamedTuple):
    outcome: Outcome


class Finish(NamedTuple):
    """Close the channel and end."""


class Say(NamedTuple):
    text: str
    level: str = "INFO"


Action = Union[  # noqa: UP007
    Tell,
    BeginStage,
    AbortStage,
    MakePlan,
    Spawn,
    SpawnDaemon,
    WindDownRanks,
    SignalRanks,
    KillRanks,
    GiveUpRanks,
    WriteOutcome,
    Finish,
    Say,
]

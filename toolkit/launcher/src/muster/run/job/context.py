"""What the supervisor is given: the job as far as it concerns it, and the work of other layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from muster.plan.launchplan import LaunchPlan
from muster.run.base.causes import Surroundings
from muster.run.base.memory import Memory
from muster.run.channel.identity import Identity
from muster.run.channel.messages import HostEnded, HostError, shortened
from muster.types.cluster import Cluster
from muster.types.deadlines import Deadlines
from muster.types.debug import Debug
from muster.types.machine import HostFacts
from muster.types.outcome import Outcome
from muster.types.shown import Shown
from muster.types.steps import StepRunner
from muster.types.values import NamedTuple

TEXT_BYTES = 4096
DETAIL_BYTES = 8192


class JobContext(NamedTuple):
    """What the supervisor knows of the job and of this host's place in it.

    `address`: this host's on the job interface; `source`: the one that it connects from, "" for
    any. `resolve`: name -> addresses, may block. `checks_names`: no secret is shared, so a
    peer's address must be one of its name's. `host_error`: what is wrong with this host's request,
    when it joins only to say so. `memory`: what the kernel counts; `around`: what
    surrounds the ranks, less what the plan says. `port_holder`: who holds a port of an address,
    None when unknown. `throttled_s`: how long the CPU limit of this container has held it up.
    """

    cluster: Cluster
    identity: Identity
    deadlines: Deadlines
    address: str
    source: str
    control_port: int
    checks_names: bool
    shown: Shown
    resolve: Callable[[str], Sequence[str]]
    memory: Memory = Memory()
    around: Surroundings = Surroundings()
    host_error: HostError | None = None
    port_holder: Callable[[str, int], str | None] = lambda _address, _port: None
    throttled_s: Callable[[], float | None] = lambda: None
    debug: Debug = Debug()


class Ending(NamedTuple):
    """What a host knows of the run when it writes its files; the leader knows all hosts. `ended`:
    what hosts said when their ranks had ended. `notes`: lines that a person should see before the
    outcome."""

    outcome: Outcome
    plan: LaunchPlan | None
    ended: Mapping[str, HostEnded]
    duration_s: float
    notes: tuple[str, ...] = ()


class Work(Protocol):
    """The work of the layers that the supervisor must not know."""

    def stage(self, run: StepRunner, leader_address: str) -> HostFacts:
        """Makes the code ready, on its own thread. Raises MusterError."""
        ...

    def plan(self, facts: Sequence[HostFacts]) -> LaunchPlan:
        """The plan of this host. Raises MusterError."""
        ...

    def at_start(self, plan: LaunchPlan) -> Mapping[str, str]:
        """What it makes for the ranks once their plan is there: variables of each."""
        ...

    def check(self, plan: LaunchPlan) -> None:
        """On the leader: whether the plan's ports are free. Raises MusterError."""
        ...

    def write(self, ending: Ending) -> bool:
        """Writes the host's files; whether the status file is there. Never raises for a bad disk,
        and blocks, on its own thread, while a mount does not answer."""
        ...

    def say(self, ending: Ending, written: bool) -> None:
        """Says the last lines. `written`: the status file is there."""
        ...


def write_and_say(work: Work, ending: Ending, limit_s: float) -> None:
    """The end of a host that has no loop: its files, within a limit, and its last lines."""
    from muster.run.base.background import BackgroundCall

    files = BackgroundCall("files", lambda: work.write(ending))
    work.say(ending, files.ended(limit_s) and files.result())


def host_error_of(error: BaseException, mask: Callable[[str], str] = str) -> HostError:
    """Any exception as a HostError for all hosts; one that is no MusterError is a defect of muster.

    Secrets are masked before anything is cut: of one that is cut, a part would stay.
    """
    from muster.types.errors import ConfigError, InternalError, LaunchError, MusterError

    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        from muster.run.base.shortage import PROCESSES

        error = LaunchError(f"no thread could be started: {PROCESSES.what}", PROCESSES.fix)
    if not isinstance(error, MusterError):
        import traceback

        detail = _end_of(mask("".join(traceback.format_exception(error))))
        message = shortened(mask(f"{type(error).__name__}: {error}"), TEXT_BYTES)
        fix = "this is a defect of muster: please report it with the lines below"
        return HostError(InternalError.__name__, InternalError.exit_code, message, fix, detail)
    detail = error.detail if isinstance(error, ConfigError) else error.tail
    message, fix = (shortened(mask(text), TEXT_BYTES) for text in (error.message, error.fix))
    return HostError(type(error).__name__, error.exit_code, message, fix, _end_of(mask(detail)))


def _end_of(text: str) -> str:
    return shortened(text, DETAIL_BYTES, keep_end=True)

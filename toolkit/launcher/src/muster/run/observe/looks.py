"""What is seen of one rank at one moment. Values; they travel between hosts as JSON."""

from __future__ import annotations

from muster.types.values import NamedTuple


class StackFrame(NamedTuple):
    """One line of a stack; `line` 0 where it is not known."""

    file: str
    line: int
    function: str


class ThreadStack(NamedTuple):
    """One thread. `frames`: outermost first, so the last one is where the thread is."""

    name: str
    is_main: bool
    frames: tuple[StackFrame, ...]


class Call(NamedTuple):
    """A collective call of one group, as the library of one rank records it: the one that runs,
    else the last one that ended.

    `library`: muster or torch. `group`: the name that the library gives it. `ranks`: the members,
    as ranks of the job's world. `number`: counts the calls of the group from 1. `shape`: what all
    members must have in common, such as `float32[1024]`, or "". `age_s`: since it began while it
    runs, else since it ended. `absent`: members that the library knows not to have come.
    """

    library: str
    group: str
    ranks: tuple[int, ...]
    op: str
    number: int
    shape: str
    running: bool
    age_s: float
    absent: tuple[int, ...] = ()


class Arrivals(NamedTuple):
    """When one rank came to calls of a group in which all wait for all. `calls`: number, and
    seconds of the host's monotonic clock; between hosts of the leader's, give or take
    `unsure_s`."""

    library: str
    group: str
    ranks: tuple[int, ...]
    calls: tuple[tuple[int, float], ...]
    unsure_s: float = 0.0


class Usage(NamedTuple):
    """What the processes of a rank went through over `over_s` seconds: held up by the CPU limit of
    their container (None: unknown), able to run and without a processor, and how often they waited
    for memory to come from a disk."""

    over_s: float
    throttled_s: float | None
    run_delay_s: float
    major_faults: int


class Answer(NamedTuple):
    """What the agent in a rank's Python said.

    `how`: agent, signal (its threads could not run, the signal handler wrote the stacks), silent,
    or none (no agent: another program than Python, or Python without site). `step`, `rate`: of
    `muster.metrics`, None where the script does not call it; steps per second. `arrivals`: None
    where they were not asked for, or are not known.
    """

    how: str
    threads: tuple[ThreadStack, ...] = ()
    calls: tuple[Call, ...] = ()
    step: int | None = None
    rate: float | None = None
    arrivals: Arrivals | None = None


class ProcessState(NamedTuple):
    """What the kernel says of a rank's process.

    `state`: the letter of /proc/PID/stat, "" when it is gone. `wchan`: the kernel function in which
    its main thread waits, or "". `cpu_share`: processors that its process tree used since the look
    before, or over a fraction of a second. `waits_for`: what its main thread reads, writes or locks
    in words, such as `reading /data/7`, or "".
    """

    pid: int
    state: str
    wchan: str
    cpu_share: float
    waits_for: str = ""


class RankLook(NamedTuple):
    """One rank at one moment. `silent_s`: since its last output, or its start. `ended`: its exit
    status once it has ended. `usage`: of the last minute, where it was asked for and is known."""

    rank: int
    host: str
    process: ProcessState
    silent_s: float
    answer: Answer
    ended: int | None = None
    usage: Usage | None = None

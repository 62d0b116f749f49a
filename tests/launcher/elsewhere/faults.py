"""What befalls a job of two hosts, and what every engine then says: one table.

`muster submit` promises the same truth everywhere, so code and first line stand here once. Where an
engine cannot have a fault, `cannot` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

READY = "rank is ready"  # once it hears a stop
STOPPED = r"STOPPED by SIGTERM( on \S+)?, exit code 143"
JOIN_S = 8
NOT_JOINED = rf"FAILED ClusterError: {{1}} did not join within {JOIN_S} s \(1 of 2 present\)"
SCRIPT = f"""\
import os, signal, sys, time
what, rank = sys.argv[1], os.environ["SM_CURRENT_HOST_RANK"]
def save(number, frame):
    print("rank has saved", flush=True)
    sys.exit(0)
if what == "save":
    signal.signal(signal.SIGTERM, save)
if what == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("{READY}", flush=True)
if rank == "1" and what == "raise":
    raise ValueError("bad batch")
if rank == "1" and what == "exit":
    sys.exit(42)
if rank == "1" and what == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if what != "end":
    time.sleep(600)
"""


class Fault(NamedTuple):
    """`code`: of every host that is left to say one, and of the job. `line`: the first of the
    outcome, a pattern; {{0}} and {{1}} are the hosts. `script`: what its argument is. `act`: what
    happens once both ranks are ready. `second`: what the second host does before muster starts
    there. `said`: how often ranks have saved. `options`: of `muster submit`, by engine where they
    differ. `cannot`, `long`: engine -> why.
    """

    name: str
    code: int
    line: str
    script: str = "stay"
    act: str = ""
    second: str = ""
    said: int = 0
    options: tuple[str, ...] = ()
    own: Mapping[str, tuple[str, ...]] = {}
    cannot: Mapping[str, str] = {}
    long: Mapping[str, str] = {}


SOON = ("--env", f"MUSTER_JOIN_S={JOIN_S}")
FAULTS = (
    Fault("rank fails on host 2", 1, "FAILED {1} rank 1: ValueError: bad batch", "raise"),
    Fault("exit 42", 42, r"FAILED {1} rank 1: exit\(42\) .*", "exit"),
    Fault("SIGSEGV", 139, "FAILED {1} rank 1: Segmentation fault .*", "crash"),
    Fault("stop with save", 143, STOPPED, "save", "stop", said=2),
    Fault("ignored SIGTERM", 143, STOPPED, "ignore", "stop", options=("--grace", "5")),
    Fault(
        "deadline",
        143,
        "STOPPED by .*, exit code 143",
        "save",
        said=2,
        own={
            "slurm": ("--set", "time=1", "--grace", "5"),
            "kubernetes": ("--set", "spec.activeDeadlineSeconds=20"),
            "batch": ("--set", "job.timeout.attemptDurationSeconds=60"),
        },
        cannot={"hosts": "hosts reached by ssh have no time limit"},
        long={"slurm": "its least is a minute", "batch": "its least is a minute"},
    ),
    Fault("host killed", 102, r"FAILED PeerError: lost {1} \(.*", act="kill 1"),
    Fault("leader killed", 102, r"PeerError: lost {0} \(.*", act="kill 0"),
    Fault("host late", 0, "SUCCEEDED.*", "end", second="sleep 3"),
    Fault(
        "host never",
        102,
        NOT_JOINED,
        second="never",
        options=(*SOON, "--grace", "5"),
        cannot={"hosts": "a host that cannot be reached is refused before anything starts"},
    ),
    Fault(
        "wrong secret",
        102,
        NOT_JOINED,
        second="secret",
        options=SOON,
        cannot={"hosts": "the desk gives the secret to all hosts itself"},
    ),
    Fault(
        "second job at once",
        102,
        r"FAILED ClusterError: port 7776 \(control\) is in use by .*",
        act="second",
        own={
            # jobs that share a node have ports of their own; the other host waits for a leader
            "slurm": ("--set", "oversubscribe", "--env", "MUSTER_CONTROL_PORT=7776", *SOON),
            "kubernetes": ("--set", "pod.hostNetwork=true"),
        },
        cannot={"batch": "each node of each job has a network interface of its own"},
    ),
)

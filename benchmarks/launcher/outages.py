"""What a network outage does to a job: packets of two hosts are lost on their way for a while.

Each host is a network namespace of its own; its packet filter drops what comes in, as a broken
network does. (What is dropped on its way out the kernel reports to TCP, which then does not back
off.) Both ways, or one of the hosts is deaf while it is still heard. The default time limits, and
the jobs of a row side by side: they do nothing but wait.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.table import Row, at_least
from muster.local.hosts import why_not_isolated
from muster.types.deadlines import Deadlines, variable
from tests.launcher.support.local.local_runs import FAST, LocalRun
from tests.launcher.support.local.namespaces import Host
from tests.support.waiting import wait_until

JOBS = 20
LONGEST_S, SHORTEST_S = 26.0, 5.0  # of an outage that heals in time
TOO_LONG_S = 35.0
LOST_BY_S = 31
_FAIL_AFTER_S = 1.5  # of the outage, so that neither host can have told the other
_NAMES = ("algo-1", "algo-2")
_DEAF = (_NAMES, _NAMES[1:], _NAMES[:1])  # the three kinds of outage, in turns
_END_S = 90.0
_LOST = re.compile(r"\(no heartbeat for (\d+) s\)")
_SCRIPT = """\
import os, signal, sys, time
folder = "/opt/ml/output/data"
def told(*_):
    with open(os.path.join(folder, "told"), "w") as file:
        file.write(repr(time.monotonic()))
    sys.exit(1)
signal.signal(signal.SIGTERM, told)
print("ready on", os.environ["SM_CURRENT_HOST"], flush=True)
while not os.path.exists(os.path.join(folder, "end")):
    if os.path.exists(os.path.join(folder, "fail")):
        raise ValueError("bad batch")
    time.sleep(0.02)
"""


class Outage(NamedTuple):
    """Who hears nothing for how long; `fails`: the host whose rank fails meanwhile, or ""."""

    seconds: float
    deaf: tuple[str, ...]
    fails: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s, deaf: {' '.join(self.deaf)}"


class End(NamedTuple):
    """How a job ended: the code and first line of each host, and seconds from the beginning of
    the outage until the last rank was told to stop (0 when none was)."""

    outage: Outage
    codes: tuple[int, ...]
    lines: tuple[str, ...]
    told_s: float

    @property
    def survived(self) -> bool:
        return self.codes == (0, 0)

    @property
    def agreed(self) -> bool:
        return len({*self.codes}) == len({*self.lines}) == 1 and "ValueError: bad" in self.lines[0]

    @property
    def lost(self) -> bool:
        """Whether both sides say that they lost the other one, and by which silence."""
        said = [
            _LOST.fullmatch(line.removeprefix(f"PeerError: lost {name} "))
            for line, name in zip(self.lines, reversed(_NAMES), strict=True)
        ]
        in_time = all(match and int(match[1]) <= LOST_BY_S for match in said)
        return in_time and self.codes == (102, 102)


def rows(folder: Path) -> Iterator[Row]:
    """Raises RuntimeError where hosts cannot have networks of their own."""
    _check_tools(folder)
    spread = [SHORTEST_S + (LONGEST_S - SHORTEST_S) * number / (JOBS - 1) for number in range(JOBS)]
    kinds = [_DEAF[number % len(_DEAF)] for number in range(JOBS)]
    healed = [Outage(seconds, deaf) for seconds, deaf in zip(spread, kinds, strict=True)]
    span = f"{SHORTEST_S:g} to {LONGEST_S:g} s"
    ends = _all(folder / "healed", healed)
    yield _row(f"outages of {span}: jobs that survive", ends, lambda end: end.survived)
    ends = _all(folder / "lost", [Outage(TOO_LONG_S, deaf) for deaf in kinds])
    row = _row(
        f"outages of {TOO_LONG_S:g} s: jobs that both sides call lost", ends, lambda end: end.lost
    )
    told_s = max(end.told_s for end in ends)
    detail = f"by {LOST_BY_S} s of silence; a deaf host may be heard for another second; ranks told"
    yield row._replace(detail=f"{row.detail}; {detail} {told_s:.1f} s into the outage at most")
    failing = [one._replace(fails=_NAMES[number // 3 % 2]) for number, one in enumerate(healed)]
    ends = _all(folder / "failed", failing)
    what = f"hosts that agree on a failure under a cut of {span}"
    yield _row(what, ends, lambda end: end.agreed)


def _row(what: str, ends: Sequence[End], good: Callable[[End], bool]) -> Row:
    bad = [end for end in ends if not good(end)]
    kept = len(ends) - len(bad)
    wrong = "; ".join(f"{end.outage}: {end.codes} {' / '.join(end.lines)}" for end in bad)
    detail = f"both ways, one host deaf, the other deaf, in turns{': ' if wrong else ''}{wrong}"
    return Row(what, f"of {len(ends)} jobs", kept, {}, (at_least(kept, len(ends), "jobs"),), detail)


def _all(folder: Path, outages: Sequence[Outage]) -> list[End]:
    folder.mkdir()
    (folder / "train.py").write_text(_SCRIPT)
    with ThreadPoolExecutor(len(outages)) as pool:
        return list(pool.map(lambda outage: _once(folder, outage), outages))


def _once(folder: Path, outage: Outage) -> End:
    """Raises AssertionError when the job does not start or does not end."""
    limits = Deadlines()._asdict()
    defaults = {variable(name): f"{limits[name]:g}" for name in limits if variable(name) in FAST}
    run = LocalRun(folder, ["train.py", "--hosts", "2", "--isolation", "netns"], environ=defaults)
    try:
        run.wait_ready(len(_NAMES))
        hosts = [Host(run, name) for name in _NAMES]
        began_s = _cut(run, hosts, outage)
        for name in _NAMES:
            _write(run, name, "end")
        run.process.wait(_END_S)
        codes = tuple(host.outcome[1] if host.outcome else -1 for host in hosts)
        told = [run.base(name) / "output" / "data" / "told" for name in _NAMES]
        told_s = max((float(path.read_text()) for path in told if path.exists()), default=began_s)
        return End(outage, codes, tuple(host.failure for host in hosts), told_s - began_s)
    finally:
        run.kill()


def _cut(run: LocalRun, hosts: Sequence[Host], outage: Outage) -> float:
    """When the outage began; returns when the network is whole again, or the job has ended."""
    with ExitStack() as rules:
        began_s = time.monotonic()
        for host in hosts:
            if host.name in outage.deaf:
                rules.enter_context(host.rule("INPUT", "!", "-i", "lo", "-p", "tcp", "-j", "DROP"))
        if outage.fails:
            _wait(run, began_s + _FAIL_AFTER_S)
            _write(run, outage.fails, "fail")
        _wait(run, began_s + outage.seconds)
    return began_s


def _wait(run: LocalRun, until_s: float) -> None:
    def over() -> bool:
        return time.monotonic() >= until_s or run.process.poll() is not None

    wait_until(over, until_s + 60 - time.monotonic())


def _write(run: LocalRun, host: str, name: str) -> None:
    (run.base(host) / "output" / "data" / name).touch()


def _check_tools(folder: Path) -> None:
    missing = [name for name in ("nsenter", "iptables") if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        raise RuntimeError(f"needs root, nsenter and iptables (missing: {', '.join(missing)})")
    reason = why_not_isolated(str(folder))
    if reason:
        raise RuntimeError(f"this machine allows no namespaces: {reason}")

"""`python -m muster_collectives.doctor`: which way each pair of ranks takes, and why.

In a job (RANK and WORLD_SIZE set, or below mpirun) it is run once per rank and rank 0 prints; by
itself it starts `--ranks` processes on this machine. Ends with 1 where a rank cannot use the
compiled core, and where ranks are slower than they could be: those of one machine that share no
memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

from muster_collectives.binding import library
from muster_collectives.bootstrap.world import init
from muster_collectives.runtime import environment, machine, machine_file, variables
from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.settings import Settings, current
from muster_collectives.runtime.tuning import encode
from muster_collectives.tools.bench.group import Team
from muster_collectives.tools.bench.launch import RunError, start

_HUGE_PAGES = ("/sys/kernel/mm/transparent_hugepage/enabled",
               "/sys/kernel/mm/transparent_hugepage/shmem_enabled")  # fmt: skip
_FREE_HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
_SMALL_PAGES = (
    "registered memory has pages of 4 KiB, which large sums take longer over\n"
    "  Fix, as root: `sysctl vm.nr_hugepages=N` (of 2 MiB, for the memory of all ranks), or\n"
    "  `echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`"
)
_CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"
_PACED = (
    "between nodes each packet waits for a timer: on links that no processor fills, large sums\n"
    "  take twice as long as with cubic (the network's owner may have chosen it for long ways)\n"
    "  Fix, as root, on all hosts: `sysctl net.ipv4.tcp_congestion_control=cubic`"
)
_LIMIT_S = 60.0
_UNTUNED = "the defaults (bench --tune writes a file)"
_APART = (
    "  Fix: one user for the ranks of a machine, and one process namespace or one /dev/shm for all"
)


def main() -> int:
    options = _options()
    if environment.is_rank(os.environ):
        return in_job()
    with tempfile.TemporaryDirectory(prefix="mc-doctor-") as folder:
        try:
            texts = start(["-m", "muster_collectives.doctor"], options.ranks, Path(folder))
        except RunError as error:
            # what a rank found wrong is in its text as well
            print(f"doctor: {error}", file=sys.stderr)
            return 1
    print(texts[0], end="")
    return 0


def in_job() -> int:
    """As one rank of a job."""
    try:
        settings = current()
        team = Team(init(timeout_s=_LIMIT_S))
    except CollectiveError as error:
        print(f"doctor: {error}", file=sys.stderr)
        return 1
    said = [json.loads(text) for text in team.texts(json.dumps(_facts(team)))]
    team.core.close()
    trouble = troubles(said)
    if said and team.rank == 0:
        print("\n".join([*_own(settings), *pairs(said), *trouble]))
    return 1 if trouble else 0


def pairs(said: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each pair of ranks (pure)."""
    ranks = [
        f"rank {rank}: node {facts['nodes'][rank]}, host {facts['host']}, {facts['isa']} core"
        for rank, facts in enumerate(said)
    ]
    return ranks + [f"ranks {rank} and {other}: {said[rank]['why'][other]}"
                    for rank, other in combinations(range(len(said)), 2)]  # fmt: skip


def troubles(said: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes the group slower than it could be (pure)."""
    found = []
    for rank, other in combinations(range(len(said)), 2):
        facts = said[rank]
        same = facts["boot"] and facts["boot"] == said[other]["boot"]
        chosen = facts["name"] != said[other]["name"]  # COLLECTIVES_NODE keeps them apart
        if same and not chosen and facts["nodes"][rank] != facts["nodes"][other]:
            found.append(
                f"slower than it could be: ranks {rank} and {other} are on one machine and share "
                f"no memory: {facts['why'][other]}\n{_APART}"
            )
    return found


def _facts(team: Team) -> dict[str, Any]:
    isa: bytes = library.load(current().core).mc_isa()
    return {
        "host": os.uname().nodename, "boot": machine.boot_id(), "nodes": list(team.core.nodes),
        "why": list(team.core.why), "isa": isa.decode(),
        "name": os.environ.get("COLLECTIVES_NODE", ""),
    }  # fmt: skip


def _own(settings: Settings) -> list[str]:
    """This machine, as rank 0 sees it."""
    room = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    shm = f"{room.f_bavail * room.f_frsize >> 20} MiB free" if room else "not there"
    path = machine_file.path_of(os.environ)
    torch = "installed" if importlib.util.find_spec("torch") else "not installed"
    lines = [
        f"processors: {machine.processors()}, last cache {machine.cache_bytes() >> 20} MiB",
        f"/dev/shm: {shm} (not needed: memory is shared through memfd)",
        *_huge_pages(),
        *congestion(_read(_CONGESTION)),
        f"torch: {torch}",
        f"tuned sizes: {path if os.path.exists(path) else _UNTUNED}",
        "sizes: " + ", ".join(f"{name}={value}" for name, value in encode(settings.tuning).items()),
    ]
    given = variables.read(os.environ).values
    shown = {name: "(secret)" if name.endswith("_KEY") else value for name, value in given.items()}
    lines += [f"{name}={value}" for name, value in sorted(shown.items())]
    return [*lines, *settings.notes]


def _huge_pages() -> list[str]:
    """What there is, and how registered memory gets some where it has none."""
    free = 0
    with suppress(ValueError):
        free = int(_read(_FREE_HUGE_PAGES))
    chosen = [_chosen(each) for each in _HUGE_PAGES]
    line = f"huge pages: {'; '.join(chosen)}; {free} of 2 MiB reserved and free"
    if free or chosen[1].split()[-1] not in ("never", "deny", "unknown"):
        return [line]
    return [line, _SMALL_PAGES]


def congestion(name: str) -> list[str]:
    """What TCP spaces its packets by, and what that costs (pure)."""
    line = f"TCP's congestion control: {name or 'unknown'}"
    return [line, _PACED] if name.startswith("bbr") else [line]


def _chosen(path: str) -> str:
    """`always [madvise] never` as `enabled madvise`."""
    chosen = _read(path).partition("[")[2].partition("]")[0]
    return f"{Path(path).name} {chosen or 'unknown'}"


def _read(path: str) -> str:
    """ "" where it cannot be read."""
    with suppress(OSError):
        return Path(path).read_text(encoding="ascii").strip()
    return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m muster_collectives.doctor", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes, outside of a job")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error("at least 1 rank")
    return options


if __name__ == "__main__":
    sys.exit(main())

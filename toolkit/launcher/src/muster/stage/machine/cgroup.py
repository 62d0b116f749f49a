"""What the kernel allows this container: memory, CPU time, processes (cgroup v1, v2 and both)."""

from __future__ import annotations

import math
import os

from muster.types.files import read_text

_MOUNT = "/sys/fs/cgroup"
_MEMBERSHIP = "/proc/self/cgroup"
_NO_LIMIT = 1 << 60  # v1 says "no limit" by a number near 2**63


class Cgroups:
    """The control groups of this process. Reading them costs some 20 microseconds each.

    A limit of any group above counts too. In a container with its own cgroup namespace the paths
    of the membership file need not exist; then the top of the mounted tree is the container's.
    """

    def __init__(self, mount: str = _MOUNT, membership: str = _MEMBERSHIP) -> None:
        self._mount = mount
        self._paths: dict[str, str] = {}  # controller, "" for version 2 -> path
        for line in read_text(membership).splitlines():
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            for controller in controllers.split(","):
                self._paths[controller.removeprefix("name=")] = path

    def memory_limit_bytes(self) -> int | None:
        limits = self._numbers("memory", "memory.limit_in_bytes", "memory.max")
        return min((limit for limit in limits if limit < _NO_LIMIT), default=None)

    def process_limit(self) -> int | None:
        return min(self._numbers("pids", "pids.max", "pids.max"), default=None)

    def cpu_quota(self) -> float | None:
        """CPUs that the time slice is worth."""
        found: list[float] = []
        for folder in self.folders("cpu"):
            slices = _first(folder, "cpu.max").split()  # version 2: "200000 100000"
            if not slices:
                quota, period = "cpu.cfs_quota_us", "cpu.cfs_period_us"
                slices = [_first(folder, quota), _first(folder, period)]
            if len(slices) == 2 and slices[0].isdecimal() and slices[1].isdecimal():
                found.append(int(slices[0]) / max(1, int(slices[1])))
        return min(found, default=None)

    def oom_kills(self) -> int | None:
        """How often the kernel killed a process of this container for memory; None: unknown."""
        counts = (self.kills_in(folder) for folder in self.folders("memory"))
        return next((count for count in counts if count is not None), None)

    def throttled_s(self) -> float | None:
        """For how long the CPU limit of this container, or of one around it, has held up its
        processes so far; None: unknown."""
        found = [
            int(value) / (1e6 if name == "throttled_usec" else 1e9)
            for folder in self.folders("cpu")
            for name, _, value in (
                line.partition(" ") for line in read_text(f"{folder}/cpu.stat").splitlines()
            )
            if name in ("throttled_usec", "throttled_time") and value.isdecimal()
        ]
        return max(found, default=None)

    @staticmethod
    def kills_in(folder: str) -> int | None:
        """The same of one group; None: unknown."""
        for name in ("memory.events", "memory.oom_control"):
            for line in read_text(os.path.join(folder, name)).splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return None

    def folders(self, controller: str) -> list[str]:
        """The group's folder and all above it, the innermost first, of whichever version."""
        unified = self._paths.get("", "")
        candidates = [
            *_upwards(f"{self._mount}/{controller}", self._paths.get(controller, "")),
            *_upwards(f"{self._mount}/unified", unified),
            *_upwards(self._mount, unified),
        ]
        return [folder for folder in candidates if os.path.isdir(folder)]

    def _numbers(self, controller: str, *names: str) -> list[int]:
        folders = self.folders(controller)
        texts = [_first(folder, name) for folder in folders for name in set(names)]
        return [int(text) for text in texts if text.isdecimal()]


def usable_cpus(cgroups: Cgroups) -> int:
    """CPUs that this process may run on, or fewer when its time is limited; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota = cgroups.cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _upwards(base: str, path: str) -> list[str]:
    """`base` + `/a/b`, `base` + `/a`, `base`; [] without a path."""
    parts = path.strip("/").split("/") if path.strip("/") else []
    depths = range(len(parts), -1, -1) if path else ()
    return ["/".join([base, *parts[:depth]]) for depth in depths]


def _first(folder: str, name: str) -> str:
    return read_text(os.path.join(folder, name)).partition("\n")[0].strip()

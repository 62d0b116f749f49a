"""What this process may use of its machine: processors, caches, names of its node."""

from __future__ import annotations

import functools
import os

_CGROUP = "/sys/fs/cgroup"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CACHES = "/sys/devices/system/cpu/cpu0/cache"


def processors() -> int:
    """How many this process may use at a time: affinity, and the quota that its control group had
    when it was first asked for."""
    usable = len(os.sched_getaffinity(0))
    quota = _quota()
    return max(1, min(usable, int(quota))) if quota else usable


def quota_of(text: str) -> float:
    """`max 100000` or `150000 100000` of cpu.max as processors; 0: no quota (pure)."""
    parts = text.split()
    if len(parts) != 2 or not (parts[0].isdigit() and parts[1].isdigit()) or parts[1] == "0":
        return 0.0
    return max(1.0, int(parts[0]) / int(parts[1]))


@functools.cache  # six files, for each of many groups
def _quota() -> float:
    return _quota_v2() or _quota_v1()


def _quota_v2() -> float:
    """The least of this group and those above; a container sees its own at the top."""
    own = next((line[3:] for line in _read("/proc/self/cgroup").splitlines()
                if line.startswith("0::")), "/")  # fmt: skip
    quotas = []
    while True:
        quota = quota_of(_read(f"{_CGROUP}{own.rstrip('/')}/cpu.max"))
        if quota:
            quotas.append(quota)
        if own in ("", "/"):
            return min(quotas, default=0.0)
        own = os.path.dirname(own)


def _quota_v1() -> float:
    folder = f"{_CGROUP}/cpu"
    return quota_of(f"{_read(f'{folder}/cpu.cfs_quota_us')} {_read(f'{folder}/cpu.cfs_period_us')}")


@functools.cache  # a machine keeps its own, and groups are many
def cache_bytes() -> int:
    """The last-level cache; 0 where the system does not say."""
    found = 0
    try:
        names = os.listdir(_CACHES)
    except OSError:
        return 0
    for name in names:
        text = _read(f"{_CACHES}/{name}/size") if name.startswith("index") else ""
        scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
        if scale and text[:-1].isdigit():
            found = max(found, int(text[:-1]) * scale)
    return found


@functools.cache
def boot_id() -> str:
    """The same for all processes of a running kernel; "" where the system does not say."""
    return _read(_BOOT_ID)


def namespace(kind: str) -> str:
    """`pid`, `ipc` or `net` namespace of this process; "" where the system does not say."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def device_of(folder: str) -> str:
    """Which file system `folder` is; "" where this process cannot write there."""
    try:
        facts = os.stat(folder)
    except OSError:
        return ""
    return str(facts.st_dev) if os.access(folder, os.W_OK) else ""


def bytes_of(folder: str) -> int:
    """The size of its file system; 0 where it has no bound or that cannot be told."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return 0
    return facts.f_blocks * facts.f_frsize


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""

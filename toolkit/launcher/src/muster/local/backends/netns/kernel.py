"""The few calls of the kernel that Python 3.10 has no name for. Linux only; raises OSError."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
from functools import cache

from muster.types.files import read_text

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_KINDS = {
    CLONE_NEWNS: "mnt",
    CLONE_NEWUTS: "uts",
    CLONE_NEWIPC: "ipc",
    CLONE_NEWUSER: "user",
    CLONE_NEWPID: "pid",
    CLONE_NEWNET: "net",
}

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_RELATIME = 0x200000
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_CAP_NET_ADMIN = 12
_CAP_SYS_ADMIN = 21
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    try:
        _check(_libc().unshare(ctypes.c_int(flags)), "unshare")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        limits = ", ".join(_namespace_limits(flags))
        text = f"the kernel's limit of namespaces: {limits}; sysctl raises it"
        raise OSError(error.errno, text, "unshare") from None


def _namespace_limits(flags: int) -> list[str]:
    """The limits that may be meant: those that allow none, else all of the kinds in `flags`."""
    found = {}
    for flag, kind in _KINDS.items():
        if flags & flag:
            text = read_text(f"/proc/sys/user/max_{kind}_namespaces").strip()
            if text.isdecimal():
                found[f"user.max_{kind}_namespaces"] = int(text)
    none = {name: number for name, number in found.items() if not number}
    return [f"{name} is {number}" for name, number in (none or found).items()]


def setns(fd: int, kind: int) -> None:
    _check(_libc().setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def sethostname(name: str) -> None:
    data = name.encode()
    _check(_libc().sethostname(data, ctypes.c_size_t(len(data))), "sethostname")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); an error names the target."""
    result = _libc().mount(
        os.fsencode(source) or None,
        os.fsencode(target),
        os.fsencode(kind) or None,
        ctypes.c_ulong(flags),
        os.fsencode(options) or None,
    )
    _check(result, f"mount {target}")


def detach(target: str) -> None:
    """Lazy unmount."""
    _check(_libc().umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"unmount {target}")


def pivot_root(new: str, old: str) -> None:
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"no pivot_root for {os.uname().machine}")
    result = _libc().syscall(ctypes.c_long(number), os.fsencode(new), os.fsencode(old))
    _check(result, "pivot_root")


def die_with(parent: int) -> None:
    """SIGKILL for this process when its parent ends; at once if that has happened already.

    A change of credentials, a new user namespace among them, takes the wish back: ask anew after.
    """
    kill = ctypes.c_ulong(signal.SIGKILL)
    _check(_libc().prctl(ctypes.c_int(_PR_SET_PDEATHSIG), kill, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def has_namespace_powers() -> bool:
    """Whether this process may make namespaces without a user namespace of its own."""
    powers = bits_of("self", "CapEff")
    return bool(powers >> _CAP_SYS_ADMIN & powers >> _CAP_NET_ADMIN & 1)


def bits_of(process: int | str, field: str) -> int:
    """A field of /proc/PROCESS/status that is a mask; 0 where the process is gone."""
    found = re.search(rf"(?m)^{field}:\s*([0-9a-f]+)", read_text(f"/proc/{process}/status"))
    return int(found[1], 16) if found else 0

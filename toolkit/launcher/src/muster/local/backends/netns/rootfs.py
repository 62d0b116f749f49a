"""The file system of an isolated host: this machine's, read-only, with what a host has of its own.

Own and writable: /opt/ml (the host's tree of the run folder, whatever /opt is here), /tmp,
/var/tmp, /dev/shm. Own: /proc, /sys, /etc/hosts. The run folder stays writable, and channels are
mounted read-only, so that no script changes the user's data. Runs in a fresh mount namespace.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from contextlib import suppress

from muster.local.backends.netns import disk, kernel
from muster.local.caches import Caches
from muster.local.orders import HostOrder, Orders
from muster.local.paths import CHECKPOINTS, HOME, ML, TEMPORARY, is_below, outermost
from muster.types.files import read_text

OLD = "/.old"
RESOLVERS = "/run/systemd/resolve/resolv.conf"  # those that a resolver on loopback asks
MADE_HERE = ("proc", "sys", "tmp", "opt")
_KEPT_FLAGS = {
    "nosuid": kernel.MS_NOSUID,
    "nodev": kernel.MS_NODEV,
    "noexec": kernel.MS_NOEXEC,
    "noatime": kernel.MS_NOATIME,
    "nodiratime": kernel.MS_NODIRATIME,
    "relatime": kernel.MS_RELATIME,
}


def enter(orders: Orders, order: HostOrder) -> None:
    """Makes the host's root the root of this process. Raises OSError."""
    kept = [(path, os.path.realpath(path)) for path in outermost(orders.kept)]
    channels = {name: os.path.realpath(path) for name, path in orders.channels.items()}
    _new_root()
    for path in TEMPORARY:
        if os.path.isdir(path) and not os.path.islink(path):
            kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777")
    os.mkdir(HOME, 0o700)
    for path, real in kept:
        if is_below(path, TEMPORARY):
            bind(real, path)
    for path in orders.writable:
        bind(path, path)
    bind(order.base, ML)
    data = f"{ML}/input/data"
    if channels:
        kernel.mount("tmpfs", data, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755")
    for name, real in channels.items():
        bind(real, f"{data}/{name}")
    if orders.checkpoint:
        bind(orders.checkpoint, CHECKPOINTS)
    writable = _bind_caches(orders.caches)
    _own_hosts_file(orders)
    if orders.pasta:
        _reachable_resolvers()
    kernel.detach(OLD)
    os.rmdir(OLD)
    own = [f"{ML}/{name}" for name in disk.FOLDERS]
    _make_read_only((*TEMPORARY, ML, data, CHECKPOINTS, *own, *orders.writable, *writable))


def _bind_caches(caches: Caches) -> list[str]:
    """Puts caches into the host's home; returns those that may be written.

    What a host writes into one that is seen stays with the host, where the kernel can do that;
    else it is read-only.
    """
    writable = []
    for place, folder in caches.compiled.items():
        writable.append(os.path.join(HOME, place))
        bind(folder, writable[-1])
    for number, (place, folder) in enumerate(caches.seen.items()):
        target = os.path.join(HOME, place)
        try:
            _lay_over(folder, target, f"/tmp/.cache-{number}")
            writable.append(target)
        except OSError:
            bind(folder, target)
    return writable


def _lay_over(folder: str, target: str, own: str) -> None:
    """The folder of the old root at `target`, with what is written there in `own`."""
    if any(sign in folder for sign in ":,\\"):
        raise OSError(errno.EINVAL, "not a name for an overlay", folder)
    for path in (target, f"{own}/upper", f"{own}/work"):
        os.makedirs(path)
    options = f"lowerdir={OLD}{folder},upperdir={own}/upper,workdir={own}/work"
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    try:
        kernel.mount("overlay", target, "overlay", flags, options)
    except OSError:  # in a user namespace
        kernel.mount("overlay", target, "overlay", flags, f"{options},userxattr")


def _new_root() -> None:
    """A root of its own with this machine's folders in it; the old one is at OLD."""
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755")
    os.mkdir("/tmp" + OLD)
    kernel.pivot_root("/tmp", "/tmp" + OLD)
    os.chdir("/")
    for name in os.listdir(OLD):
        if name not in MADE_HERE:
            _mirror(name)
    for name in ("proc", "tmp"):
        os.mkdir(f"/{name}")
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    _own_sys()
    _own_opt()


def _mirror(name: str) -> None:
    """An entry of an old folder, by its path without the first slash, at the same place."""
    old, new = f"{OLD}/{name}", f"/{name}"
    if os.path.islink(old):
        os.symlink(os.readlink(old), new)
    elif os.path.isdir(old):
        os.mkdir(new)
        kernel.mount(old, new, flags=kernel.MS_BIND | kernel.MS_REC)
    elif os.path.isfile(old):
        os.close(os.open(new, os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.mount(old, new, flags=kernel.MS_BIND)


def _own_sys() -> None:
    """/sys with this namespace's interfaces where the kernel allows it, else the machine's."""
    os.mkdir("/sys")
    try:
        kernel.mount(
            "sysfs",
            "/sys",
            "sysfs",
            kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY,
        )
        kernel.mount(f"{OLD}/sys/fs/cgroup", "/sys/fs/cgroup", flags=kernel.MS_BIND | kernel.MS_REC)
    except OSError:
        kernel.mount(f"{OLD}/sys", "/sys", flags=kernel.MS_BIND | kernel.MS_REC)


def _own_opt() -> None:
    """/opt entry by entry, since the real one may lack `ml` and must not be written to."""
    os.mkdir("/opt")
    old = os.path.realpath(f"{OLD}/opt") if os.path.islink(f"{OLD}/opt") else f"{OLD}/opt"
    for name in os.listdir(old) if os.path.isdir(old) else ():
        if name != "ml":
            _mirror(f"opt/{name}")
    os.mkdir(ML)


def bind(source: str, target: str) -> None:
    """A folder of the old root at `target`, which is made if need be."""
    os.makedirs(target, exist_ok=True)
    kernel.mount(OLD + source, target, flags=kernel.MS_BIND | kernel.MS_REC)


def _own_hosts_file(orders: Orders) -> None:
    """/etc/hosts with every host of the cluster, and nothing else but this machine itself."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    for host in orders.hosts:
        # torch listens on IPv6 and warns about every peer whose mapped address has no name
        lines += [f"{host.address} {host.name}", f"::ffff:{host.address} {host.name}.mapped"]
    path = "/tmp/.hosts"
    with open(path, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    kernel.mount(path, "/etc/hosts", flags=kernel.MS_BIND)
    os.unlink(path)


def _reachable_resolvers() -> None:
    """The resolvers that one on loopback asks, which is not the host's loopback."""
    path = os.path.realpath("/etc/resolv.conf")
    servers = re.findall(r"(?m)^nameserver\s+(\S+)", read_text(path))
    if servers and all(server.startswith("127.") for server in servers):
        with suppress(OSError):  # names do not resolve, then; addresses are reached
            kernel.mount(RESOLVERS, path, flags=kernel.MS_BIND)


def _make_read_only(exempt: Iterable[str]) -> None:
    """Every mount but the exempt ones; other flags stay, as the kernel demands without root."""
    for path, options in mounts():
        if path in exempt or is_below(path, ("/proc", "/sys", "/dev")):
            continue
        flags = sum(flag for name, flag in _KEPT_FLAGS.items() if name in options)
        try:
            kernel.mount(
                "", path, flags=kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | flags
            )
        except FileNotFoundError:
            continue  # somebody took it away meanwhile, a container's for one: nothing to protect
        except PermissionError:
            if path == "/":
                raise


def mounts() -> list[tuple[str, frozenset[str]]]:
    """(path, options) of every mount of this process."""
    found = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            fields = line.split(b" ")
            path = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), fields[4])
            found.append((os.fsdecode(path), frozenset(fields[5].decode("ascii").split(","))))
    return found

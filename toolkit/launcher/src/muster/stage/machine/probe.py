"""What this host has. Never taken from an instance's name."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping

from muster.stage.machine.cgroup import Cgroups, usable_cpus
from muster.types.files import find_program
from muster.types.machine import Interface, Machine

PROBE_LIMIT_S = 10.0
_SIOCGIFADDR = 0x8915
_SIOCGIFFLAGS = 0x8913
_UP = 0x1
_GLOBAL = 0x0  # a scope; flags: IFA_F_TEMPORARY; IFA_F_DADFAILED, _DEPRECATED, _TENTATIVE
_TEMPORARY, _NOT_USABLE = 0x01, 0x08 | 0x20 | 0x40


def probe_machine(environ: Mapping[str, str], limit_s: float = PROBE_LIMIT_S) -> Machine:
    """The facts of this host; under 1 ms where no accelerator tool is on PATH.

    A tool that does not answer within `limit_s`, or not in its own format, gives None: unknown.
    """
    cgroups = Cgroups()
    gpus, neurons = _accelerators(environ, limit_s)
    return Machine(
        cpus=usable_cpus(cgroups),
        gpus=gpus,
        neurons=neurons,
        efa=has_efa(),
        interfaces=interfaces(),
        memory_limit_bytes=cgroups.memory_limit_bytes(),
        shm_bytes=shm_bytes(),
    )


def find_tool(environ: Mapping[str, str], name: str) -> str:
    """The path of an executable on the PATH of `environ`, or ""."""
    return find_program(environ.get("PATH", os.defpath).split(os.pathsep), name)


def _accelerators(environ: Mapping[str, str], limit_s: float) -> tuple[int | None, int | None]:
    """GPUs and Neuron cores; both tools, where present, run side by side."""
    nvidia, neuron = find_tool(environ, "nvidia-smi"), find_tool(environ, "neuron-ls")
    if not nvidia and not neuron:
        return 0, 0
    from muster.stage.machine.question import Question

    gpus = Question([nvidia, "--list-gpus"], environ) if nvidia else None
    cores = Question([neuron, "-j"], environ) if neuron else None
    limit_s += gpus.started if gpus else cores.started if cores else 0.0
    return (
        count_gpus(gpus.answer(limit_s)) if gpus else 0,
        count_neuron_cores(cores.answer(limit_s)) if cores else 0,
    )


def count_gpus(answer: str | None) -> int | None:
    """GPUs in the output of `nvidia-smi --list-gpus`; a tool that failed has no GPU to offer."""
    if answer is None:
        return None
    return sum(line.startswith("GPU ") for line in answer.splitlines())


def count_neuron_cores(answer: str | None) -> int | None:
    """The sum of `nc_count` over the devices in the output of `neuron-ls -j`."""
    if answer is None or not answer.strip():
        return None if answer is None else 0
    import json

    try:
        return sum(int(device["nc_count"]) for device in json.loads(answer))
    except (ValueError, TypeError, KeyError):
        return None


def has_efa(folder: str = "/sys/class/infiniband") -> bool:
    """Whether a device of the EFA driver is there."""
    try:
        devices = os.listdir(folder)
    except OSError:
        return False
    drivers = (os.path.realpath(f"{folder}/{name}/device/driver") for name in devices)
    return any(os.path.basename(driver) == "efa" for driver in drivers)


def interfaces() -> tuple[Interface, ...]:
    """Network interfaces that are up, each with its first IPv4 address; after them all global
    IPv6 addresses."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                flags = fcntl.ioctl(sock, _SIOCGIFFLAGS, request)[16:18]
                address = fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24]
            except OSError:
                continue  # no IPv4 address, or gone since
            if int.from_bytes(flags, "little") & _UP:
                found.append(Interface(name, socket.inet_ntoa(address)))
    return (*found, *ipv6_addresses())


def ipv6_addresses(table: str = "/proc/net/if_inet6") -> list[Interface]:
    """Those that last come first: of the temporary ones the kernel makes new ones every day."""
    found = []
    try:
        with open(table, encoding="utf-8") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []  # a kernel without IPv6
    for digits, _, _, scope, flags, name in rows:
        if int(scope, 16) == _GLOBAL and not int(flags, 16) & _NOT_USABLE:
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
            found.append((int(flags, 16) & _TEMPORARY, Interface(name, address)))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def shm_bytes(folder: str = "/dev/shm") -> int | None:
    """The size of shared memory, or None when there is none."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize

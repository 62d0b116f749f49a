"""What `muster doctor` makes of the machine itself: pure functions over facts, one for a line."""

from __future__ import annotations

import time

from muster.commands.doctor_facts import Facts
from muster.commands.doctor_finding import Finding, fail, fine, warn
from muster.types.plain import size_text

OLDEST_PYTHON = (3, 10)
_SMALL_SHM_BYTES = 64 << 20  # what Docker gives by default
_SMALL_MEMORY_BYTES = 1 << 30
_2024_S = 1_704_067_200
_2100_S = 4_102_444_800
_DRIFT_S = 0.5
_SLOW_S = 1.0
_ENOUGH = 1024  # open files, processes


def system(facts: Facts) -> Finding:
    python = ".".join(map(str, facts.python))
    machine = f"{facts.system} {facts.release} {facts.architecture}"
    found = f"muster {facts.muster}, Python {python}, {machine}"
    if facts.system != "Linux":
        breaks = "`train` and `muster local` need Linux; `muster plan` works here"
        return fail(found, breaks, "docker run --rm -it -v $PWD:/code -w /code python bash")
    if facts.python < OLDEST_PYTHON:
        breaks = "everything: Python 3.10 is the oldest that is supported"
        return fail(found, breaks, "sudo apt-get install -y python3.12-venv")
    if facts.architecture not in ("x86_64", "aarch64"):
        return warn(found, "what was tested on x86_64 and arm64 only", "uname -m")
    return fine(found)


def interface(facts: Facts) -> Finding:
    have = facts.machine.interfaces
    found = ", ".join(f"{one.name} {one.address}" for one in have) or "none has an address"
    if not any(one.address.startswith("127.") for one in have):
        breaks = "hosts of `muster local`, torch's store"
        return fail(found, breaks, "sudo ip link set lo up")
    real = [one.name for one in have if not one.address.startswith("127.")]
    if not real:
        breaks = "jobs of several machines: no other can reach this one"
        return warn(found, breaks, "sudo ip link set eth0 up && sudo dhclient eth0")
    if not facts.default_route:
        breaks = "code in S3, packages from an index"
        fix = f"sudo ip route add default via GATEWAY dev {real[0]}"
        return warn(f"{found}; no default route", breaks, fix)
    return fine(f"{found}; default route by {facts.default_route}")


def names(facts: Facts) -> Finding:
    own, localhost, took_s = facts.names
    if localhost is None or own is None:
        fix = "cat /etc/resolv.conf, and take out name servers that do not answer"
        return fail("the resolver does not answer", "every job of several hosts", fix)
    if not localhost or not all(address.startswith("127.") for address in localhost):
        found = f"localhost is {', '.join(localhost) or 'unknown'}"
        fix = "echo '127.0.0.1 localhost' | sudo tee -a /etc/hosts"
        return fail(found, "torchrun, gloo and most tests", fix)
    if not own:
        breaks = "gloo and MPI outside of muster, which tells them the interface"
        fix = 'echo "127.0.1.1 $(hostname)" | sudo tee -a /etc/hosts'
        return warn("this machine's own name is unknown", breaks, fix)
    if took_s > _SLOW_S:
        fix = "cat /etc/resolv.conf, and put a name server that answers first"
        return warn(f"resolving took {took_s:.1f} s", "the start of every job", fix)
    return fine(f"localhost and this machine's name resolve to {', '.join(own)}")


def ports(facts: Facts) -> Finding:
    held = [port for port in facts.ports if port.holder]
    if not held:
        listed = ", ".join(str(port.number) for port in facts.ports)
        return fine(f"{listed} are free")
    found = ", ".join(f"{port.number} is in use by {port.holder}" for port in held)
    for port in held:
        if port.variable:
            fix = f"export {port.variable}={port.number + 10_000} on every host, or else "
            fix += _release(port.holder)
            return fail(found, "jobs of several hosts", fix)
    return warn(found, "parameter servers", _release(held[0].holder))


def _release(holder: str | None) -> str:
    words = (holder or "").split()
    return f"kill {words[1]}" if words[:1] == ["PID"] else "sudo ss -ltnp"


def shared_memory(facts: Facts) -> Finding:
    size = facts.machine.shm_bytes
    if size is None:
        fix = "sudo mkdir -p /dev/shm && sudo mount -t tmpfs tmpfs /dev/shm"
        return fail("missing", "multiprocessing, DataLoader workers, NCCL", fix)
    if size <= _SMALL_SHM_BYTES:
        breaks = "DataLoader workers and NCCL die with a bus error"
        fix = "docker run --shm-size=8g ..., or sudo mount -o remount,size=8g /dev/shm;"
        fix += " in SDK local mode container_config: {shm_size: 8g}"
        return warn(size_text(size), breaks, fix)
    return fine(size_text(size))


def open_files(facts: Facts) -> Finding:
    soft, hard = facts.limits.files, facts.limits.files_hard
    if soft is None or soft >= _ENOUGH:
        return fine("unlimited" if soft is None else str(soft))
    fix = "ulimit -n 65536"
    if hard is not None and hard < 65536:
        fix = "docker run --ulimit nofile=65536:65536 ..., or sudo prlimit --nofile=65536 --pid $$"
    if soft < 64:
        breaks = "every job: muster needs 20, and 4 for each rank"
        return fail(str(soft), breaks, fix)
    return warn(str(soft), "DataLoader workers that share tensors as files", fix)


def processes(facts: Facts) -> Finding:
    limits = facts.limits
    known = [limit for limit in (limits.processes, limits.pids) if limit is not None]
    least = min(known, default=_ENOUGH)
    if least >= _ENOUGH:
        return fine(str(least) if known else "unlimited")
    found, fix = str(least), "ulimit -u 65536"
    if least == limits.pids:
        found += " (the container's limit)"
        fix = "docker run --pids-limit=-1 ..., or docker update --pids-limit=-1 CONTAINER"
    if least < 64:
        breaks = "every job: threads count too, and torch starts dozens"
        return fail(found, breaks, fix)
    return warn(found, "many ranks or DataLoader workers: threads count too", fix)


def memory(facts: Facts) -> Finding:
    limit = facts.machine.memory_limit_bytes
    if limit is None:
        return fine("no limit")
    found = f"limited to {size_text(limit)}"
    if limit < _SMALL_MEMORY_BYTES:
        breaks = "the kernel kills ranks: torch alone takes 300 MiB"
        return warn(found, breaks, "docker run --memory=8g ...")
    return fine(found)


def clock(facts: Facts) -> Finding:
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(facts.wall_s))
    fix = "sudo timedatectl set-ntp true"
    if not _2024_S <= facts.wall_s <= _2100_S:
        return fail(found, "TLS and S3, which refuse a machine of another year", fix)
    if abs(facts.drift_s) > _DRIFT_S:
        found += f"; it jumped by {facts.drift_s:+.1f} s while looking"
        return warn(found, "times in logs and traces", fix)
    return fine(found)

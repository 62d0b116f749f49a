"""What `muster doctor` makes of what it saw: pure functions over facts, one for each line."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from muster.commands.doctor_facts import Facts
from muster.stage.space import size_text

OK, WARN, FAIL = "OK", "WARN", "FAIL"
OLDEST_PYTHON = (3, 10)
_MIB = 1 << 20
_2024 = 1_704_067_200
_2100 = 4_102_444_800
_DRIFT_S = 0.5
_SLOW_S = 1.0


class Finding(NamedTuple):
    """One line: what was found, and unless all is well what it breaks and what cures it."""

    name: str
    level: str
    found: str
    breaks: str = ""
    cure: str = ""


def examine(facts: Facts) -> list[Finding]:
    """All findings, in the order in which a person would mend them."""
    if facts.system != "Linux":
        return [system(facts)]
    return [check(facts) for check in CHECKS]


def system(facts: Facts) -> Finding:
    python = ".".join(map(str, facts.python))
    found = f"muster {facts.muster}, Python {python}, {facts.system} {facts.release}"
    found += f" {facts.architecture}"
    if facts.system != "Linux":
        return Finding(
            "system", FAIL, found, "`train` and `muster local` need Linux; `muster plan` works here",
            "run it in a Linux container: docker run --rm -it -v $PWD:/work -w /work python:3.12 bash",
        )  # fmt: skip
    if facts.python < OLDEST_PYTHON:
        return Finding(
            "system", FAIL, found, "everything: Python 3.10 is the oldest that is supported",
            "python3.12 -m venv .venv && .venv/bin/python -m pip install muster-training",
        )  # fmt: skip
    if facts.architecture not in ("x86_64", "aarch64", "arm64"):
        return Finding(
            "system", WARN, found, "nothing is tested on this architecture",
            "use an x86_64 or arm64 machine",
        )  # fmt: skip
    return Finding("system", OK, found)


def interface(facts: Facts) -> Finding:
    name = "interface"
    have = [f"{one.name} {one.address}" for one in facts.machine.interfaces]
    loopback = any(one.address.startswith("127.") for one in facts.machine.interfaces)
    found = ", ".join(have) or "none has an IPv4 address"
    if not loopback:
        return Finding(name, FAIL, found, "hosts of `muster local`, torch's store",
                       "sudo ip link set lo up")  # fmt: skip
    if len(have) < 2:
        return Finding(
            name, WARN, found, "jobs of several machines: nobody can reach this one",
            "sudo ip link set eth0 up && sudo dhclient eth0, or docker run without --network none",
        )  # fmt: skip
    if not facts.default_route:
        return Finding(
            name, WARN, f"{found}; no default route", "code in S3, packages from an index",
            f"sudo ip route add default via GATEWAY dev {have[-1].split()[0]}",
        )  # fmt: skip
    return Finding(name, OK, f"{found}; default route by {facts.default_route}")


def shared_memory(facts: Facts) -> Finding:
    name, size = "/dev/shm", facts.machine.shm_bytes
    if size is None:
        return Finding(name, FAIL, "missing", "multiprocessing, DataLoader workers, NCCL",
                       "sudo mkdir -p /dev/shm && sudo mount -t tmpfs tmpfs /dev/shm")  # fmt: skip
    if size <= 64 * _MIB:
        return Finding(
            name, WARN, size_text(size), "DataLoader workers and NCCL die with a bus error",
            "docker run --shm-size=8g ..., in SDK local mode container_config: {shm_size: 8g},"
            " elsewhere sudo mount -o remount,size=8g /dev/shm",
        )  # fmt: skip
    return Finding(name, OK, size_text(size))


def open_files(facts: Facts) -> Finding:
    name, soft, hard = "open files", facts.limits.files, facts.limits.files_hard
    found = "unlimited" if soft is None else str(soft)
    if soft is None or soft >= 1024:
        return Finding(name, OK, found)
    cure = "ulimit -n 65536"
    if hard is not None and hard < 65536:
        cure = "docker run --ulimit nofile=65536:65536 ..., or sudo prlimit --nofile=65536 --pid $$"
    if soft < 64:
        return Finding(name, FAIL, found, "every job: muster needs 20, and 4 for each rank", cure)
    return Finding(name, WARN, found, "DataLoader workers that share tensors as files", cure)


def processes(facts: Facts) -> Finding:
    name, limits = "processes", facts.limits
    known = [limit for limit in (limits.processes, limits.pids) if limit is not None]
    smallest = min(known, default=None)
    found = "unlimited" if smallest is None else str(smallest)
    if smallest is None or smallest >= 1024:
        return Finding(name, OK, found)
    cure = "ulimit -u 65536"
    if smallest == limits.pids:
        found += " (the container's limit)"
        cure = "docker run --pids-limit=-1 ..., or docker update --pids-limit=-1 CONTAINER"
    if smallest < 64:
        return Finding(name, FAIL, found, "every job: threads count too, torch starts dozens", cure)
    return Finding(name, WARN, found, "many ranks or DataLoader workers: threads count too", cure)


def memory(facts: Facts) -> Finding:
    limit = facts.machine.memory_limit_bytes
    if limit is None:
        return Finding("memory", OK, "no limit")
    found = f"limited to {size_text(limit)}"
    if limit < 1024 * _MIB:
        return Finding("memory", WARN, found, "the kernel kills ranks: torch alone takes 300 MiB",
                       "docker run --memory=8g ...")  # fmt: skip
    return Finding("memory", OK, found)


def clock(facts: Facts) -> Finding:
    import time

    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(facts.wall_s))
    cure = "sudo timedatectl set-ntp true"
    if not _2024 <= facts.wall_s <= _2100:
        return Finding("clock", FAIL, found, "TLS and S3 refuse a machine with a wrong date", cure)
    if abs(facts.drift_s) > _DRIFT_S:
        found += f"; it jumped by {facts.drift_s:+.1f} s while looking"
        return Finding("clock", WARN, found, "times in logs and traces", cure)
    return Finding("clock", OK, found)


def names(facts: Facts) -> Finding:
    own, localhost, took_s = facts.names
    name = "names"
    if localhost is None or own is None:
        return Finding(name, FAIL, "the resolver does not answer", "every job of several hosts",
                       "cat /etc/resolv.conf, and remove name servers that do not answer")  # fmt: skip
    if not localhost or any(not address.startswith("127.") for address in localhost):
        found = f"localhost is {', '.join(localhost) or 'unknown'}"
        return Finding(name, FAIL, found, "torchrun, gloo and most tests",
                       "echo '127.0.0.1 localhost' | sudo tee -a /etc/hosts")  # fmt: skip
    if not own:
        return Finding(
            name, WARN, "this machine's own name is unknown",
            "gloo and MPI outside of muster, which names them the interface",
            'echo "127.0.1.1 $(hostname)" | sudo tee -a /etc/hosts',
        )  # fmt: skip
    if took_s > _SLOW_S:
        return Finding(name, WARN, f"resolving took {took_s:.1f} s", "the start of every job",
                       "cat /etc/resolv.conf, and put a name server that answers first")  # fmt: skip
    return Finding(name, OK, f"localhost and this machine's name resolve to {', '.join(own)}")


def ports(facts: Facts) -> Finding:
    held = [port for port in facts.ports if port.holder]
    if not held:
        listed = ", ".join(str(port.number) for port in facts.ports)
        return Finding("ports", OK, f"{listed} are free")
    found = ", ".join(f"{port.number} is in use by {port.holder}" for port in held)
    moved = next((port for port in held if port.variable), None)
    if moved is None:
        return Finding("ports", WARN, found, "parameter servers", _release(held[0].holder))
    cure = f"{_release(moved.holder)}, or export {moved.variable}=17776 on every host"
    return Finding("ports", FAIL, found, "jobs of several hosts", cure)


def _release(holder: str | None) -> str:
    words = (holder or "").split()
    return f"kill {words[1]}" if words[:1] == ["PID"] else "sudo ss -ltnp"


def torch(facts: Facts) -> Finding:
    version, torchrun = facts.packages.get("torch", ""), facts.tools.get("torchrun", "")
    install = f"{facts.executable} -m pip install torch"
    if not version:
        return Finding("torch", WARN, "not installed", "every distribution option but mpi", install)
    if not torchrun:
        return Finding("torch", WARN, f"{version}, without torchrun", "torch_distributed by name",
                       f"{facts.executable} -m pip install --force-reinstall torch")  # fmt: skip
    if facts.machine.gpus and "+cpu" in version:
        found = f"{version}, on a machine with {facts.machine.gpus} GPUs"
        return Finding("torch", WARN, found, "training on GPUs", f"{install} --force-reinstall")
    return Finding("torch", OK, version)


def mpi(facts: Facts) -> Finding:
    version = facts.mpi_version
    cure = "sudo apt-get install -y openmpi-bin"
    if not facts.tools.get("mpirun"):
        return Finding("mpirun", WARN, "not installed", "mpi, pytorchddp, smdistributed", cure)
    if not any(f" {number}." in version for number in ("4.1", "5.0")) or "Open MPI" not in version:
        found = version or "does not say its version"
        return Finding("mpirun", WARN, found, "only Open MPI 4.1 and 5.0 are tested", cure)
    return Finding("mpirun", OK, version)


def packages(facts: Facts) -> Finding:
    missing = [name for name in ("pip", "boto3", "rich") if not facts.packages.get(name)]
    found = ", ".join(f"{name} {facts.packages.get(name) or 'missing'}" for name in
                      ("pip", "boto3", "rich"))  # fmt: skip
    if "pip" in missing:
        return Finding("packages", WARN, found, "requirements.txt and packages of the user's code",
                       f"{facts.executable} -m ensurepip --upgrade")  # fmt: skip
    if "boto3" in missing:
        return Finding("packages", WARN, found, "code at s3:// addresses",
                       f"{facts.executable} -m pip install boto3")  # fmt: skip
    return Finding("packages", OK, found)


def isolation(facts: Facts) -> Finding:
    name, reason = "namespaces", facts.isolation
    if not reason:
        return Finding(name, OK, "hosts of `muster local` can be isolated")
    cure = "muster local --isolation process, or docker run --privileged ..."
    if not facts.tools.get("ip"):
        cure = "sudo apt-get install -y iproute2"
    elif facts.sysctls.get("user/max_user_namespaces") == "0":
        cure = "sudo sysctl -w user.max_user_namespaces=15000"
    elif facts.sysctls.get("kernel/unprivileged_userns_clone") == "0":
        cure = "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    elif facts.sysctls.get("kernel/apparmor_restrict_unprivileged_userns") == "1":
        cure = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    return Finding(name, WARN, reason, "`muster local --isolation netns`", cure)


def accelerators(facts: Facts) -> Finding:
    name, machine = "accelerators", facts.machine
    if machine.gpus is None:
        return Finding(name, WARN, "nvidia-smi does not answer", "the number of processes per host",
                       "sudo nvidia-smi -pm 1; if it hangs, restart the machine")  # fmt: skip
    if machine.neurons is None:
        return Finding(name, WARN, "neuron-ls does not answer", "the number of processes per host",
                       "sudo modprobe -r neuron && sudo modprobe neuron")  # fmt: skip
    if facts.nvidia_devices and not machine.gpus:
        found = f"{facts.nvidia_devices} NVIDIA devices, but nvidia-smi shows none"
        return Finding(name, WARN, found, "training on GPUs", "docker run --gpus all ...")
    parts = [f"{machine.gpus} GPUs" * bool(machine.gpus)]
    parts += [f"{machine.neurons} Neuron cores" * bool(machine.neurons), "EFA" * machine.efa]
    found = ", ".join(filter(None, parts)) or "none: ranks run on the CPU"
    return Finding(name, OK, f"{machine.cpus} CPUs; {found}")


def fabric(facts: Facts) -> Finding:
    """NCCL takes an interface that is not there, and forgotten files, without a word."""
    here = [one.name for one in facts.machine.interfaces]
    for variable, value in facts.fabric.items():
        if variable.endswith("_IFNAME") and not _names_one(variable, value, here):
            return Finding(
                "fabric", FAIL, f"{variable}={value}, but here are {', '.join(here) or 'none'}",
                "every job of several ranks: the user's own setting is never changed",
                f"unset {variable}",
            )  # fmt: skip
    files = {path: text for path, text in facts.fabric.items() if not path.endswith("_IFNAME")}
    for path, text in files.items():
        return Finding("fabric", WARN, f"{path} says {text}", "what jobs set may be overridden",
                       f"mv {path} {path}.off")  # fmt: skip
    found = ", ".join(f"{name}={value}" for name, value in facts.fabric.items())
    return Finding("fabric", OK, found or "no NCCL or gloo setting of yours")


def _names_one(variable: str, value: str, here: list[str]) -> bool:
    """gloo wants names; NCCL takes beginnings, `=` before exact names, `^` before unwanted ones."""
    if variable.startswith("NCCL") and value.startswith("^"):
        return True
    exact = value.startswith("=") or not variable.startswith("NCCL")
    wanted = [text for text in value.lstrip("=").split(",") if text]
    return any(name == text or (not exact and name.startswith(text))
               for name in here for text in wanted)  # fmt: skip


CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    system,
    interface,
    names,
    ports,
    shared_memory,
    open_files,
    processes,
    memory,
    clock,
    torch,
    mpi,
    packages,
    accelerators,
    fabric,
    isolation,
)

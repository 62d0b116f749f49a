"""What `muster doctor` looks at. Everything that touches the machine is here."""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from muster.commands.doctor_mpi import MpiFacts, look_for_mpi
from muster.local.hosts import why_not_isolated
from muster.stage.machine.cgroup import Cgroups
from muster.stage.machine.network import port_holder, resolve
from muster.stage.machine.probe import find_tool, probe_machine
from muster.types.files import read_text
from muster.types.job import Settings
from muster.types.machine import Machine
from muster.types.values import NamedTuple
from muster.version import __version__

FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu", "mxnet", "horovod")
PACKAGES = (*FRAMEWORKS, "mpi4py", "pip", "boto3", "rich")
TOOLS = ("torchrun", "ip")
_PORTS = {  # the first two are every job's
    Settings().control_port: "MUSTER_CONTROL_PORT",
    Settings().store_port: "MUSTER_STORE_PORT",
    2222: "",
    2223: "",
    8000: "",
    8890: "",
}
_SYSCTLS = (
    "user/max_user_namespaces",
    "kernel/unprivileged_userns_clone",
    "kernel/apparmor_restrict_unprivileged_userns",
)
_NCCL_FILES = ("/etc/nccl.conf", "~/.nccl.conf")
_RESOLVE_S = 5.0


class Names(NamedTuple):
    """What the resolver says, and how long it took; None: no answer in time."""

    own: tuple[str, ...] | None
    localhost: tuple[str, ...] | None
    took_s: float


class Port(NamedTuple):
    number: int
    variable: str  # what moves it, "" for a port of a parameter server
    holder: str | None


class ProcessLimits(NamedTuple):
    """Soft and hard limits as numbers; None: unlimited. `pids`: of the container."""

    files: int | None
    files_hard: int | None
    processes: int | None
    pids: int | None


class TrainCommand(NamedTuple):
    """The `train` that a container would start. `module`: that has its function, "" where that
    cannot be read; `on_path`: else it lies beside the interpreter only."""

    path: str = ""
    module: str = ""
    on_path: bool = False


class Facts(NamedTuple):
    """What `muster doctor` looks at.

    `drift_s`: how far the wall clock moved against the monotonic one while looking.

    `isolation`: "" or why hosts in namespaces fail here. `fabric`: variables and files that steer
    NCCL and gloo.
    """

    system: str
    release: str
    architecture: str
    python: tuple[int, int]
    executable: str
    muster: str
    machine: Machine
    default_route: str
    limits: ProcessLimits
    packages: Mapping[str, str]
    tools: Mapping[str, str]
    train: TrainCommand
    mpi: MpiFacts
    ports: tuple[Port, ...]
    wall_s: float
    drift_s: float
    names: Names
    isolation: str
    sysctls: Mapping[str, str]
    nvidia_devices: int
    fabric: Mapping[str, str]


def look(environ: Mapping[str, str]) -> Facts:
    """All facts of this machine; takes under a second, most of it for namespaces and mpi4py."""
    wall, monotonic = time.time(), time.monotonic()
    linux = sys.platform == "linux"
    tools, packages = find_tools(environ), find_packages(PACKAGES)
    return Facts(
        system=platform.system(),
        release=platform.release(),
        architecture=platform.machine(),
        python=sys.version_info[:2],
        executable=sys.executable,
        muster=__version__,
        machine=probe_machine(environ) if linux else Machine(1, 0, 0, False, (), None, None),
        default_route=default_route(read_text("/proc/net/route")),
        limits=_limits(),
        packages=packages,
        tools=tools,
        train=find_train(environ),
        mpi=look_for_mpi(environ, packages["mpi4py"]),
        ports=_ports() if linux else (),
        names=_names(),
        isolation=_isolation(tools["ip"]) if linux else "not Linux",
        sysctls={name: read_text(f"/proc/sys/{name}").strip() for name in _SYSCTLS},
        nvidia_devices=sum(os.path.exists(f"/dev/nvidia{number}") for number in range(16)),
        fabric=_fabric(environ),
        wall_s=time.time(),
        drift_s=(time.time() - wall) - (time.monotonic() - monotonic),
    )


def find_packages(names: Sequence[str]) -> dict[str, str]:
    """Versions of installed packages, which are not imported; "" for what is missing."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def find_tools(environ: Mapping[str, str]) -> dict[str, str]:
    """Paths of tools as a job would find them: on PATH, else beside the interpreter."""
    beside = os.path.dirname(sys.executable)
    path = os.pathsep.join([environ.get("PATH", os.defpath), beside, "/usr/sbin", "/sbin"])
    return {name: find_tool({"PATH": path}, name) for name in TOOLS}


def find_train(environ: Mapping[str, str]) -> TrainCommand:
    """The first on PATH, else the one beside the interpreter."""
    found = find_tool({"PATH": environ.get("PATH", os.defpath)}, "train")
    path = found or find_tool({"PATH": os.path.dirname(sys.executable)}, "train")
    module = re.search(r"^(?:from|import) (?!sys\b|re\b)([\w.]+)", read_text(path), re.MULTILINE)
    return TrainCommand(path, module[1] if module else "", bool(found))


def default_route(table: str) -> str:
    """The interface of the default route in the text of /proc/net/route, or ""."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000":
            return fields[0]
    return ""


def _limits() -> ProcessLimits:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() == 0:
        processes = resource.RLIM_INFINITY  # the kernel does not count root's
    return ProcessLimits(
        _finite(soft), _finite(hard), _finite(processes), Cgroups().process_limit()
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _ports() -> tuple[Port, ...]:
    return tuple(Port(port, name, port_holder("", port)) for port, name in _PORTS.items())


def _names() -> Names:
    """Asks in a thread: a broken resolver takes its time and has no limit."""
    answers: dict[str, tuple[str, ...]] = {}

    def ask() -> None:
        for name in ("localhost", socket.gethostname()):
            answers[name] = tuple(resolve(name, {}))

    before = time.monotonic()
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_RESOLVE_S)
    took = time.monotonic() - before
    return Names(answers.get(socket.gethostname()), answers.get("localhost"), took)


def _isolation(ip: str) -> str:
    """Makes and ends one empty host, exactly as `muster local --isolation netns` does."""
    if not ip:
        return "ip is not installed"
    with tempfile.TemporaryDirectory(prefix="muster-doctor-") as folder:
        return why_not_isolated(folder)


def _fabric(environ: Mapping[str, str]) -> dict[str, str]:
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    found = {name: environ[name] for name in names if environ.get(name)}
    for path in _NCCL_FILES:
        lines = [line.strip() for line in read_text(os.path.expanduser(path)).splitlines()]
        settings = [line for line in lines if line and not line.startswith("#")]
        if settings:
            found[path] = " ".join(settings)
    return found

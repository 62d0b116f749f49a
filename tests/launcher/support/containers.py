"""Real containers as the hosts of a job: PID 1, cgroups, names and networks are the kernel's own.

They stand on one network that knows them by their names, as on SageMaker.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.support.cluster import STOPS, Cluster, pids
from tests.launcher.support.fixtures import checked
from tests.launcher.support.invariants import Left
from tests.support.engine import LABEL, Engine, NoEngineError, mounts, packages, usable_engine

__all__ = ["RUNS", "TRAIN", "Containers", "Make", "container_jobs"]

TRAIN = [sys.executable, "-m", "muster", "train"]
# a script that runs until `let_go`
RUNS = """\
import os, time
print("ready", flush=True)
while not os.path.exists("/opt/ml/checkpoints/go"):
    time.sleep(0.02)
"""
# of the machine, or what a network with names does not need
DROPPED = (
    "TMPDIR",
    "MUSTER_JOB_SECRET",
    "MUSTER_HOST_ADDRESSES",
    "MUSTER_CONTROL_PORT",
    "MUSTER_STORE_PORT",
)


class Containers(Cluster):
    """Hosts algo-1 ... algo-N, each a container on one network that knows them by these names.

    PID 1 is `train` itself, unless `create` is given another command.
    """

    def __init__(self, engine: Engine, folder: Path, script: str, hosts: int = 2, **more: Any):
        interface = "eth0" if hosts > 1 else "lo"  # a job of one host needs no network
        more["resources"] = {"network_interface_name": interface, **(more.get("resources") or {})}
        super().__init__(folder, script, hosts, **more)
        for name in DROPPED:
            if name not in (more.get("environ") or {}):
                del self.environ[name]
        self.environ |= {"HOME": "/root", "PYTHONPATH": packages()}
        self.engine = engine
        self.network = f"{LABEL}-{self.mark}" if hosts > 1 else "none"
        self._killed: set[str] = set()
        self._created: set[str] = set()
        self._beside: set[str] = set()
        self._networked = hosts == 1

    def container(self, name: str) -> str:
        return f"{LABEL}-{self.mark}-{name}"

    def make_network(self, *options: str) -> None:
        """The job's network. `create` makes it where a test does not."""
        self.engine.must("network", "create", "--label", LABEL, *options, self.network)
        self._networked = True

    def create(
        self,
        name: str,
        *options: str,
        alias: str | None = None,
        command: Sequence[str] = TRAIN,
        environ: Mapping[str, str] | None = None,
        mine: bool = True,
    ) -> None:
        """Makes the host's container, with options of `docker create`. It does not run yet.

        `alias`: the name that it has on the network, its own by default, "" for none.
        `mine`: it is a host of the job, so it gets the job's variables.
        """
        if not self._networked:
            self.make_network("--internal")
        alias = name if alias is None else alias
        variables = {**(self.environ if mine else {}), **(environ or {})}
        base = self.base(name)
        base.mkdir(parents=True, exist_ok=True)  # a stranger has none yet
        self.engine.must(
            "create",
            f"--name={self.container(name)}",
            f"--label={LABEL}={self.mark}",
            f"--network={self.network}",
            "--dns-option=ndots:1",  # a name that nobody has is answered here, at once
            *([f"--network-alias={alias}"] if alias and len(self.names) > 1 else []),
            *(f"--env={key}={value}" for key, value in variables.items()),
            *mounts(),
            f"--mount=type=bind,src={base},dst=/opt/ml",
            *options,
            self.engine.image,
            *command,
        )
        self._created.add(name)

    def start(
        self,
        *names: str,
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        stdio: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Starts the named hosts' containers, all by default; makes those that `create` has not."""
        for name in names or self.names:
            if name not in self._created:
                self.create(name, *options, environ=environ, command=command or TRAIN)
            attach = self.engine.argv("start", "--attach", self.container(name))
            self._spawn(name, attach, environ=os.environ, stdio=stdio)

    def start_ranks(self, command: Sequence[str] | None = None) -> None:
        """Starts all hosts; returns when the scripts of all have said that they are ready."""
        for name in self.names:
            (self.base(name) / "checkpoints").mkdir()
        self.start(command=command)
        for name in self.names:
            self.wait_for(name, "ready")

    def let_go(self) -> None:
        """Ends the scripts of all hosts, if they are `RUNS`."""
        for name in self.names:
            (self.base(name) / "checkpoints" / "go").touch()

    def start_beside(self, name: str, script: str, alias: str) -> None:
        """Starts a container that is no host of the job, running a script of Python."""
        self.create(name, alias=alias, command=[sys.executable, "-uc", script], mine=False)
        self._beside.add(self.container(name))
        self.engine.must("start", self.container(name))

    def signal(self, name: str, number: int = signal.SIGTERM) -> float:
        """To the container's PID 1, as the engine sends it. The time right before, as of `time`."""
        self.trace.look()
        began_s = time.time()
        self.engine.must("kill", f"--signal={signal.Signals(number).name}", self.container(name))
        if number == signal.SIGKILL:
            self._killed.add(name)
        if number in STOPS and self._stopped_s is None:
            self._stopped_s = time.monotonic()
        return began_s

    def said_beside(self, name: str) -> str:
        """What such a container has written so far."""
        return self.engine.must("logs", self.container(name))

    def resolves(self, name: str, other: str) -> str:
        """The address that the running container finds for a name, "" for none."""
        done = self.engine("exec", self.container(name), "getent", "ahostsv4", other)
        return (done.stdout.decode().split() or [""])[0]

    def stop(self, name: str, killed_after_s: int) -> None:
        """`docker stop`: SIGTERM, and SIGKILL that much later; returns when it has ended."""
        self.trace.look()
        self.engine.must("stop", f"--time={killed_after_s}", self.container(name))

    def inside(self, name: str, *command: str) -> str:
        """Runs a command in the running container; what it wrote."""
        return self.engine.must("exec", self.container(name), *command)

    def python(self, name: str, script: str) -> str:
        """Runs a script of Python in the running container, with none of the job's variables."""
        clean = ["env", "-i", f"PATH={os.environ['PATH']}", sys.executable, "-c", script]
        return self.inside(name, *clean)

    def state(self, name: str) -> Mapping[str, Any]:
        """What the engine knows of the container (`State` of docker inspect)."""
        found = self.engine.must("inspect", "--format={{json .State}}", self.container(name))
        state: Mapping[str, Any] = json.loads(found)
        return state

    def pid_outside(self, name: str, pid: str) -> int | None:
        """This machine's pid of a process that has another one in the container.

        None where it cannot be seen: by users, and from beside the engine's machine.
        """
        same = f"/proc/{self.state(name)['Pid']}/ns/pid"
        for one in pids():
            try:
                status = Path(f"/proc/{one}/status").read_text()
                inner = next(row for row in status.splitlines() if row.startswith("NSpid:"))
                if inner.split()[-1] == pid and os.path.samefile(f"/proc/{one}/ns/pid", same):
                    return one
            except OSError:
                continue  # it is gone, or somebody else's
        return None

    def disconnect(self, name: str) -> None:
        self.engine.must("network", "disconnect", self.network, self.container(name))

    def connect(self, name: str, *options: str) -> None:
        self.engine.must("network", "connect", *options, self.network, self.container(name))

    def address(self, name: str) -> str:
        """The address of a running container on the job's network."""
        find = "--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return self.engine.must("inspect", find, self.container(name))

    def left(self, name: str) -> Left:
        left = super().left(name)
        return left._replace(code=-signal.SIGKILL) if name in self._killed else left

    def violations(self) -> list[str]:
        running = f"--filter=label={LABEL}={self.mark}"
        left = self.engine.must("ps", "--format={{.Names}}", running).split()
        wrong = [f"{name} still runs" for name in left if name not in self._beside]
        for name in self.processes:
            killed = name in self._killed
            wrong += [f"{name} wrote {path}" for path in self._written(name, killed)]
        return wrong + super().violations()

    def kill(self) -> None:
        if self._created:
            self.engine("rm", "--force", "--volumes", *map(self.container, self._created))
        if self._networked and self.network != "none":
            self.engine("network", "rm", self.network)
        super().kill()

    def _written(self, name: str, killed: bool) -> list[str]:
        """What a host wrote into its container where only /opt/ml and /tmp may be written, and
        what `train` left in /tmp."""
        lines = self.engine.must("diff", self.container(name)).splitlines()
        paths = [Path(line.split(maxsplit=1)[1]) for line in lines]
        return [
            str(path)
            for path in paths
            if path.parts[1] != "tmp" or (path.match("/tmp/muster-*") and not killed)
        ]


Make = Callable[..., Containers]


@contextmanager
def container_jobs() -> Iterator[Make]:
    """Makes jobs, `make(script, hosts=2, ...)`; checks each of them at the end and removes it.

    Skips the test, with the reason, where there is no engine.
    """
    try:
        engine = usable_engine()
    except NoEngineError as error:
        pytest.skip(f"no container engine: {error}")
    made: list[Containers] = []
    # every user of the containers may enter it
    folder = Path(tempfile.mkdtemp(prefix=f"{LABEL}-"))
    folder.chmod(0o755)

    def make(script: str, hosts: int = 2, **more: object) -> Containers:
        made.append(Containers(engine, folder / str(len(made)), script, hosts, **more))
        return made[-1]

    try:
        with checked(made):
            yield make
    finally:
        shutil.rmtree(folder)

"""Local jobs of the real SDKs, each in the SDK's own environment, and what every host left.

What the SDK reports is one thing (a job counts as a success although a
host failed); the containers that it leaves behind are the other. They are found by the labels that
compose gives them, and removed by them.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.launcher.support.invariants import Declared, Left, check_job
from tests.sdk.local_mode.table import CODE, DATA
from tests.support.engine import Engine
from tests.support.forkserver import ForkServer
from tests.support.venvs import CACHE

CLIENTS, SCRIPT = Path(__file__).parent / "clients", Path(__file__).parent / "script"
JOB_S = 240.0  # of some 10 s, on a machine that others keep busy
PROJECT = "com.docker.compose.project"
SERVICE = "com.docker.compose.service"
# A user of the SDK has credentials and a region; nothing here ever calls AWS with them.
DUMMY = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
    "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
}
NO_TELEMETRY = """\
SchemaVersion: '1.0'
SageMaker:
  PythonSDK:
    Modules:
      TelemetryOptOut: true
"""


class Client(NamedTuple):
    """A module of `clients/`, the Python that has its SDK, and where it finds our wheel."""

    program: str
    python: Path
    packages: Path


class Host(NamedTuple):
    """What one host left, as its container and its folder have it."""

    name: str
    code: int
    log: str
    failure: bytes | None
    success: bool
    ranks: tuple[dict[str, Any], ...]  # what the script of each rank wrote
    base: Path


class Job(NamedTuple):
    """`error`: what the SDK raised, None for a success. `out`: all that it showed."""

    error: str | None
    out: str
    hosts: tuple[Host, ...]

    @property
    def ranks(self) -> list[dict[str, Any]]:
        return sorted((rank for host in self.hosts for rank in host.ranks), key=_rank)

    def story(self) -> str:
        hosts = "\n".join(f"--- {h.name}: exit {h.code}\n{h.log[-3000:]}" for h in self.hosts)
        return f"{self.error}\n{self.out[-6000:]}\n{hosts}"

    def check(self, launched_by_us: bool = True) -> None:
        """What holds after every job of ours, on every host; of others' drivers only the codes."""
        assert self.hosts, self.story()
        if not launched_by_us:
            return
        # the SDK's own script speaks after `train`, and a terminal makes one stream of two
        lefts = [Left(h.name, h.code, "", h.log, h.failure, h.success, h.base) for h in self.hosts]
        wrong = check_job(lefts, Declared(no_screen=True))
        assert not wrong, f"{wrong}\n{self.story()}"


def _rank(rank: Mapping[str, Any]) -> int:
    return int(rank["rank"])


def ask(client: Client, folder: Path, request: Mapping[str, Any]) -> Any:
    """The client's answer to a request that starts no container."""
    _, answer = _talk(client, folder, json.dumps(request), {})
    return answer


def run_job(client: Client, engine: Engine, folder: Path, request: Mapping[str, Any]) -> Job:
    """Runs one job to its end; of its containers and its network nothing is left.

    `request`: without name and root, which are given here. One job at a time on this machine: SDK
    v3 calls every host of every job by the same name on the same network.
    """
    root, code, data = folder / "root", folder / "code", folder / "data"
    root.mkdir(parents=True)
    shutil.copytree(SCRIPT, code)
    data.mkdir()
    (data / "digits.txt").write_text("0123456789")
    mark = f"muster-test-{secrets.token_hex(6)}"
    with _alone(), _cleaned(engine, mark):
        environ = {"COMPOSE_PROJECT_NAME": mark, "DOCKER_HOST": engine.address}
        text = json.dumps({"name": mark, "root": str(root), **request})
        text = text.replace(CODE, str(code)).replace(DATA, str(data))
        out, answer = _talk(client, folder, text, environ)
        return Job(answer["error"], out, tuple(_hosts(engine, mark, root)))


def _talk(
    client: Client, folder: Path, request: str, environ: Mapping[str, str]
) -> tuple[str, Any]:
    """What the client showed, and its answer."""
    folder.mkdir(parents=True, exist_ok=True)
    asked, answered, settings = (folder / name for name in ("ask.json", "answer.json", "sdk.yaml"))
    asked.write_text(request)
    settings.write_text(NO_TELEMETRY)
    home = folder / "home"
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "SAGEMAKER_USER_CONFIG_OVERRIDE": str(settings)}
    process = _server(client).start(
        [str(CLIENTS / f"{client.program}.py"), str(asked), str(answered)],
        {**_environ(client), **environ, **own}, folder / "out.txt", folder=folder,
    )  # fmt: skip
    try:
        process.wait(JOB_S)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(JOB_S)
    said = (folder / "out.txt").read_text(errors="replace")
    assert answered.is_file(), f"{client.program} ended with {process.returncode}:\n{said[-6000:]}"
    return said, json.loads(answered.read_text())


@functools.cache
def _server(client: Client) -> ForkServer:
    """To import an SDK takes two seconds of a processor."""
    return ForkServer(_environ(client), client.program, python=str(client.python))


def _environ(client: Client) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    path = os.pathsep.join(map(str, (client.packages, CLIENTS)))
    return {**kept, **DUMMY, "PYTHONPATH": path}


def _hosts(engine: Engine, mark: str, root: Path) -> Iterator[Host]:
    """Every host that was made, in the order of their numbers."""
    found = engine.must("ps", "-aq", "--filter", f"label={PROJECT}={mark}").split()
    described = json.loads(engine.must("inspect", *found)) if found else []
    by_name = {each["Config"]["Labels"][SERVICE]: each for each in described}
    (compose,) = root.rglob("docker-compose.yaml")
    for name in sorted(by_name, key=_number):
        state, base = by_name[name]["State"], compose.parent / name
        output = base / "output"
        failure = output / "failure"
        logs = engine("logs", by_name[name]["Id"])
        yield Host(
            name,
            -9 if state["ExitCode"] == 137 else state["ExitCode"],
            (logs.stdout + logs.stderr).decode(errors="replace").replace("\r\n", "\n"),
            failure.read_bytes() if failure.is_file() else None,
            (output / "success").is_file(),
            tuple(json.loads(p.read_text()) for p in sorted((output / "data").glob("rank-*.json"))),
            base,
        )


def _number(name: str) -> int:
    """2 of `algo-2` and of `algo-2-x7a1b`."""
    found = re.match(r"algo-(\d+)", name)
    return int(found[1]) if found else 0


@contextmanager
def _alone() -> Iterator[None]:
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "sdk-jobs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _cleaned(engine: Engine, mark: str) -> Iterator[None]:
    """Removes what compose made under this project name, and nothing else."""
    here = ["--filter", f"label={PROJECT}={mark}"]
    try:
        yield
    finally:
        containers = engine.must("ps", "-aq", *here).split()
        if containers:
            engine("rm", "--force", "--volumes", *containers)
        networks = engine.must("network", "ls", "-q", *here).split()
        if networks:
            engine("network", "rm", *networks)
        left = [engine.must("ps", "-aq", *here), engine.must("network", "ls", "-q", *here)]
        assert left == ["", ""], f"left over of {mark}: {left}"


def why_not() -> str:
    """What this machine lacks for local mode beside an engine, or ""."""
    if os.getuid() != 0:
        return "only root may remove what the containers of local mode wrote"
    if shutil.which("docker-compose"):
        return ""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return "" if plugin.returncode == 0 else "no docker-compose: apt-get install docker-compose"

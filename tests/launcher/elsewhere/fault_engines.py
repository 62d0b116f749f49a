"""How a fault is had at each engine: real Slurm, ssh to real sshd, pods and nodes of Batch."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muster.submit import kubernetes
from tests.launcher.elsewhere.faults import SCRIPT, Fault
from tests.launcher.elsewhere.kubernetes.indexed_job import IndexedJob
from tests.launcher.elsewhere.kubernetes.kubelet import Image, Pod
from tests.launcher.elsewhere.sshd import Desk, processes
from tests.launcher.elsewhere.submitting import printed, submit
from tests.launcher.support.slurm import NODES, Slurm
from tests.support.hosts import Networks, address
from tests.support.venvs import CHECKOUT
from tests.support.waiting import wait_until, within

WAIT_S = 90.0
MUSTER = (sys.executable, "-m", "muster")
# the leader's last block, or where nobody is left to write one the line of another host
OUTCOME = re.compile(
    r"^(?:\S+ \S+ ERROR report (?=PeerError)|(?=FAILED|STOPPED by|SUCCEEDED))"
    r"(.*?)(?: exit_code=.*)?$",
    re.MULTILINE,
)
SECONDS = {  # what a second host does first
    "never": "trap 'exit 143' TERM; sleep 600 & wait; exit 143",
    "secret": (
        "umask 077; echo another secret of another job >${TMPDIR:-/tmp}/other; "
        "unset MUSTER_JOB_SECRET; export MUSTER_JOB_SECRET_FILE=${TMPDIR:-/tmp}/other"
    ),
}
SIZE = ("--set", "queue=q", "--set", "vcpus=2", "--set", "memory=2000")


class Job(ABC):
    """One job of two hosts, `names` in what muster says."""

    names: tuple[str, str]

    @abstractmethod
    def log(self) -> str:
        """What both hosts have said."""

    @abstractmethod
    def stop(self) -> None:
        """As the engine ends a job, with time."""

    @abstractmethod
    def kill(self, index: int) -> None:
        """All that runs on a host of the job, at once."""

    @abstractmethod
    def ended(self) -> set[int]:
        """The codes of the job and of hosts that were not killed, once nothing is left of it."""

    def wait(self, word: str, count: int) -> None:
        wait_until(lambda: self.log().count(word) >= count, WAIT_S, self.log)

    @abstractmethod
    def close(self) -> None:
        """Ends what is left; nothing stays."""

    def first_lines(self) -> set[str]:
        """The beginnings of all outcomes that hosts have told."""
        return set(OUTCOME.findall(self.log()))


class OnSlurm(Job):
    names = NODES

    def __init__(self, slurm: Slurm, folder: Path, fault: Fault, run: str) -> None:
        self._slurm, self._folder, self._run = slurm, folder, run
        self._killed = False
        (folder / "train.py").write_text(SCRIPT)
        words = ["train.py", "--on", "slurm", "--output", run, "--hosts", "2", "--retries", "0"]
        python = wrapper(folder / "python", fault, '"$@"')
        own = (*fault.options, *fault.own.get("slurm", ()))
        self._muster("submit", *words, "--python", python, *own, "--", fault.script)
        self._number = json.loads((folder / run / "submitted.json").read_text())["job_id"]

    def _muster(self, *words: str) -> int:
        done = subprocess.run(
            [*self._slurm.on_first(), f"--wd={self._folder}", *MUSTER, *words],
            env=self._slurm.environ,
            capture_output=True,
            text=True,
            timeout=within(120),
            check=False,
        )
        assert "--on" not in words or done.returncode == 0, done.stderr
        return done.returncode

    def log(self) -> str:
        path = self._folder / self._run / "engine.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        self._slurm.client("scancel", self._number)

    def kill(self, index: int) -> None:
        """Slurm's own daemons stay, as they do not when a machine is lost; then the job is Slurm's
        to end, and that takes minutes."""
        self._killed = True
        self._slurm.kill(NODES[index])

    def ended(self) -> set[int]:
        return {self._muster("submit", "--follow", self._run)}

    def close(self) -> None:
        self._slurm.client("scancel", self._number, check=False)
        self._slurm.wait_clean(killed=self._killed)


class OnHosts(Job):
    names = ("node-a", "node-b")

    def __init__(self, desk: Desk, folder: Path, fault: Fault, run: str) -> None:
        self._desk, self._log = desk, folder / f"{run}.log"
        (folder / "train.py").write_text(SCRIPT)
        (folder / "hosts.txt").write_text("\n".join(self.names) + "\n")
        words = ["train.py", "--on", "hosts:hosts.txt", "--output", run]
        words += ["--set", f"F={desk.config}", *fault.options, *fault.own.get("hosts", ())]
        if fault.second:
            words += ["--python", wrapper(folder / "python", fault, '"$@"')]
        argv = [*desk.inside("desk"), f"--wd={folder}", *MUSTER, "submit", *words]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([*argv, "--", fault.script], stdout=log, stderr=log)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self, index: int) -> None:
        for pid, line in processes(self._desk.net.holders[self.names[index]]):
            if "sshd" not in line:
                _kill(pid)

    def ended(self) -> set[int]:
        return {self._process.wait(within(WAIT_S))}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        wait_until(lambda: not any(map(self._desk.left, self.names)), WAIT_S)


class InPods(Job):
    def __init__(self, networks: Networks, folder: Path, fault: Fault, run: str) -> None:
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code" / "train.py").write_text(SCRIPT)
        words = ["--hosts", "2", "--retries", "0", *fault.options]
        words += [*fault.own.get("kubernetes", ()), "--", fault.script]
        made = printed(folder, *words)
        given = dict(fault.options[at + 1].split("=", 1) for at in settings_at(fault))
        told = {"secret": secrets.token_hex(32), "environ.json": json.dumps(given)}
        made[0]["stringData"].update(told)  # what --dry-run leaves out
        name = made[-1]["metadata"]["name"]
        holders = {f"{name}-{index}": networks.holders[f"node-{index}"] for index in (0, 1)}
        own = networks._replace(holders=holders)
        self.names = (f"{name}-0.{name}", "node-1")  # the leader is known by its address alone
        self._job = IndexedJob(made, own, folder / run, {"train:1": image(folder, fault)}, {})

    def log(self) -> str:
        self._job.tick()
        return "\n".join(pod.log for pod in self._job.pods)

    def stop(self) -> None:
        self._job.delete()

    def kill(self, index: int) -> None:
        self._job.latest(index).signal(signal.SIGKILL)

    def ended(self) -> set[int]:
        """What `--status` makes of the pods as a cluster shows them."""
        wait_until(self._job.tick, WAIT_S, self.log)
        return {kubernetes.exit_code(self._job.shown(), "muster") or 0}

    def close(self) -> None:
        self._job.close()


class Node(NamedTuple):
    """An instance with one container; see `kubelet.Host`."""

    folder: Path
    networks: Networks
    template: Mapping[str, Any]
    images: Mapping[str, Image]
    claims: Mapping[str, Path]
    name: str = "node"
    count: int = 2
    services: frozenset[str] = frozenset()
    data: Mapping[tuple[str, str], dict[str, bytes]] = {}


class OnBatch(Job):
    """The containers of both nodes, told what Batch tells them: of the main node's address only the
    other one hears."""

    names = ("node-0", "node-1")

    def __init__(self, networks: Networks, folder: Path, fault: Fault, run: str) -> None:
        words = ["--on", "batch", "--image", "i", "--source-dir", "image:/opt/ml/code"]
        words += ["--hosts", "2", *SIZE, *fault.options, *fault.own.get("batch", ())]
        said = submit(folder, *words, "--env", "A=b", "--dry-run", "--", fault.script)
        assert said.code == 0, said.err
        (folder / "code" / "train.py").write_text(SCRIPT)
        asked = json.loads(said.out)
        properties = asked["RegisterJobDefinition"]["nodeProperties"]
        (nodes,) = properties["nodeRangeProperties"]
        limit_s = asked["SubmitJob"].get("timeout", {}).get("attemptDurationSeconds")
        self._over = time.monotonic() + limit_s if limit_s else float("inf")
        given = dict(fault.options[at + 1].split("=", 1) for at in settings_at(fault))
        self._pods = []
        # ended by Batch: with the main node, which gives up first
        self._killed = {1} if fault.second in ("never", "secret") else set()
        for index in (0, 1):
            environ = {**_told_by_batch(index), "A": "b", **given}
            variables = [{"name": name, "value": value} for name, value in environ.items()]
            made = {
                "image": "i",
                "command": nodes["container"]["command"],
                "env": [*nodes["container"]["environment"], *variables],
                "volumeMounts": [{"name": "code", "mountPath": "/opt/ml/code"}],
            }
            volumes = [{"name": "code", "persistentVolumeClaim": {"claimName": "code"}}]
            spec = {"containers": [made], "volumes": volumes, "subdomain": "none"}
            spec["terminationGracePeriodSeconds"] = 30
            images, claims = {"i": image(folder, fault)}, {"code": folder / "code"}
            place = folder / f"{run}-{index}"
            self._pods.append(Pod(Node(place, networks, {"spec": spec}, images, claims), index, 0))

    def log(self) -> str:
        if time.monotonic() > self._over:
            self.stop()
        for pod in self._pods:
            pod.tick()
        return "\n".join(pod.log for pod in self._pods)

    def stop(self) -> None:
        for pod in self._pods:
            pod.terminate()

    def kill(self, index: int) -> None:
        self._killed.add(index)
        self._pods[index].signal(signal.SIGKILL)

    def ended(self) -> set[int]:
        """Batch ends the other nodes when the main one has ended."""

        def over() -> bool:
            self.log()
            if self._pods[0].code is not None:
                self._pods[1].terminate()
            return all(pod.code is not None for pod in self._pods)

        wait_until(over, WAIT_S, self.log)
        alive = [pod for pod in self._pods if pod.index not in self._killed]
        return {pod.code for pod in alive if pod.code is not None}

    def close(self) -> None:
        for pod in self._pods:
            pod.end()


def _told_by_batch(index: int) -> dict[str, str]:
    told = {"NUM_NODES": "2", "NODE_INDEX": str(index), "MAIN_NODE_INDEX": "0", "ID": "j#0"}
    if index:
        told["MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = address(0)
    environ = {f"AWS_BATCH_JOB_{name}": value for name, value in told.items()}
    return environ | {"MUSTER_JOB_SECRET": "f00d" * 16}


def settings_at(fault: Fault) -> list[int]:
    """Where options give variables."""
    return [at for at, word in enumerate(fault.options) if word == "--env"]


def image(folder: Path, fault: Fault) -> Image:
    """One whose `muster` begins as the fault wants."""
    (folder / "bin").mkdir(exist_ok=True)
    wrapper(folder / "bin" / "muster", fault, '-m muster "$@"')
    path = f"{folder}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    environ = {"PATH": path, "MUSTER_JOIN_S": "60"}
    return Image(environ, (Path(sys.base_prefix), CHECKOUT, folder / "bin"))


def wrapper(path: Path, fault: Fault, words: str) -> str:
    """A program that does on the second host what the fault wants, and then is Python."""
    first = SECONDS.get(fault.second, fault.second) or ":"
    path.write_text(
        f"#!/bin/sh\ncase $(uname -n) in *-1|n2|node-b) {first} ;; esac\n"
        f"exec {sys.executable} {words}\n"
    )
    path.chmod(0o755)
    return str(path)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass

"""A kubelet, as far as the pods of a job need one.

Pods are processes in namespaces of their own (network, host name, mounts, processes) on a root that
holds the machine's programs: its PID 1 is the container's command. What is rendered is taken as it
is; nothing here knows what runs in a pod.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.support.hosts import Networks, address

INDEX = "batch.kubernetes.io/job-completion-index"
NAMESPACE = "team"
_SHARED = ("bin", "lib", "lib64", "sbin", "usr")  # of the machine, read only
_DEVICES = ("null", "zero", "random", "urandom")
_TABLES = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ssl")
_FALLBACK_BYTES, _MOST_BYTES = 2048, 4096


class Image(NamedTuple):
    """`folders`: of the machine, which it has besides the system's."""

    environ: Mapping[str, str]
    folders: Sequence[Path]


class Host(Protocol):
    """What a pod asks of what started it. `data`: (kind, name) -> files of a Secret or ConfigMap.
    `claims`: name -> folder. `services`: that have this job's pods."""

    name: str
    folder: Path
    networks: Networks
    template: Mapping[str, Any]
    count: int
    images: Mapping[str, Image]
    claims: Mapping[str, Path]
    services: set[str]
    data: dict[tuple[str, str], dict[str, bytes]]


class Pod:
    """One pod of an index. `conditions`: that a test says it has."""

    def __init__(self, node: Host, index: int, attempt: int) -> None:
        self.node, self.index, self.attempt = node, index, attempt
        self.name = f"{node.name}-{index}-{attempt:05d}"
        self.host = f"{node.name}-{index}"
        self.folder = node.folder / self.name
        self.conditions: set[str] = set()
        self.killed_at: float | None = None
        self._killed = False
        self._spec = node.template["spec"]
        (self.container,) = self._spec["containers"]
        self._image = node.images[self.container["image"]]
        self._root = self.folder / "root"
        self._root.mkdir(parents=True)
        self._termination = self.folder / "termination"
        self._termination.touch(0o666)
        self._termination.chmod(0o666)
        self._log = self.folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*node.networks.inside(self.host), *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """As the kubelet shows it: of a signal 128 and its number, which `unshare` cannot say of
        SIGKILL."""
        found = self._process.poll()
        if found is not None and self._killed:
            return 128 + signal.SIGKILL
        return 128 - found if found is not None and found < 0 else found

    @property
    def message(self) -> str:
        """What a person sees as the reason of the end."""
        found = self._termination.read_bytes()[:_MOST_BYTES]
        policy = self.container.get("terminationMessagePolicy")
        if not found and self.code and policy == "FallbackToLogsOnError":
            found = self._log.read_bytes()[-_FALLBACK_BYTES:]
        return found.decode(errors="replace")

    @property
    def first(self) -> list[int]:
        """The container's PID 1, as this machine counts; [] once it has ended."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        try:
            return [int(pid) for pid in children.read_text().split()[:1]]
        except FileNotFoundError:
            return []

    def signal(self, number: signal.Signals) -> None:
        """To the container's PID 1."""
        self._killed = self._killed or (number == signal.SIGKILL and bool(self.first))
        for pid in self.first:
            os.kill(pid, number)

    def terminate(self) -> None:
        """SIGTERM now; `tick` sends SIGKILL when the grace period is over."""
        if self.code is None and self.killed_at is None:
            self.killed_at = time.monotonic() + self._spec["terminationGracePeriodSeconds"]
            self.signal(signal.SIGTERM)

    def tick(self) -> None:
        if self.killed_at is not None and time.monotonic() > self.killed_at:
            self.signal(signal.SIGKILL)

    def asked(self, *words: str) -> str:
        """What a command prints that is started beside the container's, as by `kubectl exec`."""
        settings = [f"{key}={value}" for key, value in self._environ().items()]
        into = ["nsenter", "--all", "--root", "--wd", f"--target={self.first[0]}"]
        done = subprocess.run(
            [*into, "env", "-i", *settings, *words], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def end(self) -> None:
        """Whatever it does."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def _command(self) -> list[str]:
        environ = self._environ()
        words = [*self.container["command"], *self.container.get("args", [])]
        argv = [_expanded(word, environ) for word in words]
        whose = {**self._spec.get("securityContext", {}), **self._own("securityContext")}
        user, group = whose.get("runAsUser", 0), whose.get("runAsGroup", 0)
        if whose.get("runAsNonRoot") and not user:
            raise AssertionError("the image runs as root, which the pod forbids")
        settings = [f"{key}={value}" for key, value in environ.items()]
        into = ["chroot", f"--userspec={user}:{group}", "--groups=", str(self._root)]
        last = shlex.join(["exec", *into, "env", "-i", *settings, *argv])
        script = "; ".join([*self._mounts(bool(whose.get("readOnlyRootFilesystem"))), last])
        isolated = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
        return [*isolated, "sh", "-ec", script]

    def _own(self, key: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.container.get(key, {})
        return found

    def _environ(self) -> dict[str, str]:
        found = {
            **self._image.environ,
            "HOSTNAME": self.host,
            "JOB_COMPLETION_INDEX": str(self.index),
        }
        fields = {"metadata.name": self.name, "metadata.namespace": NAMESPACE}
        fields["status.podIP"] = address(self.index)
        fields[f"metadata.annotations['{INDEX}']"] = str(self.index)
        for one in self.container.get("env", []):
            if "valueFrom" in one:
                found[one["name"]] = fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                found[one["name"]] = _expanded(one["value"], found)
        return found

    def _mounts(self, readonly: bool) -> list[str]:
        """Commands that make the root of the container."""
        root = str(self._root)
        shared = [name for name in _SHARED if Path("/", name).exists()]
        shared += [str(path).lstrip("/") for path in self._image.folders]
        made = [*map(shlex.quote, shared), "dev", "etc", "proc", "tmp", "opt/ml", "mnt"]
        lines = [
            "mount --make-rprivate /",
            f"mount -t tmpfs tmpfs {root}",
            f"cd {root}",
            f"mkdir -p {' '.join(made)}",
            "chmod 1777 tmp",
            *(f"mount --bind /{name} {name} && mount -o remount,bind,ro {name}" for name in shared),
            f"touch {' '.join(f'dev/{name}' for name in (*_DEVICES, 'termination-log'))}",
            *(f"mount --bind /dev/{name} dev/{name}" for name in _DEVICES),
            "ln -s /proc/self/fd dev/fd",
            *(f"cp -r /etc/{name} etc/" for name in _TABLES if Path("/etc", name).exists()),
            f"cp {shlex.quote(str(self._hosts()))} etc/hosts",
            "mount -t proc proc proc",
        ]
        place = self.container.get("terminationMessagePath", "/dev/termination-log").lstrip("/")
        lines.append(f"mount --bind {shlex.quote(str(self._termination))} {place}")
        volumes = {one["name"]: one for one in self._spec.get("volumes", [])}
        for mount in self.container.get("volumeMounts", []):
            there = self._volume(volumes[mount["name"]]) / mount.get("subPath", "")
            there.mkdir(parents=True, exist_ok=True)
            at = shlex.quote(mount["mountPath"].lstrip("/"))
            if volumes[mount["name"]].get("emptyDir", {}).get("medium") == "Memory":
                lines.append(f"mkdir -p {at} && mount -t tmpfs -o mode=1777 tmpfs {at}")
                continue
            lines.append(f"mkdir -p {at} && mount --bind {shlex.quote(str(there))} {at}")
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {at}")
        return [*lines, *([f"mount -o remount,ro {root}"] * readonly)]

    def _hosts(self) -> Path:
        """This pod's own line, as the kubelet writes it, and what a name server would say of the
        service's pods."""
        service = self._spec["subdomain"]
        full = f"{service}.{NAMESPACE}.svc.cluster.local"
        lines = ["127.0.0.1 localhost", f"{address(self.index)} {self.host}.{full} {self.host}"]
        if service in self.node.services:
            for index in range(self.node.count):
                other = f"{self.node.name}-{index}"
                lines.append(f"{address(index)} {other}.{service} {other}.{full}")
        path = self.folder / "hosts"
        path.write_text("\n".join(lines) + "\n")
        return path

    def _volume(self, volume: Mapping[str, Any]) -> Path:
        """The folder of a volume, made when it is first asked for."""
        if claim := volume.get("persistentVolumeClaim"):
            return self.node.claims[claim["claimName"]]
        place = self.folder / "volumes" / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            place.chmod(0o777)
        projected = volume.get("projected", {})
        for source in projected.get("sources", []):
            ((kind, wanted),) = source.items()
            for name, data in self.node.data[kind, wanted["name"]].items():
                (place / name).write_bytes(data)
                (place / name).chmod(projected.get("defaultMode", 0o644))
        return place


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    """$(NAME) is a variable's value where it is known, $$ is $."""
    return re.sub(
        r"\$(\$|\((\w+)\))",
        lambda found: "$" if found[1] == "$" else environ.get(found[2], found[0]),
        text,
    )

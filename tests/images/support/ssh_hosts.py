"""Containers of a real image that run sshd as SageMaker's SDK v3 starts it, on one network."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.images.engine import Client
from tests.support.images import LABEL, RUN, client, image
from tests.support.waiting import wait_until

__all__ = ["SSHD", "SshHosts", "ssh_hosts"]

SSHD = ("/usr/sbin/sshd", "-D")
HOSTS = ("algo-1", "algo-2")
UP_S = 60.0  # until sshd listens, on a busy machine


class SshHosts:
    """Makes containers, each under a network name, and runs commands in them."""

    def __init__(self, engine: Client, folder: Path, reference: str) -> None:
        self.engine = engine
        self.image = reference
        self.network = f"muster-ssh-{secrets.token_hex(4)}"
        self._folder = folder
        self._label = f"--label={LABEL}={RUN}"
        self._made: list[str] = []
        self._networked = False

    def start(
        self,
        name: str,
        job: str = "job-1",
        *,
        hosts: Sequence[str] = HOSTS,
        environ: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        command: Sequence[str] = SSHD,
        resources: Mapping[str, object] | None = None,
    ) -> str:
        """A host of that name and job; its container, once its sshd listens."""
        config = self._folder / f"{len(self._made)}"
        config.mkdir()
        said = {"current_host": name, "hosts": list(hosts), **(resources or {})}
        said.setdefault("network_interface_name", "eth0")
        (config / "resourceconfig.json").write_text(json.dumps(said))
        (config / "hyperparameters.json").write_text('{"lr": "0.1"}')
        variables = {**({"TRAINING_JOB_NAME": job} if job else {}), **(environ or {})}
        made = self.run(
            f"--network-alias={name}",
            f"--mount=type=bind,src={config},dst=/opt/ml/input/config,readonly",
            *(f"--env={key}={value}" for key, value in variables.items()),
            *options,
            command=command,
            network=self._network(),
        )
        if "/usr/sbin/sshd" in command:
            self.wait_for(made, "Server listening on")
        return made

    def run(self, *options: str, command: Sequence[str], network: str = "none") -> str:
        """A container that keeps running, or ends by itself; its name."""
        made = f"{self.network}-{len(self._made)}"
        self._made.append(made)
        words = [f"--name={made}", self._label, "--hostname=aws", f"--network={network}", *options]
        self.engine.must("run", "--detach", *words, self.image, *command)
        return made

    def wait_for(self, made: str, text: str) -> None:
        """Until the container has written that."""
        wait_until(
            lambda: text in self.said(made), UP_S, lambda: f"no {text!r} in {self.said(made)!r}"
        )

    def wait_for_end(self, made: str) -> int:
        """Its exit code, once it has ended."""
        return int(self.engine.must("wait", made, limit_s=UP_S))

    def said(self, made: str) -> str:
        """What it has written so far, to both streams."""
        done = self.engine.run("logs", made)
        return done.stdout + done.stderr

    def run_in(
        self, made: str, *command: str, options: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        return self.engine.run("exec", *options, made, *command)

    def must(self, made: str, *command: str, options: Sequence[str] = ()) -> str:
        """What the command writes; it must end well."""
        done = self.run_in(made, *command, options=options)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.said(made)}"
        return done.stdout

    def remove(self) -> None:
        if self._made:
            self.engine.run("rm", "--force", "--volumes", *self._made)
        if self._networked:
            self.engine.must("network", "rm", self.network)

    def _network(self) -> str:
        if not self._networked:
            self.engine.must("network", "create", "--internal", self._label, self.network)
            self._networked = True
        return self.network


@contextmanager
def ssh_hosts() -> Iterator[SshHosts]:
    """Skips the test where images cannot be built; removes all that was made."""
    reference = image("base")
    folder = Path(tempfile.mkdtemp(prefix="muster-ssh-"))
    folder.chmod(0o755)  # for containers of another user
    made = SshHosts(client(), folder, reference)
    try:
        yield made
    finally:
        made.remove()
        shutil.rmtree(folder)

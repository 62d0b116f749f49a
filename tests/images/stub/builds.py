"""Builds against stub upstreams: a copy of the build's context, whose locks may be replaced, and a
folder served to the build over HTTP, from an address of this host that builds reach."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.images.build import command
from scripts.images.engine import Client
from scripts.images.inputs import find_inputs
from scripts.images.pins import CHECKOUT
from tests.images.stub.cache import forget
from tests.support.images import LABEL, RUN, client

BUILD_S = 900.0
CONTEXT = ("docker", "toolkit", "tests/images/inside")


class Outcome(NamedTuple):
    """`reference`: the image, "" when the build failed. `said`: all that the build wrote."""

    reference: str
    said: str


class Upstream(NamedTuple):
    """`folder` is what `url` serves; `context` is what images are built from."""

    folder: Path
    url: str
    context: Path

    def build(self, target: str, *arguments: str) -> Outcome:
        """Builds a target of the copied context with those NAME=value. Never raises for failure."""
        engine = client()
        tag = f"muster-test-{RUN}:stub-{target}-{len(list(self.context.parent.glob('tag-*')))}"
        (self.context.parent / f"tag-{tag.rpartition(':')[2]}").touch()
        done = engine.run(*self._command(engine, target, tag, arguments), limit_s=BUILD_S)
        text = done.stdout + done.stderr
        return Outcome("", text) if done.returncode else Outcome(tag, text)

    def _command(
        self, engine: Client, target: str, tag: str, arguments: tuple[str, ...]
    ) -> list[str]:
        inputs = find_inputs(engine, os.environ)
        conf = self.context.parent / "pip.conf"
        settings = inputs.pip_conf.read_text() if inputs.pip_conf else "[global]\n"
        host = self.url.removeprefix("http://").rpartition(":")[0]
        conf.write_text(f"{settings}extra-index-url = {self.url}/simple\ntrusted-host = {host}\n")
        words = command(
            target, tag, "", inputs._replace(pip_conf=conf), engine, arguments, f"{LABEL}={RUN}"
        )
        file = f"--file={self.context / 'docker' / 'Dockerfile'}"
        return [file if word.startswith("--file=") else word for word in words[:-1]] + [
            str(self.context)
        ]


@contextmanager
def upstream(folder: Path) -> Iterator[Upstream]:
    """Serves `folder`/served until the end. Skips the test where builds cannot reach this host."""
    served, context = folder / "served", folder / "context"
    served.mkdir(parents=True)
    for part in CONTEXT:
        shutil.copytree(
            CHECKOUT / part,
            context / part,
            ignore=shutil.ignore_patterns("__pycache__", "*.whl", "build.local.env"),
        )
    address = address_of_this_host(client())
    handler = functools.partial(_Quiet, directory=str(served))
    try:
        server = http.server.ThreadingHTTPServer((address, 0), handler)
    except OSError as error:
        pytest.skip(f"builds cannot reach this host at {address}: {error}")
    began = datetime.now(timezone.utc).replace(microsecond=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield Upstream(served, f"http://{address}:{server.server_port}", context)
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()
        for tag in folder.glob("tag-*"):
            client().run("rmi", "--force", f"muster-test-{RUN}:{tag.name.removeprefix('tag-')}")
        forget(client(), began)


def address_of_this_host(engine: Client) -> str:
    """As builds reach it: on the engine's bridge, whose gateway not every engine names; without
    that network builds have the host's own."""
    done = engine.run("network", "inspect", "bridge", "--format={{json .}}")
    if done.returncode:
        return "127.0.0.1"
    bridge = json.loads(done.stdout)
    for part in bridge["IPAM"]["Config"] or ():
        if part.get("Gateway"):
            return str(part["Gateway"])
    name = bridge["Options"].get("com.docker.network.bridge.name", "docker0")
    argv = ["ip", "-json", "-4", "address", "show", "dev", name]
    shown = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    found = [
        part for link in json.loads(shown.stdout or "[]") for part in link.get("addr_info", ())
    ]
    if not found:
        pytest.skip(f"builds cannot reach this host: {name} has no address here")
    return str(found[0]["local"])


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

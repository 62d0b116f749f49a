"""Builds against stub upstreams: a copy of the build's context, whose locks may be replaced, and a
folder served to the build over HTTP, from an address of this host that builds reach."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
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
GATEWAY = "{{range .IPAM.Config}}{{.Gateway}}{{end}}"


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
    bridge = client().run("network", "inspect", "bridge", f"--format={GATEWAY}")
    # without that network builds have the host's
    address = bridge.stdout.strip() if bridge.returncode == 0 else "127.0.0.1"
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


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

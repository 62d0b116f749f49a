"""The engines that people have: the one that `client` finds, and a dockerd as Debian starts it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.images.engine import outward
from scripts.images.inputs import find_inputs
from scripts.images.pins import CHECKOUT
from tests.images.stub.builds import upstream
from tests.support.images import LABEL, RUN, client

pytestmark = pytest.mark.timeout(300)
NEEDED = ("dockerd", "pasta", "unshare")
DOCKERFILE = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG URL
RUN /usr/lib/apt/apt-helper download-file "${URL}/word" /word && grep -qx heard /word
"""


def test_a_build_reaches_a_server_of_this_host(tmp_path: Path) -> None:
    engine = client()
    base = find_inputs(engine, os.environ).base
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    with upstream(tmp_path / "upstream") as server:
        (server.folder / "word").write_text("heard\n")
        done = engine.run(
            "build", *outward(engine), f"--build-arg=BASE_IMAGE={base}", "--no-cache",
            f"--build-arg=URL={server.url}", f"--label={LABEL}={RUN}",
            f"--file={tmp_path / 'Dockerfile'}", str(server.folder), limit_s=120,
        )  # fmt: skip
    engine.run("image", "prune", "--force", f"--filter=label={LABEL}={RUN}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start an engine")
def test_so_does_one_on_an_engine_with_debians_settings(tmp_path: Path) -> None:
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        pytest.skip(f"no {', '.join(missing)} here")
    engine, base = client(), f"muster-test-{RUN}:debian"
    inner = f"{__file__}::{test_a_build_reaches_a_server_of_this_host.__name__}"
    script = 'docker load -q -i "$1"; shift; "$@"'
    try:
        engine.must("tag", find_inputs(engine, os.environ).base, base)
        engine.must("save", f"--output={tmp_path / 'base.tar'}", base)
    finally:
        engine.run("rmi", base)
    done = subprocess.run(
        ["scripts/default-engine", "sh", "-euc", script, "sh", str(tmp_path / "base.tar"),
         sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", inner],
        cwd=CHECKOUT, env={**os.environ, "BASE_IMAGE": base, "TEST_MUST_HAVE_IMAGES": "1"},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout

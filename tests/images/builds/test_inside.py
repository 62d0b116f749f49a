"""The tests that run inside an image, and the two front ends that must build the same one."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from scripts.images.buildx import PLUGIN
from scripts.images.check import LIMIT_S
from scripts.images.engine import address, outward
from scripts.images.inputs import find_inputs
from scripts.images.pins import CHECKOUT
from tests.support.images import LABEL, RUN, client, contained, image

pytestmark = pytest.mark.timeout(1800)
# cuda-efa and neuron cannot be built without their upstreams
BUILT = ("base", "cpu", pytest.param("cpu-devel", marks=pytest.mark.long))


@pytest.mark.parametrize("target", BUILT)
def test_what_is_inside_is_what_is_said(target: str) -> None:
    engine = client()
    done = contained(engine, "--network=none", image(f"{target}-test"), limit_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_buildx_builds_the_same_image_from_what_bake_prints() -> None:
    engine = client()
    if not PLUGIN.is_file():
        pytest.skip("no docker buildx in .cache (python -m scripts.images buildx)")
    ours, theirs = image("base"), f"muster-test-{RUN}:baked"
    inputs = find_inputs(engine, os.environ)
    environ = {**os.environ, "BASE_IMAGE": inputs.base, "DOCKER_CONFIG": str(PLUGIN.parents[1])}
    where = address(os.environ)
    if where:
        environ["DOCKER_HOST"] = where
    printed = buildx(environ, "bake", "--print", "base")
    target = json.loads(printed)["target"]["base"]
    try:
        # as bake does, and with the way out that an engine without a network needs
        buildx(
            environ, "build", "--load", f"--file={target['dockerfile']}",
            f"--target={target['target']}", f"--tag={theirs}",
            *(f"--build-arg={name}={value}" for name, value in target["args"].items()),
            *(one for one in inputs.arguments() if one.startswith("--secret")),
            *outward(engine), target["context"],
        )  # fmt: skip
        layers = "--format={{json .RootFS.Layers}}"
        assert engine.must("image", "inspect", layers, theirs) == engine.must(
            "image", "inspect", layers, ours
        )
        configurations = [
            json.loads(engine.must("image", "inspect", "--format={{json .Config}}", one))
            for one in (ours, theirs)
        ]
        for config in configurations:  # the test's own label, and the commit
            for name in (LABEL, "org.opencontainers.image.revision"):
                config["Labels"].pop(name, None)
        assert configurations[0] == configurations[1]
    finally:
        engine.run("rmi", "--force", theirs)


def buildx(environ: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [str(PLUGIN), *words],
        cwd=CHECKOUT, env=environ, capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout

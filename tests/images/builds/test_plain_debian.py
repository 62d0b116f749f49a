"""README's first command on a plain Debian, with what README says a machine needs and no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.images.engine import outward
from scripts.images.inputs import find_inputs
from scripts.images.pins import CHECKOUT
from tests.support.images import LABEL, RUN, client, contained

PREREQUISITES = ("git", "make", "python3", "python3-venv")
SENTENCE = "Requirements: Linux, git, make, and Python 3.10 or newer with `venv`"
DOCKERFILE = """\
ARG BASE_IMAGE
FROM ${{BASE_IMAGE}}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends {packages}
RUN useradd --create-home person
USER person
WORKDIR /home/person
"""
# the user's own settings of pip, and the machine's certificates, are part of a machine
TRY = (
    "git clone -q /source.bundle muster && cd muster && "
    'env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin make demo'
)


@pytest.mark.timeout(900)
def test_make_demo_runs_for_an_ordinary_user_with_an_empty_environment(tmp_path: Path) -> None:
    assert SENTENCE in (CHECKOUT / "README.md").read_text()
    engine = client()
    inputs = find_inputs(engine, {})
    way = outward(engine)
    reference = f"muster-test-{RUN}:plain-debian"
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.format(packages=" ".join(PREREQUISITES)))
    source = tmp_path / "source.bundle"
    words = ["git", "bundle", "create", "--quiet", str(source), "HEAD"]
    subprocess.run(words, cwd=CHECKOUT, check=True, timeout=60)
    for path in (tmp_path, source):  # an ordinary user reads it
        path.chmod(0o755)
    try:
        engine.must(
            "build", *way, f"--build-arg=BASE_IMAGE={inputs.base}", f"--tag={reference}",
            f"--label={LABEL}={RUN}", str(tmp_path), limit_s=600,
        )  # fmt: skip
        done = contained(
            engine, *way, *_network(tmp_path, inputs.ca_bundle),
            f"--mount=type=bind,src={source},dst=/source.bundle,readonly",
            reference, "sh", "-c", TRY, limit_s=600,
        )  # fmt: skip
    finally:
        engine.run("rmi", "--force", reference)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "demo: ok accuracy=" in done.stdout


def _network(folder: Path, bundle: Path | None) -> list[str]:
    """What this machine's network needs, as an administrator would have set it there."""
    wheels = CHECKOUT / "docker" / "wheelhouse"
    settings = ["[global]"]
    mounts = []
    if any(wheels.glob("*.whl")):
        settings.append("find-links = /wheels")
        mounts.append(f"--mount=type=bind,src={wheels},dst=/wheels,readonly")
    if bundle is not None:
        settings.append("cert = /etc/ssl/certs/ca-certificates.crt")
        place = "/etc/ssl/certs/ca-certificates.crt"
        mounts.append(f"--mount=type=bind,src={bundle},dst={place},readonly")
    (folder / "pip.conf").write_text("\n".join(settings) + "\n")
    return [*mounts, f"--mount=type=bind,src={folder / 'pip.conf'},dst=/etc/pip.conf,readonly"]

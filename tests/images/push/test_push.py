"""Pushes to a real registry on loopback: what arrives, what is refused, how much is sent."""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.images.support.pushing import Desk, with_a_changed_toolkit
from tests.images.support.registries import Registry, counted, docker_registry
from tests.support.images import LABEL, RUN, image

MEGABYTE = 1_000_000
TOOLKIT_BYTES = 2_100_000  # as installed the wheel may have so much
SHOWS = ("grep", "-c", "^# changed", "/opt/venv/lib/python3.11/site-packages/muster/cli.py")


def asked(registry: Registry, path: str, kind: str = "*/*") -> Any:
    request = urllib.request.Request(f"http://{registry.address}{path}", headers={"Accept": kind})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_what_was_pushed_is_pulled_by_the_digest_that_was_printed_and_runs(
    desk: Desk, registry: Registry
) -> None:
    image = desk.image("first")
    told = desk.pushed(registry.address, f"--image={image}", "--tag=one")
    assert told["reference"] == f"{registry.address}/{desk.mark}@{told['digest']}"
    desk.forget()
    assert "No such image" in desk.engine("image", "inspect", image).stderr.decode()
    desk.engine.must("pull", told["reference"])
    assert desk.run(told["reference"], "cat", "/toolkit") == "first"
    found = json.loads(desk.engine.must("image", "inspect", told["reference"]))[0]
    assert found["RepoDigests"] == [told["reference"]]
    assert found["Id"] == told["image_id"]


def test_the_image_manifest_says_what_the_registry_has(desk: Desk, registry: Registry) -> None:
    image = desk.image("first", bulk=secrets.token_bytes(200_000))
    told = desk.pushed(registry.address, f"--image={image}", "--tag=one")
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    there = asked(registry, f"/v2/{desk.mark}/manifests/one", kind)
    layers = [{"digest": x["digest"], "compressed_bytes": x["size"]} for x in there["layers"]]
    assert told["layers"] == layers
    assert told["compressed_bytes"] == sum(one["compressed_bytes"] for one in layers) > 200_000
    assert told["size_bytes"] > 200_000
    assert told["image_id"] == there["config"]["digest"]
    fixed = {key: told[key] for key in ("schema", "target", "registry", "repository", "tag")}
    place = {"registry": registry.address, "repository": desk.mark, "tag": "one"}
    assert fixed == {"schema": 1, "target": "mine", **place}
    assert told["git_sha"] is told["version"] is None  # its labels, if any, would be of its base


def test_a_tag_that_is_another_image_is_refused_and_stays(desk: Desk, registry: Registry) -> None:
    first = desk.pushed(registry.address, f"--image={desk.image('first')}", "--tag=one")
    desk.manifest.unlink()
    said = desk.refused(registry.address, f"--image={desk.image('second')}", "--tag=one")
    assert f"exists and is another image ({first['digest']})" in said
    assert "--tag" in said
    pulled = desk.engine.must("pull", "--quiet", f"{registry.address}/{desk.mark}:one")
    assert pulled.endswith(":one")
    assert desk.run(f"{registry.address}/{desk.mark}:one", "cat", "/toolkit") == "first"


def test_another_build_of_the_same_contents_is_a_success_and_a_rebuild_has_a_number(
    desk: Desk, registry: Registry
) -> None:
    below = desk.image("first")
    first, second = (desk.layer(below, "toolkit", b"same") for _ in range(2))
    ids = {desk.engine.must("image", "inspect", "-f", "{{.Id}}", each) for each in (first, second)}
    assert len(ids) == 2, "the engine made one image of two builds"
    told = desk.pushed(registry.address, f"--image={first}", "--tag=one")
    again = desk.push(registry.address, f"--image={second}", "--tag=one")
    assert again.returncode == 0, again.stderr
    assert "is another build of the same contents" in again.stderr
    assert again.stdout == f"{told['reference']}\n"
    renewed = f"--image={desk.layer(below, 'toolkit', b'with security updates')}"
    desk.manifest.unlink()
    assert "--build 2" in desk.refused(registry.address, renewed, "--tag=one")
    rebuilt = desk.pushed(registry.address, renewed, "--tag=one", "--build=2")
    assert rebuilt["tag"] == "one-b2" and rebuilt["digest"] != told["digest"]


def test_a_second_push_of_the_same_image_succeeds_and_sends_nothing(
    desk: Desk, registry: Registry
) -> None:
    image = desk.image("same", bulk=secrets.token_bytes(500_000))
    first = desk.pushed(registry.address, f"--image={image}", "--tag=one")
    with counted(registry) as counter:
        reached = {"MUSTER_PUSH_REGISTRY": counter.address}
        done = desk.push(registry.address, f"--image={image}", "--tag=one", **reached)
    assert done.returncode == 0, done.stderr
    assert "is already there" in done.stderr
    assert done.stdout == f"{first['reference']}\n"
    assert 0 < counter.received_bytes < 10_000


def test_a_change_of_the_toolkit_alone_uploads_less_than_a_megabyte(
    desk: Desk, registry: Registry
) -> None:
    bulk = secrets.token_bytes(3 * MEGABYTE)
    below = desk.image("first", bulk)
    with counted(registry) as counter:
        there = f"--address={counter.address}"
        desk.pushed(registry.address, f"--image={below}", "--tag=one", there)
        first_bytes, counter.received_bytes = counter.received_bytes, 0
        above = desk.layer(below, "toolkit", b"second")
        desk.pushed(registry.address, f"--image={above}", "--tag=two", there)
        assert 0 < counter.received_bytes < MEGABYTE < 3 * MEGABYTE < first_bytes


@pytest.mark.timeout(1500)
def test_a_change_of_the_toolkit_uploads_little_of_the_real_image(
    desk: Desk, registry: Registry, tmp_path: Path
) -> None:
    first = image("cpu")
    second = with_a_changed_toolkit("cpu", tmp_path / "copy", f"{desk.mark}:changed")
    with counted(registry) as counter:
        there = f"--address={counter.address}"
        told = desk.pushed(registry.address, f"--image={first}", "--tag=one", there)
        first_bytes, counter.received_bytes = counter.received_bytes, 0
        again = desk.pushed(registry.address, f"--image={second}", "--tag=two", there)
        second_bytes = counter.received_bytes
    assert first_bytes > told["compressed_bytes"] > 50 * MEGABYTE
    assert 0 < second_bytes < TOOLKIT_BYTES
    assert again["digest"] != told["digest"]
    assert again["layers"][:-1] == told["layers"][:-1]
    desk.engine.must("pull", "--quiet", again["reference"])
    assert desk.engine.must("run", "--rm", f"--label={LABEL}={RUN}", again["reference"], *SHOWS)


def test_a_registry_that_has_another_image_afterwards_fails_the_push(
    desk: Desk, registry: Registry
) -> None:
    desk.pushed(registry.address, f"--image={desk.image('first')}", "--tag=one")
    desk.manifest.unlink()
    with counted(registry) as counter:
        # reading back `two` gives `one`, as if somebody had moved it in between
        asks = f"GET /v2/{desk.mark}/manifests/two ".encode()
        counter.edit = EveryButTheFirst(asks, asks.replace(b"two", b"one"))
        words = (f"--image={desk.image('second')}", "--tag=two", f"--address={counter.address}")
        said = desk.refused(registry.address, *words)
    assert "is not what was pushed" in said


def test_what_is_not_there_is_said_in_one_sentence(desk: Desk, registry: Registry) -> None:
    image = f"--image={desk.image('first')}"
    words = (registry.address, "--tag=one")
    assert "has no image nowhere:1" in desk.refused(*words, "--image=nowhere:1")
    assert "the registry cannot be reached" in desk.refused("127.0.0.1:1", image, "--tag=one")
    nobody = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
    assert "DOCKER_HOST" in desk.refused(*words, image, **nobody)
    assert "`docker`" in desk.refused(*words, image, PATH="/nonexistent")
    assert "--manifest" in desk.refused(*words, image, "--manifest=/proc/no/where.json")


def test_a_registry_without_tls_elsewhere_than_on_loopback_is_named_as_that(
    desk: Desk, tmp_path: Path
) -> None:
    with (
        address_beside_loopback(desk) as address,
        docker_registry(tmp_path / "registry", {"somebody": "correct-horse"}, address) as plain,
    ):
        words = (plain.address, f"--image={desk.image('first')}", "--tag=one")
        assert "speaks plain HTTP" in desk.refused(*words)
        login = {"REGISTRY_USER": "somebody", "REGISTRY_PASSWORD": "correct-horse"}
        said = desk.refused(*words, **login)
    assert "speaks plain HTTP" in said
    assert "insecure-registries" in said


@contextmanager
def address_beside_loopback(desk: Desk) -> Iterator[str]:
    """This machine's own address on a network of the engine's, which only it can reach."""
    name = desk.mark.replace("/", "-")
    desk.engine.must("network", "create", f"--label={LABEL}={RUN}", name)
    try:
        form = "{{range .IPAM.Config}}{{.Gateway}}{{end}}"
        yield desk.engine.must("network", "inspect", name, "--format", form)
    finally:
        desk.engine("network", "rm", name)


class EveryButTheFirst:
    """Replaces some bytes each time but the first."""

    def __init__(self, old: bytes, new: bytes) -> None:
        self._old, self._new, self._seen = old, new, 0

    def __call__(self, data: bytes) -> bytes:
        if self._old not in data:
            return data
        self._seen += 1
        return data if self._seen == 1 else data.replace(self._old, self._new)

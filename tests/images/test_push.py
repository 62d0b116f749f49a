"""Pushes to a real registry on loopback, and to ECR as moto knows it; the registry asks for its
password. No AWS, no CodeBuild."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.support.cluster import wait_until
from tests.support.images import LABEL, RUN
from tests.support.pushing import Desk, desk_of_test
from tests.support.registries import Registry, counted, docker_registry, moto
from tests.support.venvs import CHECKOUT

ACCOUNT = "123456789012"  # moto's
ECR = f"{ACCOUNT}.dkr.ecr.us-west-2.amazonaws.com"
TOKEN = f"{ACCOUNT}-auth-token"  # the password that moto gives
OTHERS = "210987654321.dkr.ecr.us-west-2.amazonaws.com"
MEGABYTE = 1_000_000


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_of_test(tmp_path / "desk") as made:
        yield made


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One that asks for no password."""
    with docker_registry(tmp_path_factory.mktemp("registry")) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One that knows ECR's user, with moto's token, and a user of its own."""
    users = {"AWS": TOKEN, "somebody": "correct-horse"}
    with docker_registry(tmp_path_factory.mktemp("guarded"), users) as made:
        yield made


@pytest.fixture
def aws(desk: Desk) -> Iterator[Any]:
    """moto, which the desk's credentials talk to; a client of its ECR."""
    with moto() as url:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        desk.environ |= {"AWS_ENDPOINT_URL": url, **keys}
        yield boto3.client(
            "ecr",
            endpoint_url=url,
            region_name="us-west-2",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )


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


def test_on_ecr_a_missing_repository_is_made_with_tags_that_never_move(
    desk: Desk, guarded: Registry, aws: Any
) -> None:
    there = f"--address={guarded.address}"
    image = f"--image={desk.image('first')}"
    told = desk.pushed(ECR, image, "--tag=one", "--create", there)
    assert told["reference"] == f"{ECR}/{desk.mark}@{told['digest']}"
    (made,) = aws.describe_repositories(repositoryNames=[desk.mark])["repositories"]
    assert made["imageTagMutability"] == "IMMUTABLE"
    assert made["imageScanningConfiguration"] == {"scanOnPush": True}
    # one that exists is fine, asked for or not
    desk.pushed(ECR, image, "--tag=two", "--create", there)
    desk.pushed(ECR, image, "--tag=three", there)


def test_the_registry_of_the_credentials_own_account_needs_no_name(
    desk: Desk, guarded: Registry, aws: Any
) -> None:
    words = (f"--image={desk.image('first')}", "--tag=one", "--create")
    there = f"--address={guarded.address}"
    told = desk.pushed("ecr", *words, there, AWS_DEFAULT_REGION="us-west-2")
    assert told["registry"] == ECR
    desk.manifest.unlink()
    assert "no AWS region" in desk.refused("ecr", *words, there)


def test_a_missing_repository_is_not_made_unasked(desk: Desk, guarded: Registry, aws: Any) -> None:
    words = (f"--image={desk.image('first')}", "--tag=one", f"--address={guarded.address}")
    said = desk.refused(ECR, *words)
    assert f"ECR has no repository {desk.mark} at {ECR}" in said
    assert "--create" in said
    assert aws.describe_repositories()["repositories"] == []


def test_no_repository_is_made_in_the_wrong_account(
    desk: Desk, guarded: Registry, aws: Any
) -> None:
    words = (f"--image={desk.image('first')}", "--tag=one", f"--address={guarded.address}")
    said = desk.refused(OTHERS, *words, "--create")
    assert f"the credentials are of account {ACCOUNT} and the registry is of 210987654321" in said
    assert aws.describe_repositories()["repositories"] == []


def test_without_credentials_aws_is_not_asked(desk: Desk) -> None:
    said = desk.refused(ECR, f"--image={desk.image('first')}", "--tag=one")
    assert "no AWS credentials" in said
    assert "AWS_PROFILE" in said


def test_a_wrong_password_is_refused_in_one_sentence_that_does_not_show_it(
    desk: Desk, guarded: Registry
) -> None:
    words = (guarded.address, f"--image={desk.image('first')}", "--tag=one")
    wrong = {"REGISTRY_USER": "somebody", "REGISTRY_PASSWORD": "wrong-battery"}
    said = desk.refused(*words, **wrong)
    assert f"logging in to {guarded.address} as somebody" in said
    assert "does not accept the user and password" in said
    assert "wrong-battery" not in said
    assert "set both" in desk.refused(*words, REGISTRY_USER="somebody")
    # nobody at all
    assert "REGISTRY_USER" in desk.refused(*words)


def test_a_login_that_the_user_made_himself_is_used(desk: Desk, guarded: Registry) -> None:
    login = ["login", "-u", "somebody", "--password-stdin", guarded.address]
    subprocess.run(
        desk.engine.argv(*login), env=desk.environ, input=b"correct-horse", check=True, timeout=60
    )
    before = desk.settings.read_text()
    assert guarded.address in before
    desk.pushed(guarded.address, f"--image={desk.image('first')}", "--tag=one")
    assert desk.settings.read_text() == before


def test_credentials_leave_no_trace(desk: Desk, guarded: Registry) -> None:
    secret = "correct-horse"
    before = {path: path.read_bytes() for path in desk.home.rglob("*") if path.is_file()}
    seen: list[bytes] = []
    done = threading.Event()
    watcher = threading.Thread(target=watch_commands, args=(seen, done))
    watcher.start()
    try:
        image = desk.image("first", bulk=secrets.token_bytes(MEGABYTE))
        words = (f"--image={image}", "--tag=one", "--create")
        login = {"REGISTRY_USER": "somebody", "REGISTRY_PASSWORD": secret}
        ended = desk.push(guarded.address, *words, **login)
    finally:
        done.set()
        watcher.join(30)
    assert ended.returncode == 0, ended.stderr
    assert any(b"--password-stdin" in command for command in seen)  # it did see the login
    assert not any(secret.encode() in command for command in seen)
    assert secret not in ended.stdout + ended.stderr + desk.manifest.read_text()
    assert {p: p.read_bytes() for p in desk.home.rglob("*") if p.is_file()} == before
    assert not private_folders()


def test_a_push_that_is_stopped_leaves_no_credential(desk: Desk, guarded: Registry) -> None:
    image = desk.image("first", bulk=secrets.token_bytes(MEGABYTE))
    with counted(guarded) as counter:
        counter.stalls_after_bytes = 200_000
        push = subprocess.Popen(
            desk.argv(counter.address, f"--image={image}", "--tag=one"),
            cwd=CHECKOUT,
            env=desk.environ | {"REGISTRY_USER": "somebody", "REGISTRY_PASSWORD": "correct-horse"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            wait_until(counter.stalled.is_set, 60, "the push never got that far")
            assert private_folders()
            push.send_signal(signal.SIGTERM)
            out, _ = push.communicate(timeout=30)
        finally:
            push.kill()
            push.communicate()
    assert push.returncode == 128 + signal.SIGTERM
    assert out == b""
    assert not private_folders()


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
    assert "no registry answers at 127.0.0.1:1 " in desk.refused("127.0.0.1:1", image, "--tag=one")
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


def watch_commands(seen: list[bytes], done: threading.Event) -> None:
    """All command lines of this machine while it lasts."""
    found = set()
    while not done.is_set():
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                found.add(Path("/proc", name, "cmdline").read_bytes())
            except OSError:
                pass  # it has ended
    seen += found


def private_folders() -> list[Path]:
    """What a push keeps its login in, while it runs."""
    return [*Path("/dev/shm").glob("muster-push-*"), *Path("/tmp").glob("muster-push-*")]

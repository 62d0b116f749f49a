"""Who may push: ECR as moto knows it, a registry that asks for its password, and no trace of it.

No AWS: moto makes repositories and tokens, and a registry on loopback that knows the token takes
what is pushed.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from scripts.images.engine import Client
from scripts.images.login import logged_in
from scripts.images.registry import Login
from tests.images.support.pushing import MOTO_ACCOUNT, Desk
from tests.images.support.registries import Registry, counted, moto
from tests.support.commands import Recorder
from tests.support.venvs import CHECKOUT
from tests.support.waiting import wait_until

ECR = f"{MOTO_ACCOUNT}.dkr.ecr.us-west-2.amazonaws.com"
OTHERS = "210987654321.dkr.ecr.us-west-2.amazonaws.com"
MEGABYTE = 1_000_000


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
    assert (
        f"the credentials are of account {MOTO_ACCOUNT} and the registry is of 210987654321" in said
    )
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


def test_an_engine_that_a_context_of_the_user_names_is_pushed_from(
    desk: Desk, guarded: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(desk.settings.parent))
    client = Client(desk.engine.client, "", "", False)
    client.must("context", "create", "here", f"--docker=host={desk.engine.address}")
    monkeypatch.setenv("DOCKER_CONTEXT", "here")
    with logged_in(client, guarded.address, Login("somebody", "correct-horse")) as private:
        assert private.host == desk.engine.address
        assert private.must("info", "--format={{.ID}}") == client.must("info", "--format={{.ID}}")


def test_credentials_leave_no_trace(desk: Desk, guarded: Registry) -> None:
    secret = "correct-horse"
    before = {path: path.read_bytes() for path in desk.home.rglob("*") if path.is_file()}
    recorder = Recorder(desk.folder)
    bulky = desk.image("first", bulk=secrets.token_bytes(MEGABYTE))
    words = (f"--image={bulky}", "--tag=one", "--create")
    login = {"REGISTRY_USER": "somebody", "REGISTRY_PASSWORD": secret}
    ended = desk.push(guarded.address, *words, **login, **recorder.environ)
    assert ended.returncode == 0, ended.stderr
    started = [" ".join(words) for words in recorder.started()]
    assert any("--password-stdin" in command for command in started)  # it did see the login
    assert not any(secret in command for command in started)
    assert secret not in ended.stdout + ended.stderr + desk.manifest.read_text()
    assert {p: p.read_bytes() for p in desk.home.rglob("*") if p.is_file()} == before
    assert not private_folders()


def test_a_push_that_is_stopped_leaves_no_credential(desk: Desk, guarded: Registry) -> None:
    bulky = desk.image("first", bulk=secrets.token_bytes(MEGABYTE))
    output = desk.folder / "stdout"
    with counted(guarded) as counter, output.open("w") as stdout:
        counter.stalls_after_bytes = 200_000
        push = subprocess.Popen(
            desk.argv(counter.address, f"--image={bulky}", "--tag=one"),
            cwd=CHECKOUT,
            env=desk.environ | {"REGISTRY_USER": "somebody", "REGISTRY_PASSWORD": "correct-horse"},
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(counter.stalled.is_set, 60, "the push never got that far")
            assert private_folders()
            push.send_signal(signal.SIGTERM)
            assert push.wait(30) == 128 + signal.SIGTERM
            assert not private_folders()
            with pytest.raises(ProcessLookupError):  # nor is a client left
                os.killpg(push.pid, 0)
        finally:
            if push.poll() is None or private_folders():
                os.killpg(push.pid, signal.SIGKILL)
            push.wait(10)
    assert output.read_text() == ""


def private_folders() -> list[Path]:
    """What a push keeps its login in, while it runs."""
    return [*Path("/dev/shm").glob("muster-push-*"), *Path("/tmp").glob("muster-push-*")]

"""What a push makes of the answers that it gets: from AWS, from registries, from docker's stores.

Servers of this machine say what real ones do not say on request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.images import ecr
from scripts.images.errors import ImageError
from scripts.images.login import stored
from scripts.images.registry import Login, Registry, manifest_of, reached
from tests.support.servers import Server, answer

HERE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
BODY = json.dumps({"config": {"digest": "sha256:c"}, "layers": []}).encode()
DIGEST = "sha256:" + hashlib.sha256(BODY).hexdigest()


def test_a_login_of_docker_is_found_in_its_file_or_its_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text(
        '#!/bin/sh\nread host; [ "$host" = h ] && '
        'echo "{\\"Username\\":\\"u\\",\\"Secret\\":\\"s\\"}"\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    file, where = tmp_path / "config.json", {"DOCKER_CONFIG": str(tmp_path)}
    assert stored("h", where) is None
    for text, found in (
        ('{"auths": {"h": {"auth": "dTpwOnE="}}}', ("u", "p:q")),
        ('{"auths": {"other": {"auth": "dTpwOnE="}}}', None),
        ('{"credsStore": "test"}', ("u", "s")),
        ('{"credHelpers": {"h": "test"}, "auths": {"h": {}}}', ("u", "s")),
        ('{"credHelpers": {"h": "nowhere"}}', None),
        ('{"auths": {"h": {"auth": "?"}}}', None),
        ("no json", None),
    ):
        file.write_text(text)
        assert stored("h", where) == found, text


def test_a_registry_that_misstates_a_digest_is_not_believed() -> None:
    other = "sha256:" + "0" * 64
    for claim, reference in ((other, "t"), (DIGEST, other)):
        header = f"Docker-Content-Digest: {claim}\r\n"
        with Server(answer("200 OK", BODY, headers=header)) as server:
            registry = Registry(server.url, None, True)
            with pytest.raises(ImageError, match="is not what it says"):
                manifest_of(registry, "x", reference)
    with Server(answer("200 OK", BODY)) as server:
        found = manifest_of(Registry(server.url, None, True), "x", "t")
    assert found is not None and (found.digest, found.config) == (DIGEST, "sha256:c")


def test_a_token_is_fetched_where_the_registry_says_and_shown_to_it_alone() -> None:
    login = Login("me", "hunter2")
    with Server(answer("200 OK", b'{"token": "t0ken"}')) as authority:
        asks = f'Www-Authenticate: Bearer realm="{authority.url}/token",service="s"\r\n'
        script = [answer("401 Unauthorized", headers=asks), answer("200 OK", BODY)]
        with Server(*script) as server:
            found = manifest_of(Registry(server.url, login, True), "x", "t")
    assert found is not None
    assert b"scope=repository%3Ax%3Apull" in authority.requests[0]
    assert login.basic.encode() in authority.requests[0]
    assert b"Bearer t0ken" in server.requests[1]
    assert login.basic.encode() not in b"".join(server.requests)


def test_a_password_is_not_sent_where_it_could_be_read() -> None:
    with Server(answer("200 OK", b'{"token": "t0ken"}')) as authority:
        asks = f'Www-Authenticate: Bearer realm="{authority.url}/token"\r\n'
        with Server(answer("401 Unauthorized", headers=asks)) as server:
            registry = Registry(server.url, Login("me", "hunter2"), False)
            with pytest.raises(ImageError, match="nothing was sent"):
                manifest_of(registry, "x", "t")
    assert authority.requests == []


def test_a_redirection_is_not_followed_with_a_password() -> None:
    with Server(answer("200 OK", BODY)) as elsewhere:
        moved = answer("307 Moved", headers=f"Location: {elsewhere.url}/\r\n")
        basic = answer("401 Unauthorized", headers='Www-Authenticate: Basic realm="r"\r\n')
        with Server(basic, moved) as server:
            registry = Registry(server.url, Login("me", "hunter2"), True)
            with pytest.raises(ImageError, match="status 307"):
                manifest_of(registry, "x", "t")
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (answer("403 Forbidden"), "may not read"),
        (answer("500 Internal Server Error"), "status 500"),
        (None, "reset"),
        (answer("200 OK", b"<html>"), "no manifest"),
    ],
)
def test_a_registry_that_does_not_answer_as_one_is_said_to(script: bytes, says: str) -> None:
    with Server(script) as server, pytest.raises(ImageError, match=says):
        manifest_of(Registry(server.url, None, True), "x", "t")


def test_what_is_no_registry_is_said_to_be_none() -> None:
    with Server(answer("404 Not Found")) as server, pytest.raises(ImageError) as refused:
        reached(server.address, None, True)
    assert f"no registry answers at {server.address}" in str(refused.value)
    with Server(answer("200 OK")) as server, pytest.raises(ImageError, match="plain HTTP"):
        reached(server.address, None, False)  # without TLS it is not asked


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Server]:
    """A server that gives only this error, and settings that lead there."""

    def refuses(code: str) -> Server:
        body = json.dumps({"__type": code, "message": "no"}).encode()
        server = Server(answer("400 Bad Request", body))
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        return server

    return refuses


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("ExpiredTokenException", "have expired"),
        ("UnrecognizedClientException", "does not know these credentials"),
        ("AccessDeniedException", "may not do that"),
        ("LimitExceededException", "LimitExceededException"),
    ],
)
def test_what_aws_refuses_is_said_with_the_cure(
    aws: Callable[[str], Server], code: str, says: str
) -> None:
    with aws(code), pytest.raises(ImageError, match=says) as refused:
        ecr.credentials(ecr.Ecr(HERE, "123456789012", "eu-west-1"))
    assert refused.value.cure


def test_who_may_push_but_not_look_is_let_on_unless_something_is_to_be_made(
    aws: Callable[[str], Server],
) -> None:
    there = ecr.Ecr(HERE, "123456789012", "eu-west-1")
    notes: list[str] = []
    with aws("AccessDeniedException"):
        ecr.have_repository(there, "team/x", False, notes.append)
        with pytest.raises(ImageError, match="may not do that"):
            ecr.have_repository(there, "team/x", True, notes.append)
    assert len(notes) == 1 and "may not look for team/x" in notes[0]
    with aws("ExpiredTokenException"), pytest.raises(ImageError, match="have expired"):
        ecr.have_repository(there, "team/x", False, notes.append)

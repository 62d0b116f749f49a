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
from scripts.images.registry import Login, manifest_of, reached
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


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (answer("403 Forbidden"), "does not let this user"),
        (answer("500 Internal Server Error"), "500"),
        (answer("200 OK", b"<html>"), "no manifest"),
    ],
)
def test_a_registry_that_does_not_answer_as_one_is_said_to(script: bytes, says: str) -> None:
    with (
        Server(*[script] * 8) as server,
        reached(server.address, None, True) as registry,
        pytest.raises(ImageError, match=says),
    ):
        manifest_of(registry, "x", "t")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("MANIFEST_UNKNOWN", "manifest unknown"),
        ("NAME_UNKNOWN", "repository name not known to registry"),
        ("NOT_FOUND", "artifact team/muster:1 not found"),  # Harbor
        ("NOT_FOUND", "repository team/muster not found"),
    ],
)
def test_a_tag_that_is_not_there_yet_is_no_error_whatever_the_registry_calls_it(
    code: str, says: str
) -> None:
    body = json.dumps({"errors": [{"code": code, "message": says}]}).encode()
    missing = answer("404 Not Found", body, headers="Content-Type: application/json\r\n")
    greeting = [answer("200 OK")] * 2  # by TLS, then without
    with (
        Server(*greeting, *[missing] * 4) as server,
        reached(server.address, None, True) as registry,
    ):
        assert manifest_of(registry, "team/muster", "1") is None


def test_a_registry_is_read_with_its_login_and_without_tls_only_where_the_engine_does_so() -> None:
    asks = answer("401 Unauthorized", headers='Www-Authenticate: Basic realm="r"\r\n')
    login = Login("me", "hunter2")
    with (
        Server(asks, answer("200 OK"), answer("200 OK", BODY)) as server,
        reached(server.address, login, True) as registry,
    ):
        found = manifest_of(registry, "x", "t")
        assert "hunter2" not in " ".join(registry.options)
    assert found is not None and (found.digest, found.config) == (DIGEST, "sha256:c")
    with (
        Server(*[answer("200 OK", BODY)] * 4) as server,
        reached(server.address, login, False) as registry,
        pytest.raises(ImageError, match="plain HTTP"),
    ):
        manifest_of(registry, "x", "t")


def test_without_skopeo_the_push_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with (
        reached("127.0.0.1:1", None, True) as registry,
        pytest.raises(ImageError, match="skopeo"),
    ):
        manifest_of(registry, "x", "t")


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

"""What a push decides before it asks anybody, and what it makes of what docker says."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from scripts.images import ecr, push, targets
from scripts.images.errors import ImageError
from scripts.images.login import from_environment
from scripts.images.pins import version
from scripts.images.push_problem import explained
from scripts.images.pushed import Contents, Image
from scripts.images.registry import Login, is_loopback, reached

HERE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    push.add_arguments(parser)
    return parser.parse_args(words)


def order(*words: str, target: str = "mine") -> push.Order:
    return push._order(arguments(target, *words))


def wanted(*words: str) -> tuple[str, ...]:
    return ("--registry=r:5000", "--repository=team/x", "--image=i", "--tag=t", *words)


@pytest.mark.parametrize(
    ("host", "account", "region"),
    [
        (HERE, "123456789012", "eu-west-1"),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "123456789012", "cn-north-1"),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com", "123456789012", "us-gov-west-1"),
    ],
)
def test_a_registry_of_ecr_is_known_by_its_name(host: str, account: str, region: str) -> None:
    assert ecr.recognised(host) == (host, account, region)


@pytest.mark.parametrize(
    "host",
    [
        "12345678901.dkr.ecr.eu-west-1.amazonaws.com",  # 11 digits
        "123456789012.dkr.ecr.eu-west-1.amazonaws.com.evil.example",
        "x123456789012.dkr.ecr.eu-west-1.amazonaws.com",
        "123456789012.dkr.ecr.amazonaws.com",
    ],
)
def test_a_name_that_is_nearly_of_ecr_gets_no_token(host: str) -> None:
    with pytest.raises(ImageError, match="nearly"):
        ecr.recognised(host)


def test_any_other_name_is_another_registry() -> None:
    for host in ("127.0.0.1:5000", "ghcr.io", "dkr.example.com", "registry.ecr.example"):
        assert ecr.recognised(host) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (wanted("--registry="), "no registry is given"),
        (wanted("--repository="), "no repository is given"),
        (wanted("--registry=https://r.example"), "not the name of a host"),
        (wanted("--registry=r.example/team"), "not the name of a host"),
        (wanted("--address=-H"), "not the name of a host"),
        (wanted("--repository=Team/X"), "not a name of one"),
        (wanted("--repository=team//x"), "not a name of one"),
        (wanted("--repository=-x"), "not a name of one"),
        (wanted("--repository=" + "x" * 257), "not a name of one"),
        (wanted("--tag=-t"), "is not a tag"),
        (wanted("--tag=a:b"), "is not a tag"),
        (wanted("--tag="), "nothing says what i is to be called there"),
    ],
)
def test_what_cannot_be_is_refused_before_anybody_is_asked(
    words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ImageError, match=says) as refused:
        order(*words)
    assert refused.value.cure


def test_an_image_of_yours_is_not_called_by_one_of_ours() -> None:
    with pytest.raises(ImageError, match="muster's own"):
        order(*wanted(), target="cpu")


def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: str) -> None:
    monkeypatch.setattr(targets, "BUILT", tmp_path)
    reference = targets.reference("cpu", revision)
    targets.remember(targets.Built("cpu", reference, "sha256:1", revision))


def test_the_tag_of_a_build_names_its_version_and_its_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build(monkeypatch, tmp_path, "0123456789ab")
    made = order("--registry=r", "--repository=team/x", target="cpu")
    assert made.tag.startswith(f"{version()}-") and made.tag.endswith("-0123456789ab")
    assert made.image == "sha256:1"  # the image itself, not what has its name by now
    assert made.manifest.name == "cpu.json"


@pytest.mark.parametrize("revision", ["", "0123456789ab-dirty"])
def test_a_build_that_no_commit_stands_for_is_not_pushed_unless_the_tag_is_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: str
) -> None:
    build(monkeypatch, tmp_path, revision)
    words = ("--registry=r", "--repository=team/x")
    with pytest.raises(ImageError, match="was built from code that"):
        order(*words, target="cpu")
    assert order(*words, "--tag=mine", target="cpu").tag == "mine"


def test_what_was_never_built_is_not_pushed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(targets, "BUILT", tmp_path)
    with pytest.raises(ImageError, match="no image cpu was built here") as refused:
        order("--registry=r", "--repository=team/x", target="cpu")
    assert refused.value.cure == "make image TARGET=cpu"


def test_an_image_that_only_carries_tests_is_not_pushed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(targets, "BUILT", tmp_path)
    targets.remember(targets.Built("cpu-test", "muster:x", "sha256:1", "0123456789ab"))
    with pytest.raises(ImageError, match="only carries tests"):
        order("--registry=r", "--repository=team/x", target="cpu-test")


def test_what_engines_call_the_registry_of_docker_is_known() -> None:
    names = ("me/x@sha256:1", "ghcr.io/me/x@sha256:2", "x@sha256:3")
    image = Image("mine", "sha256:0", 1, "", (), names, {}, Contents((), {}))
    assert image.digests("docker.io/me/x") == ("sha256:1",)
    assert image.digests("ghcr.io/me/x") == ("sha256:2",)
    assert image.digests("docker.io/library/x") == ("sha256:3",)


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("unauthorized: incorrect username or password", "does not accept the user and password"),
        ("no basic auth credentials", "does not accept the user and password"),
        (
            "denied: Your authorization token has expired. Reauthenticate",
            "ended before the push did",
        ),
        ("denied: User: arn:aws:iam::1:user/x is not authorized to perform", "does not let"),
        (
            "name unknown: The repository with name 'x' does not exist in the registry with id '1'",
            "has no such repository",
        ),
        (
            "tag invalid: The image tag 't' already exists in the 'x' repository and cannot be "
            "overwritten because the tag is immutable.",
            "keeps another image under this tag",
        ),
        ("http: server gave HTTP response to HTTPS client", "speaks plain HTTP"),
        ("x509: certificate signed by unknown authority", "certificate"),
        ("dial tcp 127.0.0.1:1: connect: connection refused", "cannot be reached"),
        ("write /x: no space left on device", "a disk is full"),
    ],
)
def test_what_a_client_says_is_explained_with_a_cure(said: str, meaning: str) -> None:
    error = explained("pushing x", f"using default tag\n{said}\n")
    assert error.what.startswith("pushing x: ")
    assert meaning in error.what
    assert said in error.what
    assert error.cure


def test_a_password_is_in_no_representation() -> None:
    assert "hunter2" not in repr(Login("me", "hunter2"))
    with reached("127.0.0.1:1", Login("me", "hunter2"), True) as registry:
        assert "hunter2" not in repr(registry)


def test_a_user_without_a_password_is_refused() -> None:
    assert from_environment({}) is None
    assert from_environment({"REGISTRY_USER": "a", "REGISTRY_PASSWORD": "b"}) == ("a", "b")
    for half in ({"REGISTRY_USER": "a"}, {"REGISTRY_PASSWORD": "b"}):
        with pytest.raises(ImageError, match="is not"):
            from_environment(half)


def test_only_this_machine_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3:5000", "localhost:1", "[::1]:5000")))
    assert not any(map(is_loopback, ("10.0.0.1", "localhost.example:1", "127.example", "r")))

"""The options of `--isolation docker`: what they mean, and what is refused with which words."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from muster.arguments import Parser, UsageError, size, size_in_words
from muster.local.backends.docker.options import DockerOptions, processors
from muster.local.command import add_arguments
from muster.local.request import Request, read_request

DOCKER = ("train.py", "--isolation", "docker")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path)


def read(*argv: str) -> Request:
    parser = Parser("muster local", script_arguments=True)
    add_arguments(parser)
    return read_request(parser.parse(argv))


def test_without_limits_a_host_may_take_what_there_is() -> None:
    assert read(*DOCKER, "--image", "x:1").docker == DockerOptions("x:1", None, None, None, False)


def test_every_option_arrives() -> None:
    limits = ("--memory", "1.5g", "--shm_size", "64m", "--cpus", "0.5", "--keep")
    wanted = DockerOptions("x:1", 3 << 29, 64 << 20, 0.5, True)
    assert read(*DOCKER, "--image", "x:1", *limits).docker == wanted


def test_another_isolation_has_no_containers() -> None:
    assert read("train.py").docker is None


@pytest.mark.parametrize(
    "option",
    [
        ("--image", "x"),
        ("--shm-size", "1g"),
        ("--cpus", "1"),
        ("--keep",),
        ("--user", "1000"),
    ],
)
@pytest.mark.parametrize("isolation", [(), ("--isolation", "netns"), ("--isolation", "process")])
def test_options_of_containers_are_refused_without_them(
    option: tuple[str, ...], isolation: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        read("train.py", *isolation, *option)
    assert refused.value.message == f"{option[0]}: only for --isolation docker"
    if isolation:
        instead = (
            f"--isolation docker instead of --isolation {isolation[1]}, or leave out {option[0]}"
        )
        assert refused.value.fix == instead
    else:
        assert refused.value.fix == "add --isolation docker"


def test_containers_need_an_image() -> None:
    with pytest.raises(UsageError) as refused:
        read(*DOCKER)
    assert "needs the image" in refused.value.message
    assert "--image IMAGE" in refused.value.fix


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "muster/cpu:0.1.0-torch2.13.0-dev",
        "my_image__a.b---c:V1",
        "localhost:5000/a/b",
        "Registry.example.com:5000/team/x:latest",
        "[::1]:5000/x",
        f"x:1@sha256:{'0a' * 32}",
        f"sha256:{'0a' * 32}",
        "593e3896873a",
    ],
)
def test_every_name_that_an_engine_takes_is_taken(name: str) -> None:
    found = read(*DOCKER, "--image", name).docker
    assert found is not None
    assert found.image == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "two words",
        "-x",
        "Foo:Bar:baz",
        "Foo:1",
        "x:",
        "x/",
        "/x",
        "x@1",
        "a..b",
        f"x:{'1' * 129}",
    ],
)
def test_what_is_no_name_of_an_image_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(*DOCKER, f"--image={name}")
    assert "is not the name of an image" in refused.value.message
    assert "NAME[:TAG]" in refused.value.fix


def test_more_shared_memory_than_memory_is_refused_with_the_reason() -> None:
    limits = (*DOCKER, "--image", "x", "--memory", "1g", "--shm-size")
    assert read(*limits, "1g").docker == DockerOptions("x", 1 << 30, 1 << 30)
    with pytest.raises(UsageError) as refused:
        read(*limits, "1.5g")
    assert "--shm-size 1536 MiB is more than --memory 1 GiB" in refused.value.message
    assert refused.value.fix == f"at most --shm-size {1 << 30}"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8388608", 8 << 20),
        ("8388608b", 8 << 20),
        ("8192k", 8 << 20),
        ("512m", 512 << 20),
        ("512MiB", 512 << 20),
        ("512 MB", 512 << 20),
        ("1.5G", 3 << 29),
        ("2t", 2 << 40),
    ],
)
def test_sizes_have_the_units_of_the_docker_command(text: str, size_bytes: int) -> None:
    assert size(6 << 20)(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "g", "-1g", "1x", "1gg", "1e9", "nan", "1.g", "٣g", "9" * 400]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 512m"):
        size(1)(text)


@pytest.mark.parametrize("text", ["512", "5m", "2048t", "9" * 18 + "g"])
def test_a_size_that_no_host_can_have_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not from 6 MiB to 1024 TiB"):
        size(6 << 20)(text)


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf", "1e9", "0.001"])
def test_what_is_no_number_of_processors_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="number of processors"):
        processors(text)


def test_processors_may_be_parts_of_one() -> None:
    assert processors("0.25") == 0.25


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [(3 << 29, "1536 MiB"), (2 << 30, "2 GiB"), (1 << 10, "1 KiB"), (1000, "1000 bytes")],
)
def test_sizes_are_told_exactly(size_bytes: int, words: str) -> None:
    assert size_in_words(size_bytes) == words


@pytest.mark.parametrize("text", ["0", "1000", "1000:1001"])
def test_a_user_is_a_number_with_or_without_a_group(text: str) -> None:
    wanted = read(*DOCKER, "--image", "x", "--user", text).docker
    assert wanted is not None
    assert wanted.user == text


@pytest.mark.parametrize("text", ["", "app", "1000:", "-1", "1:2:3", "$(id -u)"])
def test_another_user_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--user: expected UID or UID:GID"):
        read(*DOCKER, "--image", "x", f"--user={text}")

"""buildspec.yml as CodeBuild would run it: make, git, our scripts and moto are real; `docker` and
`aws` are stand-ins that record, and `make check` is one that passes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
import yaml

from scripts.images.targets import TARGETS
from tests.images.support import recording_docker
from tests.images.support.codebuild import Phase, run_buildspec
from tests.images.support.registries import moto
from tests.support.venvs import CHECKOUT

SPEC: Any = yaml.safe_load((CHECKOUT / "buildspec.yml").read_text())
SCHEMA = Path(__file__).with_name("buildspec.schema.json")
ECR = "123456789012.dkr.ecr.us-west-2.amazonaws.com"  # moto's account


def test_the_buildspec_is_one() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="no jsonschema: make setup")
    check = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    check.check_schema(check.schema)
    assert [error.message for error in check.iter_errors(SPEC)] == []
    # the schema does refuse what is none
    for wrong in (
        {"version": 0.2, "phases": {"biuld": {"commands": ["make"]}}},
        {"version": 0.2, "phases": {"build": {"command": ["make"]}}},
        {"version": 0.2, "phases": {"build": {"commands": "make"}}},
        {"version": 0.3, "phases": {"build": {"commands": ["make"]}}},
        {"version": 0.2, "phases": {"build": {"commands": ["make"], "on-failure": "STOP"}}},
        {**SPEC, "env": {"variables": {"CODEBUILD_X": "1"}}},
        {**SPEC, "artifacts": {"base-directory": "dist"}},
        {**SPEC, "reports": {"checks": {"files": ["*.xml"], "file-format": "XML"}}},
    ):
        assert list(check.iter_errors(wrong)), wrong


def test_all_images_are_built_tested_and_pushed_by_default() -> None:
    published = [name for name, target in TARGETS.items() if target.published]
    assert SPEC["env"]["variables"]["TARGETS"].split() == published


def test_every_command_is_a_make_target() -> None:
    commands = [c for phase in SPEC["phases"].values() for c in phase["commands"]]
    guard = 'test "$CODEBUILD_BUILD_SUCCEEDING" = 1'
    assert [c for c in commands if "make " not in c] == [guard]
    made = {word for c in commands for word in _after(c.split(), "make")}
    assert made == {"setup", "push-tools", "check", "image", "test-image", "push"}


def _after(words: list[str], word: str) -> list[str]:
    return [words[i + 1] for i, one in enumerate(words) if one == word]


class Project(NamedTuple):
    """A CodeBuild project: a checkout of its own, its variables, and what was recorded."""

    folder: Path
    environ: dict[str, str]
    recording: Path
    aws: str

    def build(self, **environ: str) -> tuple[Phase, ...]:
        return run_buildspec(SPEC, self.folder, {**self.environ, **environ})

    def calls(self) -> list[dict[str, Any]]:
        if not self.recording.exists():
            return []
        return [json.loads(line) for line in self.recording.read_text().splitlines()]

    def repositories(self) -> list[str]:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        client = boto3.client("ecr", endpoint_url=self.aws, region_name="us-west-2", **keys)
        return [one["repositoryName"] for one in client.describe_repositories()["repositories"]]


class Whole(NamedTuple):
    """A build of all targets that went well: its project, its phases and what they left."""

    project: Project
    phases: tuple[Phase, ...]
    calls: list[dict[str, Any]]
    repositories: list[str]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with project_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    with project_in(tmp_path_factory.mktemp("whole")) as made:
        return Whole(made, made.build(), made.calls(), made.repositories())


@contextmanager
def project_in(tmp_path: Path) -> Iterator[Project]:
    folder, recording = tmp_path / "source", tmp_path / "recording"
    check_out(folder, recording)
    programs = tmp_path / "bin"
    programs.mkdir()
    stand_in(programs / "docker", Path(recording_docker.__file__).read_text())
    stand_in(programs / "aws", said("aws", recording))
    (tmp_path / "images").mkdir()
    with moto() as aws, registry() as address:
        environ = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(tmp_path / "home"),
            "STAND_IN_RECORDING": str(recording),
            "STAND_IN_IMAGES": str(tmp_path / "images"),
            "DOCKER_HOST": "unix:///nonexistent/docker.sock",
            "PIP_CONFIG_FILE": os.devnull,  # of this machine
            "TARGETS": "base cpu",
            "AWS_DEFAULT_REGION": "us-west-2",
            "AWS_REGION": "us-west-2",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_ENDPOINT_URL": aws,
            "MUSTER_PUSH_REGISTRY": address,
            "CODEBUILD_BUILD_NUMBER": "1",
            "CODEBUILD_SRC_DIR": str(folder),
        }
        yield Project(folder, environ, recording, aws)


def check_out(folder: Path, recording: Path) -> None:
    """The working tree as a commit of its own; its .venv is the checkout's, and ready."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=CHECKOUT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (CHECKOUT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, folder / name)
    stand_in(folder / "scripts" / "check", said("check", recording))
    (folder / ".venv").mkdir()
    for entry in (CHECKOUT / ".venv").iterdir():
        (folder / ".venv" / entry.name).symlink_to(entry)
    (folder / ".venv" / ".ready").unlink(missing_ok=True)
    (folder / ".venv" / ".ready").touch()  # newer than all that it is made from
    who = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=0"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "source"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def stand_in(path: Path, program: str) -> None:
    # without site-packages, which none of them needs: it is started fifty times in a build
    path.write_text(f"#!{sys.executable} -IS\n{program}")
    path.chmod(0o755)


def said(name: str, recording: Path) -> str:
    """A program that only records its arguments."""
    return (
        "import json, sys\n"
        f"with open({str(recording)!r}, 'a') as file:\n"
        f"    file.write(json.dumps({{{name!r}: sys.argv[1:]}}) + '\\n')\n"
    )


class _Manifests(BaseHTTPRequestHandler):
    """A registry that knows manifests and nothing else."""

    protocol_version = "HTTP/1.1"
    kept: dict[str, bytes]

    def do_GET(self) -> None:
        found = b"{}" if self.path == "/v2/" else self.kept.get(self.path)
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        self.wfile.write(found or b"")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        by_digest = f"{self.path.rpartition('/')[0]}/sha256:{sha256(body).hexdigest()}"
        self.kept |= {self.path: body, by_digest: body}
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def registry() -> Iterator[str]:
    """Its address, while the block runs."""
    handler = type("Manifests", (_Manifests,), {"kept": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)


def of(calls: list[dict[str, Any]], *commands: str) -> list[list[str]]:
    """The calls of docker with these commands, in order."""
    return [call["docker"] for call in calls if call.get("docker", [""])[0] in commands]


def target_of(words: list[str]) -> str:
    """`cpu-test` for the child that carries the tests of `cpu`."""
    found = re.findall(r"--build-arg=TESTED=(\S+)|--target=(\S+)", " ".join(words))
    return "-".join(sorted((one or other for one, other in found), key="test".__eq__))


def test_every_image_is_built_tested_and_pushed_in_that_order(whole: Whole) -> None:
    story = "\n".join(phase.said for phase in whole.phases)
    assert [(phase.name, phase.succeeded) for phase in whole.phases] == [
        ("install", True), ("pre_build", True), ("build", True), ("post_build", True)
    ], story  # fmt: skip
    calls = whole.calls
    assert calls[0] == {"check": []}
    assert not [call for call in calls if "aws" in call]  # boto3 does it all
    done = [(words[0], words) for words in of(calls, "build", "run", "login", "tag", "push")]
    assert [name for name, _ in done] == [
        "build", "build",  # the images
        "build", "run", "build", "run",  # their tests
        "login", "tag", "push", "login", "tag", "push",
    ], story  # fmt: skip
    assert [target_of(words) for name, words in done if name == "build"] == [
        "base", "cpu", "base-test", "cpu-test"
    ]  # fmt: skip
    assert whole.repositories == ["muster"]


def test_what_is_pushed_is_what_was_tested_and_its_manifest_is_kept(whole: Whole) -> None:
    project, calls = whole.project, whole.calls
    address = project.environ["MUSTER_PUSH_REGISTRY"]
    head = ["git", "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(head, cwd=project.folder, capture_output=True, text=True, check=True)
    logins = [call for call in calls if call.get("docker", [""])[0] == "login"]
    assert len(logins) == 2
    for login in logins:
        assert login["docker"] == ["login", "--username", "AWS", "--password-stdin", address]
        assert login["stdin"] == "123456789012-auth-token"
        assert login["config"] and not Path(login["config"]).exists()
    pushed = {}
    for target, (_, image, name), push in zip(
        ("base", "cpu"), of(calls, "tag"), of(calls, "push"), strict=True
    ):
        assert push == ["push", name]
        assert name.startswith(f"{address}/muster:")
        assert name.endswith(commit.stdout.strip())
        (built,) = (words for words in of(calls, "build") if target_of(words) == target)
        tags = [word.removeprefix("--tag=") for word in built if word.startswith("--tag=")]
        assert tags == [f"muster:{name.rpartition(':')[2]}"]
        assert image == f"sha256:{sha256(tags[0].encode()).hexdigest()}"
        pushed[target] = image
    kept = SPEC["artifacts"]["base-directory"]
    for target, image in pushed.items():
        told = json.loads((project.folder / kept / f"{target}.json").read_text())
        assert told["reference"].startswith(f"{ECR}/muster@sha256:")
        assert (told["image_id"], told["git_sha"]) == (image, commit.stdout.strip())


# the first of two: the second would go well
@pytest.mark.parametrize("fails", ["run base-test", "build --target=base"])
def test_nothing_is_pushed_when_a_build_or_a_test_fails(project: Project, fails: str) -> None:
    phases = project.build(STAND_IN_FAILS=fails)
    assert [(phase.name, phase.succeeded) for phase in phases][2:] == [
        ("build", False), ("post_build", False)
    ]  # fmt: skip
    calls = project.calls()
    assert of(calls, "build")  # it did begin
    assert of(calls, "login", "tag", "push") == []
    assert project.repositories() == []


def test_nothing_is_built_when_the_checks_fail(project: Project) -> None:
    stand_in(project.folder / "scripts" / "check", "raise SystemExit(1)")
    phases = project.build()
    assert [(phase.name, phase.succeeded) for phase in phases][1:] == [("pre_build", False)]
    assert project.calls() == []


def test_a_push_that_fails_fails_the_build(project: Project) -> None:
    phases = project.build(STAND_IN_FAILS="push -base-")
    assert (phases[-1].name, phases[-1].succeeded) == ("post_build", False)
    assert "as it was told to" in phases[-1].said
    assert not (project.folder / "dist" / "images").exists()


def test_a_source_without_git_is_known_by_the_commit_that_codebuild_names(project: Project) -> None:
    shutil.rmtree(project.folder / ".git")
    commit = "0123456789abcdef0123456789abcdef01234567"
    phases = project.build(TARGETS="base", CODEBUILD_RESOLVED_SOURCE_VERSION=commit)
    assert phases[-1].succeeded, phases[-1].said
    told = json.loads((project.folder / "dist" / "images" / "base.json").read_text())
    assert told["git_sha"] == commit[:12]
    assert told["tag"].endswith(f"-{commit[:12]}")


def test_without_leave_to_make_it_a_missing_repository_fails_the_build(project: Project) -> None:
    phases = project.build(CREATE="", TARGETS="base")
    assert not phases[-1].succeeded
    assert "CREATE=1" in phases[-1].said
    assert of(project.calls(), "login", "tag", "push") == []

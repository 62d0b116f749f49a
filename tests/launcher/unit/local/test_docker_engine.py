"""What the container engine, or the way to it, says: one sentence, the cure, the exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from docker.errors import APIError, DockerException

from muster.local.backends.docker import names as docker_names
from muster.local.backends.docker.engine import SOCKET, EngineError, address, connect, explain
from muster.local.backends.docker.options import DockerOptions
from muster.local.backends.docker.preflight import check_limits, is_dead
from muster.local.record.runfolder import make_run_folder
from tests.launcher.support.local.local_docker import context

OPTIONS = DockerOptions("x", 1 << 30, None, 1.5, False)
ENGINE = {"OSType": "linux", "NCPU": 2, "MemoryLimit": True, "CpuCfsQuota": True}


@pytest.mark.parametrize(
    ("said", "meaning", "code"),
    [
        (
            'Conflict. The container name "/muster-1-algo-1" is already in use by container "c0"',
            "another container has the name",
            106,
        ),
        (
            "invalid mount config: bind source path does not exist: /home/u/run",
            "does not see this machine's files",
            106,
        ),
        (
            "could not find an available, non-overlapping IPv4 address pool among the defaults",
            "no addresses left",
            106,
        ),
        ("OCI runtime create failed: exec /usr/bin/train: exec format error", "processor", 100),
        ("write /var/lib/docker/x: no space left on device", "no room left", 106),
        ("invalid reference format: repository name must be lowercase", "not the name", 100),
        ("something\nnew", "refused: something new", 106),
    ],
)
def test_an_answer_is_told_as_what_it_means(said: str, meaning: str, code: int) -> None:
    found = explain(APIError("500 Server Error", explanation=said))
    assert meaning in found.message
    assert "\n" not in found.in_words()
    assert found.exit_code == code
    assert not found.lost


def test_without_the_package_the_command_that_brings_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("docker", "docker.client"):
        monkeypatch.setitem(sys.modules, name, None)  # how Python is told that there is none
    with pytest.raises(EngineError) as refused:
        connect(1)
    assert "not installed" in refused.value.message
    assert "pip install docker" in refused.value.fix


def test_an_address_that_is_none_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "nonsense://x")
    with pytest.raises(EngineError) as refused:
        connect(1)
    assert address() == "nonsense://x"
    assert "nonsense://x" in refused.value.message


def test_the_address_is_that_of_the_current_context_unless_a_variable_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in context(tmp_path, "unix:///run/elsewhere").items():
        monkeypatch.setenv(name, value)
    assert address() == "unix:///run/elsewhere"
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert address() == SOCKET
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/mine")
    assert address() == "unix:///run/mine"


def test_a_context_that_is_not_there_is_named_and_no_other_engine_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in context(tmp_path, "unix:///x").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere")
    with pytest.raises(EngineError, match="there is no context nowhere"):
        connect(1)


def test_a_context_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in context(tmp_path, "unix:///x").items():
        monkeypatch.setenv(name, value)
    [meta] = tmp_path.rglob("meta.json")
    meta.write_text("{")
    with pytest.raises(EngineError, match="the context elsewhere cannot be read"):
        connect(1)


def test_a_package_that_knows_no_contexts_is_refused_where_one_could_be_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delattr("docker.context.ContextAPI.kwargs_from_context")
    with pytest.raises(EngineError, match=r"older than 7\.2"):
        connect(1)


def test_a_user_who_may_not_use_the_engine_is_told_the_group() -> None:
    try:
        try:
            raise PermissionError(13, "Permission denied")
        except PermissionError as error:
            raise DockerException("Error while fetching server API version") from error
    except DockerException as error:
        found = explain(error)
    assert found.lost
    assert "may not use the container engine" in found.message
    assert "group docker" in found.fix


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"OSType": "windows"}, "no Linux containers"),
        ({"NCPU": 1}, "--cpus 1.5 is more than the 1 processors"),
        ({"MemoryLimit": False}, "cannot limit memory"),
        ({"CpuCfsQuota": False}, "cannot limit processors"),
    ],
)
def test_a_limit_that_the_engine_would_not_hold_is_refused(
    changes: dict[str, object], words: str
) -> None:
    check_limits(OPTIONS, ENGINE)
    with pytest.raises(EngineError, match=words):
        check_limits(OPTIONS, {**ENGINE, **changes})


def test_a_run_is_dead_when_nobody_holds_its_folder(tmp_path: Path) -> None:
    folder = make_run_folder("x.py", str(tmp_path / "run"))
    assert not is_dead(folder.path, running=True)
    os.close(folder.lock)
    assert is_dead(folder.path, running=True)


def test_a_run_of_an_unknown_folder_is_dead_only_when_nothing_of_it_runs(tmp_path: Path) -> None:
    assert not is_dead(str(tmp_path / "elsewhere"), running=True)
    assert is_dead(str(tmp_path / "removed"), running=False)


def test_labels_tell_the_run_its_folder_and_whether_it_is_to_stay() -> None:
    assert docker_names.labels("r", "/f", keep=False) == {"muster.run": "r", "muster.folder": "/f"}
    kept = docker_names.labels("r", "/f", keep=True, host="algo-1")
    assert kept["muster.kept"] == "yes"
    assert kept["muster.host"] == "algo-1"


def test_the_removing_command_reaches_containers_and_network_of_that_run_only() -> None:
    command = docker_names.remove_command("ab12")
    assert command.count("label=muster.run=ab12") == 2
    assert "prune" not in command

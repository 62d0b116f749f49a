"""What `muster local` answers when containers cannot be had, or hold no `train` of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.support.local.local_docker import (
    Start,
    changed,
    context,
    job,
    of_nothing,
    options_of_nobody,
    refused,
)
from tests.launcher.support.local.socket_gate import gate
from tests.support.engine import Engine

pytestmark = pytest.mark.timeout(600)  # an image may have to be built first


def test_a_missing_image_is_not_pulled(start: Start, home: Path, engine: Engine) -> None:
    said = refused(start, home, job("train", "muster-nowhere:1"))
    assert "the image muster-nowhere:1 is not on this machine" in said
    assert "docker pull muster-nowhere:1" in said


def test_no_engine_is_one_sentence(start: Start, home: Path) -> None:
    said = refused(start, home, job("train", "x"), environ={"DOCKER_HOST": f"unix://{home}/no"})
    assert f"no container engine answers at unix://{home}/no\n" in said
    assert "Traceback" not in said


def test_the_engine_of_the_current_context_is_asked_and_named(start: Start, home: Path) -> None:
    environ = context(home, f"unix://{home}/no")
    said = refused(start, home, job("train", "x"), environ=environ)
    assert f"no container engine answers at unix://{home}/no\n" in said


def test_an_engine_that_says_nothing_is_given_up_in_time(
    start: Start, home: Path, socket: Path
) -> None:
    with gate(home / "sock", socket, deaf=True) as deaf:
        address = {"DOCKER_HOST": f"unix://{deaf.path}"}
        said = refused(start, home, job("train", "x"), environ=address)
    assert f"no container engine answers at unix://{deaf.path} in time" in said


def test_a_user_without_the_right_to_the_engine_is_told_so(
    nobodys_home: Path, start: Start, socket: Path
) -> None:
    said = refused(start, nobodys_home, job("train", "x"), **options_of_nobody("--clear-groups"))
    assert "this user may not use the container engine" in said


def test_more_processors_than_there_are_is_refused(start: Start, home: Path, base: str) -> None:
    assert "--cpus 1000 is more than" in refused(start, home, job("train", base, "--cpus", "1000"))


def test_an_image_without_train_is_a_config_error(
    start: Start, home: Path, base: str, engine: Engine
) -> None:
    with changed(engine, base, "ENV PATH=/nowhere:/bin") as name:
        result = start(home, job("train", name)).wait()
    assert result.code == 100, result.err
    assert f"the image {name} has no program `train`" in result.err
    assert result.summary["outcome"]["exit_code"] == 100
    assert "no program `train`" in result.summary["local"]["note"]


def test_an_image_that_holds_nothing_is_a_config_error(
    start: Start, home: Path, engine: Engine
) -> None:
    with of_nothing(engine) as name:
        result = start(home, job("train", name)).wait()
    assert result.code == 100, result.err
    assert f"the image {name} has no program `train`" in result.err


def test_the_train_of_another_toolkit_keeps_its_exit_code_and_is_called_that(
    start: Start, home: Path, base: str, engine: Engine
) -> None:
    with changed(engine, base, """ENTRYPOINT ["sh", "-c", "echo mine; exit 3"]""") as name:
        run = start(home, job("train", name))
        run.expect(not_ours=True)
        result = run.wait()
    assert result.code == 3, result.err
    assert result.out == "mine\nmine\n"
    assert "wrote no record: is it another toolkit's?" in result.err


def test_a_train_that_the_kernel_killed_for_memory_is_not_called_another_toolkits(
    start: Start, home: Path, base: str
) -> None:
    run = start(home, job("train", base, "--memory", "8m", hosts=1))
    run.expect(not_ours=True)
    result = run.wait()
    assert result.code == 137, result.err
    assert "algo-1: the kernel killed for memory: --memory is 8 MiB for each host" in result.err
    assert "another toolkit's" not in result.err


def test_the_package_docker_is_loaded_by_no_other_isolation(home: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, ''); from muster.commands.parser import main\n"
        "main(['local', 'src/train.py', '--isolation', 'process', '--output', 'run'])\n"
        "assert not {'docker', 'requests'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=home, check=True, capture_output=True)

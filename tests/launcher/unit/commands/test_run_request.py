"""The request that `muster run` makes of what an engine says, and the secret that it wants."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from muster.arguments import Parser, UsageError
from muster.contract.engines import Detected, detect
from muster.elsewhere import command, compose
from muster.elsewhere.network import Whereabouts, host_names
from muster.elsewhere.place import base_folder
from muster.elsewhere.secret import read_secret
from muster.local.request import Request
from muster.types.engine import Engine
from muster.types.errors import ConfigError
from tests.launcher.unit.contract.test_engine_readers import BATCH, SLURM, TRAIN_JOB

LIST = {"MUSTER_HOSTS": "a,b", "MUSTER_HOST_INDEX": "1"}
STOP, HOLD = "MUSTER_STOP_TOTAL_S", "MUSTER_STOP_HOLD_S"
NAMELESS = Engine("batch", 1, 2, leader="10.0.0.4")


def request(folder: Path, engine: Engine, *options: str) -> Request:
    (folder / "train.py").write_text("")
    parser = Parser("muster run", script_arguments=True)
    command.add_arguments(parser)
    return command.request_of(parser.parse([str(folder / "train.py"), *options]), engine)


def made(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of `train` on a host of an engine."""
    engine = detect(environ, lambda _: "").engine
    place = Whereabouts(host_names(engine), {}, "eth0")
    return compose.environ(environ, request(folder, engine), engine, place, "/b", "/run", "s" * 16)


@pytest.mark.promise("E01")
@pytest.mark.parametrize(
    ("environ", "stop_s", "hold_s", "invented"),
    [
        (SLURM, "25", "2", False),  # of KillWait's 30 s; every process hears of the stop
        (TRAIN_JOB, "25", None, True),
        (BATCH, "25", None, True),
        (LIST, "8", None, False),
        ({}, None, None, True),
    ],
)
def test_a_stop_has_the_time_that_the_engine_gives(
    tmp_path: Path, environ: dict[str, str], stop_s: str, hold_s: str, invented: bool
) -> None:
    found = made(tmp_path, environ)
    assert (found.get(STOP), found.get(HOLD)) == (stop_s, hold_s)
    assert ("MUSTER_INVENTED_NAMES" in found) == invented
    assert made(tmp_path, {**environ, STOP: "90", HOLD: "5"})[STOP] == "90"


def test_attempt_and_deadline_are_where_sagemaker_has_them(tmp_path: Path) -> None:
    engine = detect({**SLURM, "SLURM_RESTART_COUNT": "2"}, lambda _: "").engine
    place = Whereabouts(("n1", "n2"), {}, "eth0")
    asked = request(tmp_path, engine)
    detected = Detected(engine, "asked for")
    found = compose.documents(asked, detected, place, {}, "/code", left_s=90.7)
    assert found["init-config.json"] == {"jobRunInfo": {"jobRunNumber": 3}}
    limit = {"MaxRuntimeInSeconds": 90}
    assert found["trainingjobconfig.json"] == {"StoppingCondition": limit}
    late = compose.documents(asked, detected, place, {}, "/code", left_s=-time.time())
    assert late["trainingjobconfig.json"] == {"StoppingCondition": {"MaxRuntimeInSeconds": 1}}


def test_a_host_holds_as_many_ranks_as_its_engine_says(tmp_path: Path) -> None:
    """Where there are ranks at all, and nobody asked for another number."""
    engine = Engine("slurm", 0, 1, slots=4)
    ranks = ("--distribution", "torch_distributed")
    assert request(tmp_path, engine, *ranks).processes_per_host == 4
    own = ("--processes-per-host", "2")
    assert request(tmp_path, engine, *ranks, *own).processes_per_host == 2
    assert request(tmp_path, engine).processes_per_host is None


@pytest.mark.promise("E04")
def test_hosts_without_names_need_a_secret_or_leave(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch names no hosts: any could join"):
        read_secret(NAMELESS, {})
    for said in ({"MUSTER_JOB_SECRET": "s" * 16}, {"MUSTER_INSECURE_JOIN": "1"}):
        assert read_secret(NAMELESS, said) == ""
    assert read_secret(Engine("slurm", 0, 2, names=("a", "b")), {}) == ""
    (tmp_path / "key").write_text("f00d" * 8 + "\n")
    (tmp_path / "key").chmod(0o600)
    assert read_secret(NAMELESS._replace(secret_file=f"{tmp_path}/key"), {}) == "f00d" * 8


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"short", 0o600, "has 5 bytes, at least 16 are needed"),
        (b"\xff" * 32, 0o600, "it is no text"),
        (b"f00d" * 8, 0o644, "can be read by everybody"),
    ],
)
def test_a_secret_file_that_protects_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, mode: int, said: str
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    if not os.getuid():  # whose files that everybody may read are mounted Secrets
        if mode & 0o004:
            assert read_secret(NAMELESS._replace(secret_file=str(path)), {})
        os.chown(path, 1234, -1)
        monkeypatch.setattr(os, "getuid", lambda: 1234)
    with pytest.raises(ConfigError, match=said):
        read_secret(NAMELESS._replace(secret_file=str(path)), {})


def test_a_host_without_a_place_of_its_own_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there, and no other place was named") as caught:
        base_folder("n1", None, f"{tmp_path}/ml")
    assert "--output DIR" in caught.value.fix
    assert base_folder("n1", f"{tmp_path}/run", f"{tmp_path}/ml") == f"{tmp_path}/run/n1/opt/ml"
    (tmp_path / "ml").mkdir()
    assert base_folder("n1", None, f"{tmp_path}/ml") == f"{tmp_path}/ml"

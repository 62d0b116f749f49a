"""Where a host of `muster run` without --output has its code: in a container's own /opt/ml."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from muster.arguments import Parser, UsageError
from muster.contract.engines import Detected
from muster.elsewhere import command
from muster.elsewhere.network import Whereabouts
from muster.elsewhere.place import make_folders
from muster.types.engine import Engine

SINGLE = Engine("single", 0, 1)
PLACE = Whereabouts(("node-0",), {}, "eth0")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A container's /opt/ml, beside a folder of code and one of data."""
    for name in ("app", "data", "ml/code"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "app/train.py").write_text("print()")
    return tmp_path / "ml"


def parsed(*options: str) -> argparse.Namespace:
    parser = Parser("muster run", script_arguments=True)
    command.add_arguments(parser)
    return parser.parse(options)


def prepare(base: Path, *options: str, engine: Engine = SINGLE) -> str:
    """What `muster run` leaves for `train`; the place of the code is returned."""
    request = command.request_of(parsed(*options), engine)
    folders = make_folders(request, engine, PLACE, None, str(base))
    command.write_request(folders, request, Detected(engine, "asked for"), PLACE, {})
    return folders.source


def test_a_restarted_container_runs_its_code_again(base: Path) -> None:
    script, data = str(base.parent / "app/train.py"), str(base.parent / "data")
    options = (script, "--channel", f"train={data}", "--checkpoint", f"{base.parent}/kept")
    ended_by = Engine("slurm", 0, 1, attempt=1, deadline_s=4e9)
    for engine in (ended_by, SINGLE):
        assert prepare(base, *options, engine=engine) == f"{base}/input/sourcedir.tar.gz"
        assert not (base / "code").exists() or not list((base / "code").iterdir())
        (base / "code").mkdir(exist_ok=True)
        (base / "code/train.py").write_text("as `train` unpacks it")
    assert (base / "code.earlier/train.py").exists()
    assert (base / "input/data/train").resolve() == base.parent / "data"
    assert (base / "checkpoints").resolve() == base.parent / "kept"
    assert not list((base / "input/config").glob("*n*-config.json"))  # the first attempt's


def test_an_archive_that_is_not_there_is_named(base: Path) -> None:
    """Another folder would not help."""
    with pytest.raises(UsageError, match=r"--source-dir .*code\.tar\.gz: no such file") as caught:
        prepare(base, "train.py", "--source-dir", f"{base.parent}/code.tar.gz")
    assert "--output" not in caught.value.fix


def test_what_is_refused_changes_nothing(base: Path) -> None:
    (base / "code/own.py").write_text("print()")
    (base / "input/data").mkdir(parents=True)
    (base / "input/data/train").symlink_to(base.parent / "elsewhere")
    script, data = str(base.parent / "app/train.py"), str(base.parent / "data")
    with pytest.raises(UsageError, match="holds other code"):
        prepare(base, script, "--channel", f"train={data}")
    assert (base / "input/data/train").readlink() == base.parent / "elsewhere"
    assert (base / "code/own.py").exists() and len(list(base.iterdir())) == 2


def test_a_module_of_the_containers_code_has_its_entry_point(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "code/fit.py").write_text("print()")
    monkeypatch.chdir(base / "code")
    assert prepare(base, "-m", "fit") == f"{base}/code"
    request = json.loads((base / "input/config/hyperparameters.json").read_text())
    assert (base / "code" / json.loads(request["sagemaker_program"])).exists()


def test_the_containers_own_checkpoints_stay_where_they_are(base: Path) -> None:
    (base / "checkpoints").mkdir()
    (base / "checkpoints/step-9").touch()
    prepare(base, str(base.parent / "app/train.py"), "--checkpoint", f"{base}/checkpoints")
    assert (base / "checkpoints/step-9").exists() and not (base / "checkpoints").is_symlink()


def test_a_list_of_hosts_is_not_dropped_for_an_engine() -> None:
    with pytest.raises(UsageError, match="--host-list: this is a host of slurm"):
        command.refuse_contradiction(Engine("slurm", 0, 1), parsed("a.py", "--host-list", "a,b"))


@pytest.mark.parametrize("said", ["MUSTER_HOST_INDEX", "MUSTER_LEADER"])
def test_a_count_goes_with_what_else_the_environment_says_of_the_hosts(said: str) -> None:
    around = command.with_options({said: "0"}, parsed("a.py", "--hosts", "2"))
    assert around["MUSTER_HOST_COUNT"] == "2"
    assert "MUSTER_HOST_COUNT" not in command.with_options({}, parsed("a.py", "--hosts", "2"))

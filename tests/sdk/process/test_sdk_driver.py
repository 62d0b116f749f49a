"""The driver of `Muster`, as SDK v3's script starts it: it becomes the `train` of the image."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import muster.sdk
from muster.sdk.request import distributed_fields
from tests.support.mltree import write_tree

FOLDER = Path(muster.sdk.__file__).parent / "driver"
DRIVER = FOLDER / "muster_driver.py"
SCRIPT = """\
import json, os, sys
rank = os.environ.get("RANK", "none")
with open(f"{os.environ['SM_MODEL_DIR']}/rank-{rank}.json", "w") as file:
    json.dump([sys.argv[1:], os.environ.get("WORLD_SIZE")], file)
"""


def start(python: str, environ: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, str(DRIVER)], env=environ, cwd=cwd, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip


def test_it_runs_the_job_with_its_distribution_and_hyperparameters(tmp_path: Path) -> None:
    base, code = tmp_path / "ml", tmp_path / "code"
    for folder in (code, base / "model", base / "output" / "data"):
        folder.mkdir(parents=True)
    (code / "train.py").write_text(SCRIPT)
    # a module of the user's must not stand in the driver's way
    (code / "shutil.py").write_text("raise SystemExit('the wrong shutil')")
    asked = {"muster": distributed_fields("mpi", 2, "-x A='b c'", {})}
    resources = {
        "current_host": "algo-1", "hosts": ["algo-1"], "current_instance_type": "local_cpu",
        "network_interface_name": "ethwe",  # as the SDK writes it, which no machine has
    }  # fmt: skip
    environ = write_tree(
        base, {"lr": "0.1"}, resources, {"code": {}, "sm_drivers": {}},
        SM_ENTRY_SCRIPT="train.py", SM_SOURCE_DIR=str(code),
        SM_DISTRIBUTED_CONFIG=json.dumps(asked), MUSTER_HOST_ADDRESSES="algo-1=127.0.0.1",
        MUSTER_OVERSUBSCRIBE="1", PATH=os.environ["PATH"], HOME=str(tmp_path),
    )  # fmt: skip
    done = start(sys.executable, environ, code)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(path.read_text()) for path in sorted((base / "model").glob("rank-*"))]
    assert told == [[["--lr", "0.1"], "2"]] * 2
    assert not (base / "output" / "failure").exists()


def test_fields_of_an_unknown_class_end_the_job_before_its_script_runs(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = write_tree(
        tmp_path, {}, SM_ENTRY_SCRIPT="train.py", SM_SOURCE_DIR=str(tmp_path),
        SM_DISTRIBUTED_CONFIG=json.dumps({"nodes": 3}), PATH=os.environ["PATH"],
    )  # fmt: skip
    done = start(sys.executable, environ, tmp_path)
    assert done.returncode == 100, done.stdout + done.stderr
    told = (tmp_path / "output" / "failure").read_text()
    assert "no distributed= that is known has the fields 'nodes'" in told
    assert "use muster.sdk.v3.Muster" in told
    assert not list((tmp_path / "model").iterdir())


def test_another_train_is_not_mistaken_for_ours(tmp_path: Path) -> None:
    place = tmp_path / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    foreign = place / "bin" / "train"
    foreign.write_text("#!/bin/sh\necho the wrong one\n")
    foreign.chmod(0o755)
    (tmp_path / "output").mkdir()
    environ = {"PATH": str(place / "bin"), "SAGEMAKER_BASE_DIR": str(tmp_path)}
    done = start(str(place / "bin" / "python"), environ, tmp_path)
    assert done.returncode == 100
    assert "the wrong one" not in done.stdout
    assert "ConfigError: Muster(...): the image has no `train` of muster" in done.stderr
    assert "Fix: install the wheel muster_training in the image" in done.stderr
    assert (tmp_path / "output" / "failure").read_text() == done.stderr


def test_the_folder_that_travels_holds_the_driver_alone() -> None:
    assert [path.name for path in FOLDER.iterdir() if path.name != "__pycache__"] == [DRIVER.name]

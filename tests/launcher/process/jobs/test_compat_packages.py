"""What public scripts import of sagemaker-training, where that package is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.support.venvs import CHECKOUT, build_wheel

Make = Callable[..., Cluster]
ASKING = """\
import json
import sagemaker_containers
from sagemaker_containers.beta.framework import content_types, encoders, env, worker
from sagemaker_mxnet_container.training_utils import scheduler_host
from sagemaker_training import environment, params

told = environment.Environment()
print(json.dumps({
    "hosts": told.hosts, "first": scheduler_host(told.hosts), "me": told["current_host"],
    "master": told.is_master, "gpus": told.num_gpus, "model": told.model_dir,
    "hyperparameters": told.hyperparameters, "channels": told.channel_input_dirs,
    "framework": told.additional_framework_parameters,
    "program": told.user_entry_point, "read": environment.read_hyperparameters(),
    "older": sagemaker_containers.training_env().hosts,
    "name": params.USER_PROGRAM_PARAM, "absent": told.get("nothing", 7),
}))
"""
PACKAGES = ("sagemaker_training", "sagemaker_containers", "sagemaker_mxnet_container")


def python(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_script_asks_its_environment_as_it_does_elsewhere(cluster: Make) -> None:
    """The lines of public scripts: attributes of `Environment()`, its keys, the older names."""
    job = cluster(
        ASKING,
        hosts=1,
        hyperparameters={"epochs": "3", "sagemaker_mpi_enabled": "false"},
    )
    result = job.run()["algo-1"]
    assert result.code == 0, result.err
    base = str(job.base("algo-1"))
    assert json.loads(result.out) == {
        "hosts": ["algo-1"], "first": "algo-1", "me": "algo-1", "master": True, "gpus": 0,
        "model": f"{base}/model", "hyperparameters": {"epochs": 3},
        "channels": {},
        "framework": {"sagemaker_mpi_enabled": False}, "program": "train.py",
        "read": {"epochs": 3}, "older": ["algo-1"], "name": "sagemaker_program", "absent": 7,
    }  # fmt: skip


def test_arrays_come_back_from_every_content_type() -> None:
    code = (
        "from sagemaker_training import content_types as types, encoders, errors\n"
        "import numpy\n"
        "value = numpy.array([[1.5, 2.0], [3.0, 4.0]])\n"
        "for name in (types.NPY, types.CSV, types.JSON):\n"
        "    found = encoders.decode(encoders.encode(value, name), name)\n"
        "    assert (found == value).all() and found.dtype == value.dtype, (name, found)\n"
        "try:\n"
        "    encoders.encode(value, 'text/none')\n"
        "except errors.UnsupportedFormatError as error:\n"
        "    print(error)\n"
    )
    if subprocess.run(
        [sys.executable, "-c", "import numpy"], capture_output=True, check=False
    ).returncode:
        pytest.skip("numpy is not installed here")
    assert "text/none is not supported" in python(code)


def test_an_mxnet_model_is_saved_by_the_first_host_alone(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from collections import namedtuple\n"
        "from sagemaker_mxnet_container.training_utils import save\n"
        "class Symbol:\n"
        "    def save(self, path): open(path, 'w').write('symbol')\n"
        "class Model:\n"
        "    symbol = Symbol()\n"
        "    data_shapes = [namedtuple('Shape', 'name shape')('data', (4, 2))]\n"
        "    def save_params(self, path): open(path, 'w').write('params')\n"
        "save(sys.argv[1], Model(), 'algo-2', ['algo-1', 'algo-2'])\n"
        "import os\n"
        "assert not os.listdir(sys.argv[1])\n"
        "save(sys.argv[1], Model(), 'algo-1', ['algo-1', 'algo-2'])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    assert {path.name for path in tmp_path.iterdir()} == {
        "model-symbol.json", "model-0000.params", "model-shapes.json",
    }  # fmt: skip
    shapes = json.loads((tmp_path / "model-shapes.json").read_text())
    assert shapes == [{"name": "data", "shape": [4, 2]}]


def test_what_is_not_served_says_so() -> None:
    code = (
        "try:\n    from sagemaker_training import entry_point\n"
        "except ImportError as error:\n    print(error)\n"
        "from sagemaker_containers.beta.framework import worker\n"
        "try:\n    worker.Response\nexcept AttributeError as error:\n    print(error)\n"
        "from sagemaker_training import environment\n"
        "try:\n    environment.Environment()\nexcept RuntimeError as error:\n    print(error)\n"
    )
    told = {**os.environ, "SM_TRAINING_ENV": ""}
    del told["SM_TRAINING_ENV"]
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=told, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert "No module named 'sagemaker_training.entry_point' in muster-compat" in said
    assert "worker.Response is for serving" in said
    assert "SM_TRAINING_ENV is not set" in said and "muster local SCRIPT" in said


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_is_installed_wins(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("real = True\n")
    assert python(f"import {name}; print({name}.real)", PYTHONPATH=str(tmp_path)) == "True"


def test_a_start_of_python_loads_nothing_for_it() -> None:
    names = "import sys; print([name for name in sys.modules if 'muster' in name])"
    assert python(names) == "[]"
    finders = "import sys; print([one.__name__ for one in sys.meta_path if isinstance(one, type)])"
    assert python(finders).endswith("'MusterCompat']")


@pytest.mark.dev
def test_the_wheel_leaves_the_packages_folders_to_their_owners(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(CHECKOUT / "toolkit" / "compat", tmp_path / "wheel")) as wheel:
        files = set(wheel.namelist())
    assert "muster_compat.pth" in files
    for name in PACKAGES:
        assert f"muster_compat/fallback/{name}/__init__.py" in files
        assert not any(file.startswith(name) for file in files)

"""`--model-plan`: one process is started, whatever the size of the job that is planned for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.launcher.support.local.local_runs import PROCESS, Start

# in place of muster_modelparallel: tests/frameworks has the real one
SCRIPT = """\
import json, os, sys
names = ("MODELPARALLEL_RANKS", "SM_HP_MP_PARAMETERS", "SM_HP_LR")
print("given " + json.dumps({name: os.environ.get(name) for name in names}), flush=True)
if "--nothing" not in sys.argv:
    out = os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], os.environ["MODELPARALLEL_PLAN_OUT"])
    for path in (out, out.replace(".json", ".html")):
        open(path, "w").write("{}")
"""
PARAMETERS = {"partitions": 4, "microbatches": 8, "ddp": True}


def asked(**more: object) -> str:
    chosen = {"modelparallel": {"enabled": True, "parameters": PARAMETERS}}
    return json.dumps({"smdistributed": chosen, **more})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize(
    ("distribution", "options", "ranks"),
    [
        (asked(mpi={"enabled": True, "processes_per_host": 8}), ("--hosts", "100"), 800),
        (asked(torch_distributed={"enabled": True}),
         ("--hosts", "3", "--processes-per-host", "2"), 6),
        ("smp", ("--hyperparameter", f"mp_parameters={json.dumps(PARAMETERS)}"), 1),
    ],
)  # fmt: skip
def test_one_process_hears_of_the_size_and_the_parameters_of_the_job(
    start: Start, home: Path, distribution: str, options: tuple[str, ...], ranks: int
) -> None:
    command = ("train.py", "--model-plan", "--distribution", distribution, *options)
    result = start(home, (*command, "--hyperparameter", "lr=0.5", "--ranks", "0", *PROCESS)).wait()
    assert result.code == 0, result.err
    (said,) = [line for line in result.out.splitlines() if " given " in line]
    given = json.loads(said.partition(" given ")[2])
    assert given.pop("MODELPARALLEL_RANKS") == str(ranks)
    assert json.loads(given.pop("SM_HP_MP_PARAMETERS")) == PARAMETERS
    assert given == {"SM_HP_LR": "0.5"}
    assert "WARNING" not in result.err
    (shown,) = [line for line in result.err.splitlines() if line.startswith("  plan ")]
    assert (home / shown.split()[1]).is_file()


def test_a_script_that_comes_to_no_step_has_failed(start: Start, home: Path) -> None:
    command = ("train.py", "--model-plan", "--distribution", "smp", *PROCESS, "--", "--nothing")
    run = start(home, command)
    run.expect(apart=frozenset({"algo-1"}))  # its host did all that it was asked for
    result = run.wait()
    assert result.code == 106
    assert "train.py came to no smp.step that trains a model: nothing was planned" in result.err


def test_muster_plan_does_the_same_for_a_script_and_for_a_folder_of_its_request(
    start: Start, home: Path
) -> None:
    with (home / "train.py").open("a") as script:
        script.write("print('has', os.listdir(os.environ['SM_CHANNEL_TRAIN']), sys.argv[1:])\n")
    base = home / "opt/ml"
    data = base / "input/data/train"
    for folder in (data, base / "input/config", base / "code"):
        folder.mkdir(parents=True)
    (data / "rows.csv").touch()
    (home / "train.py").rename(base / "code/train.py")
    sent = {"lr": 0.5, "mp_parameters": PARAMETERS, "name": "a b"}
    request: dict[str, Mapping[str, object]] = {
        "hyperparameters": {name: json.dumps(value) for name, value in sent.items()}
        | {"sagemaker_program": "train.py", "sagemaker_mpi_enabled": "true",
           "sagemaker_mpi_num_of_processes_per_host": "8"},
        "resourceconfig": {"current_host": "algo-1", "hosts": ["algo-1", "algo-2", "algo-3"]},
        "inputdataconfig": {"train": {"TrainingInputMode": "File"}},
    }  # fmt: skip
    for name, document in request.items():
        (base / "input/config" / f"{name}.json").write_text(json.dumps(document))
    of_script = (
        str(base / "code/train.py"), "--hosts", "3", "--channel", f"train={data}",
        "--distribution", asked(mpi={"enabled": True, "processes_per_host": 8}),
        "--hyperparameter", "lr=0.5", "--hyperparameter", "name=a b",
    )  # fmt: skip
    for options in (of_script, ("--base-dir", str(base))):
        result = start(home, (*options, "--model", *PROCESS), verb="plan").wait()
        assert result.code == 0, result.err
        said = [line.partition("] ")[2] or line for line in result.out.splitlines()]
        (given,) = [line for line in said if line.startswith("given ")]
        assert json.loads(given.removeprefix("given ")) == {
            "MODELPARALLEL_RANKS": "24", "SM_HP_LR": "0.5",
            "SM_HP_MP_PARAMETERS": json.dumps(PARAMETERS),
        }  # fmt: skip
        assert "has ['rows.csv'] ['--lr', '0.5', '--name', 'a b']" in said
        assert "model-plan.html" in result.err

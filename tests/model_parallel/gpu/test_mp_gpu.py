"""Model parallelism with tensors on a GPU: the checks that also run on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.model_parallel.support.checks import failures
from tests.model_parallel.support.ranks import results, run_ranks, words_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
FOLDER = Path(__file__).parents[1]
RUNNER = Path(__file__).with_name("on_gpu.py")
LIMIT_S = 200  # no promise
MODELS = ("GPT", "BERT", "T5", "Llama", "ResNet", "U-Net")
LOSS, GRADIENTS = 2e-6, 1e-5


@pytest.fixture(autouse=True)
def _gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here: that devices, streams and random numbers are right shows on one")


def test_steps_of_a_model_that_is_cut() -> None:
    script = FOLDER / "steps/ranks_steps.py"
    said = results(
        run_ranks(RUNNER, 2, arguments=[script], parameters={"microbatches": 4},
                  limit_s=LIMIT_S, fresh=True)
    )  # fmt: skip
    assert not failures(said), failures(said)


@pytest.mark.parametrize(
    ("script", "parameters"),
    [("ranks_half", {"pipeline_parallel_degree": 2}), ("ranks_sharded", {"ddp": True})],
)
def test_what_an_optimizer_keeps(
    tmp_path: Path, script: str, parameters: dict[str, object]
) -> None:
    file = FOLDER / f"steps/{script}.py"
    said = results(
        run_ranks(RUNNER, 2, arguments=[file, tmp_path], parameters=parameters,
                  limit_s=LIMIT_S, fresh=True)
    )  # fmt: skip
    assert not failures(said), failures(said)


@pytest.mark.parametrize("count", [2, 3])
def test_data_parallelism(count: int) -> None:
    script = FOLDER / "ranks/ranks_data_parallel.py"
    said = results(
        run_ranks(RUNNER, count, arguments=[script, "auto"], limit_s=LIMIT_S, fresh=True)
    )
    found = [rank["said"] for rank in said]
    assert not failures(found), failures(found)


def test_every_schedule_gives_the_gradients_of_the_whole_chain() -> None:
    script = FOLDER / "pipeline/ranks_pipeline.py"
    parameters = {"pipeline_parallel_degree": 2, "microbatches": 8}
    ends = run_ranks(
        RUNNER, 2, arguments=[script, "ordered"], parameters=parameters, limit_s=LIMIT_S, fresh=True
    )
    for found in results(ends):
        assert found["said"]
        assert not {name: apart for name, apart in found["said"].items() if apart > 1e-12}


def test_losses_and_gradients_are_those_of_one_process() -> None:
    script = FOLDER / "parity/ranks_parity.py"
    ends = run_ranks(
        RUNNER, 2, arguments=[script, "float32", 5, json.dumps(MODELS)],
        parameters={"pipeline_parallel_degree": 2, "microbatches": 4}, limit_s=LIMIT_S, fresh=True,
    )  # fmt: skip
    for said in results(ends):
        for name in MODELS:
            assert said[name]["compared"]
            assert said[name]["losses"] <= LOSS and said[name]["gradients"] <= GRADIENTS, said


def test_ranks_that_share_a_gpu_are_told_so_at_once() -> None:
    script = "import muster_modelparallel as smp; smp.init()"
    ends = run_ranks(script, 2, parameters={"ddp": True}, limit_s=LIMIT_S, fresh=True)
    words = "ranks 0 and 1 are both on GPU"
    assert all(end.code == 1 and words in end.err for end in ends), words_of(ends)


def test_a_rank_that_is_alone_trains_over_nccl() -> None:
    """The example as it is: its backend is muster, which gives CUDA tensors to NCCL."""
    script = FOLDER.parents[1] / "examples/modelparallel/train.py"
    (end,) = run_ranks(
        script, 1, arguments=["--steps", "20"], parameters={"microbatches": 2, "ddp": True},
        limit_s=LIMIT_S, fresh=True,
    )  # fmt: skip
    assert end.code == 0, words_of([end])


@pytest.mark.parametrize("count", [1, 2])
def test_activations_that_leave_the_gpu_make_room_and_change_nothing(count: int) -> None:
    parameters = {
        "pipeline_parallel_degree": count, "microbatches": 8 if count > 1 else 1,
        "pipeline": "simple", "activation_loading_horizon": 1,
    }  # fmt: skip
    script = RUNNER.with_name("ranks_offload.py")
    ends = run_ranks(
        RUNNER, count, arguments=[script], parameters=parameters, limit_s=LIMIT_S, fresh=True
    )
    for rank in results(ends):
        assert rank["leave"][0] == rank["stay"][0]
    said = results(ends)[0]
    print(said)
    most = 0.8 if count == 1 else 0.9  # of a stage the messages stay, and two microbatches
    assert said["leave"][1] < most * said["stay"][1], said

"""Hugging Face's Trainer under smdistributed.modelparallel, which it knows by itself.

What it does where `partitions` and MPI are in the request: it wraps the model, and trains and
evaluates in step functions. It asks for a GPU then, whatever it is told; here that is the CPU.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.model_parallel.support.ranks import CHECKOUT, SOURCES, results, run_ranks
from tests.support.effort import effort
from tests.support.frameworks import library_packages
from tests.support.venvs import UnavailableError

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
LIMIT_S = 300.0  # to import transformers alone takes ten seconds of a processor


def trains(gives_optimizer: bool) -> dict[str, Any]:
    import tempfile

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from transformers.utils import is_sagemaker_mp_enabled

    import smdistributed.modelparallel.torch as smp

    class OnTheCpu(TrainingArguments):
        @property
        def _setup_devices(self) -> torch.device:
            self._n_gpu, self.distributed_state = 1, None
            return torch.device("cpu")

    torch.manual_seed(0)
    tiny = {"vocab_size": 32, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(**tiny, **off)
    plain, module = GPT2LMHeadModel(config), GPT2LMHeadModel(config)
    plain.load_state_dict(module.state_dict())
    words = torch.arange(8)
    data = [{"input_ids": words, "labels": words}] * 16  # all alike: whatever the order
    given = {}
    if gives_optimizer:
        inner = torch.optim.SGD(module.parameters(), lr=0.5)
        given["optimizers"] = (smp.DistributedOptimizer(inner), None)
    trainer = Trainer(
        model=module,
        args=OnTheCpu(
            output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=4,
            per_device_eval_batch_size=4, learning_rate=0.01, max_grad_norm=0.0,
            lr_scheduler_type="constant", report_to=[], save_strategy="no", logging_steps=1,
            disable_tqdm=True,
        ),
        train_dataset=data, eval_dataset=data[:4],
        **given,
    )  # fmt: skip
    trainer.train()
    evaluated = trainer.evaluate()["eval_loss"]
    model = smp.state.model
    assert model is not None
    trained = GPT2LMHeadModel(config)  # whole, whatever its stages
    trained.load_state_dict(model.state_dict())
    inputs = {"input_ids": words[None], "labels": words[None]}
    with torch.no_grad():
        expected = [plain(**inputs).loss.item(), trained(**inputs).loss.item()]
    smp_losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {
        "enabled": is_sagemaker_mp_enabled(),
        "wrapped": type(trainer.model_wrapped).__mro__[0].__name__,
        "microbatches": smp.state.cfg.microbatches,
        "losses": smp_losses,
        "first_and_last": [smp_losses[0], evaluated],
        "expected": expected,
        "optimizer": isinstance(smp.state.optimizer, smp.DistributedOptimizer),
    }


@pytest.mark.parametrize(
    ("environment", "gives_optimizer", "partitions"),
    [
        ("transformers4", False, 2),
        ("transformers5", True, 2),
        # a model that is whole: where it is cut, the Trainer goes the same way and more
        *(
            [pytest.param("transformers5", True, 1, marks=pytest.mark.effort)]
            if effort() > 1
            else []
        ),
    ],
)
def test_the_trainer_trains_and_evaluates(
    environment: str, gives_optimizer: bool, partitions: int
) -> None:
    """transformers 5 makes no optimizer in this mode: it is given one."""
    try:
        packages = library_packages(environment)
    except UnavailableError as reason:
        pytest.skip(f"{environment} cannot be installed here: {reason}")
    env = {
        "PYTHONPATH": os.pathsep.join(map(str, (packages, CHECKOUT, *SOURCES))),
        "SM_FRAMEWORK_PARAMS": '{"sagemaker_mpi_enabled": true}',
    }
    ends = run_ranks(
        trains, partitions, arguments=[gives_optimizer], env=env, limit_s=LIMIT_S,
        parameters={"partitions": partitions, "microbatches": 2, "ddp": True},
    )  # fmt: skip
    said, *others = results(ends)
    assert all(other == said for other in others)
    assert said["enabled"] and said["wrapped"] == "DistributedModel" and said["optimizer"]
    assert said["microbatches"] == 2 and len(said["losses"]) == 3
    assert said["first_and_last"] == pytest.approx(said["expected"], abs=2e-4)
    assert said["losses"][0] > said["losses"][1] > said["losses"][2] > said["expected"][1]

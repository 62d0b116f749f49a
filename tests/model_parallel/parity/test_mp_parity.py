"""A model that is cut trains as the whole one does: losses and gradients beside one process."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.model_parallel.support.ranks import results, run_ranks
from tests.support.frameworks import library_packages

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]
SCRIPT = Path(__file__).with_name("ranks_parity.py")
MODELS = ("GPT", "BERT", "T5", "Llama", "ResNet", "U-Net")
STEPS, FEW_STEPS = 20, 10
# it takes a rank ten seconds of a processor to import them
IMPORTS = tuple(
    f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "bert", "t5", "llama")
)
LIMIT_S = 300  # no promise: ranks import transformers beside other work
LOSS, GRADIENTS = 2e-6, 1e-5
# what is the same code in another combination is left to test-long, and so are many steps
QUICK = {("interleaved", 2, "auto"), ("simple", 4, "gloo")}
JOBS = [
    pytest.param(*one, FEW_STEPS)
    if one in QUICK
    else pytest.param(*one, STEPS, marks=pytest.mark.long)
    for one in itertools.product(("interleaved", "simple"), (2, 4), ("auto", "gloo"))
]


def job(dtype: str, names: list[str], steps: int, **parameters: object) -> list[dict[str, Any]]:
    packages = str(library_packages("transformers5"))
    degree = int(str(parameters["pipeline_parallel_degree"]))
    ends = run_ranks(
        SCRIPT, degree, arguments=[dtype, steps, json.dumps(names)], parameters=parameters,
        env={"PYTHONPATH": packages}, limit_s=LIMIT_S, imports=IMPORTS,
    )  # fmt: skip
    return results(ends)


@pytest.mark.parametrize(("pipeline", "degree", "backend", "steps"), JOBS)
def test_losses_and_gradients_are_those_of_one_process(
    pipeline: str, degree: int, backend: str, steps: int
) -> None:
    found = job(
        "float32", list(MODELS), steps, pipeline_parallel_degree=degree, microbatches=4,
        pipeline=pipeline, ddp_dist_backend=backend,
    )  # fmt: skip
    for name in MODELS:
        said = [rank[name] for rank in found]
        assert max(one["losses"] for one in said) <= LOSS, (name, said)
        assert max(one["gradients"] for one in said) <= GRADIENTS, (name, said)
        assert all(one["compared"] for one in said), (name, said)


def test_in_double_precision_they_differ_by_rounding_alone() -> None:
    said = job("float64", ["GPT", "U-Net"], FEW_STEPS, pipeline_parallel_degree=2, microbatches=4)
    for name in ("GPT", "U-Net"):
        assert max(rank[name]["losses"] for rank in said) <= 1e-12
        assert max(rank[name]["gradients"] for rank in said) <= 1e-12

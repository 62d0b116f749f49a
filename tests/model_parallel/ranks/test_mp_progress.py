"""After 20 steps rank 0 says what the stages took, and leaves a plan where another one gains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from muster_modelparallel.shape.plan import Plan
from tests.model_parallel.support.ranks import results, run_ranks, words_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]
LIMIT_S = 150  # no promise
STAGES = r"stage  units  first  seconds  MiB of parameters\n.*: 0 .*\n.*: 1 .*"
# Two of eight layers become four times as much work once the plan is made.
SCRIPT = """
    import os, sys
    import torch
    from torch import nn
    import muster_modelparallel as smp
    from tests.model_parallel.support.ranks import give

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(128, 128) / 12)
            self.times = 4

        def forward(self, x):
            for _ in range(self.times):
                x = torch.tanh(x @ self.weight)
            return x

    torch.set_num_threads(1)
    smp.init()
    net = nn.Sequential(*[Layer() for _ in range(8)])
    model = smp.DistributedModel(net)

    @smp.step
    def train(x):
        model.backward(model(x).square().mean())

    x = torch.randn(256, 128)
    for number in range(int(sys.argv[1])):
        train(x)
        for layer in net[6:]:
            layer.times = 16
    give([name for name, _ in model.local_named_parameters()])
"""


def test_a_slow_stage_is_named_with_the_plan_that_gains(tmp_path: Path) -> None:
    parameters = {"pipeline_parallel_degree": 2, "microbatches": 4}
    own = {"SM_OUTPUT_DATA_DIR": str(tmp_path)}
    ends = run_ranks(
        SCRIPT, 2, arguments=[21], parameters=parameters, env=own, limit_s=LIMIT_S
    )  # fmt: skip
    before = results(ends)
    said = [line for line in ends[0].out.splitlines() if "after 20 steps" in line]
    phases = re.findall(r"modelparallel: (\w+): \d+\.\d s", ends[0].out)
    assert phases == ["probe", "plan", "proof", "move"], words_of(ends)
    figure = r"\d+\.\d\d \(\d+\.\d\d\)"
    words = rf"a microbatch stage 0 {figure}, stage 1 {figure}; a step {figure}"
    assert len(said) == 1 and re.search(words, said[0]), words_of(ends)
    assert "after 20 steps" not in ends[1].out
    counts = [len(re.findall(STAGES, end.out)) for end in ends]
    assert counts == [1, 0], words_of(ends)
    told = re.search(
        r"stage 1 \(rank 1\) is (1\.\d)x the mean: MODELPARALLEL_PLAN_IN=(\S+) would gain \d+%",
        ends[0].out,
    )
    assert told, words_of(ends)
    file = Path(told[2])
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        f"model-plan{which}.{kind}" for which in ("", "-measured") for kind in ("html", "json")
    )
    assert len(Plan.load(file).stages) == 2 and json.loads(file.read_text())["why"]
    again = run_ranks(
        SCRIPT, 2, arguments=[2], parameters=parameters, limit_s=LIMIT_S,
        env={"MODELPARALLEL_PLAN_IN": str(file)},
    )  # fmt: skip
    after = results(again)
    assert len(after[0]) > len(before[0]) and len(after[1]) < len(before[1]), (before, after)

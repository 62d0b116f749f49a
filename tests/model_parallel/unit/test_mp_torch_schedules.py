"""Schedules of torch as tables: all run in the simulator and keep what their papers say."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from muster_modelparallel.errors import PlanError
from muster_modelparallel.run.pipeline.torch_schedules import LOOPS, THERE_AND_BACK, torch_schedule
from muster_modelparallel.shape.schedule import Schedule, gpipe, interleaved, one_f_one_b
from muster_modelparallel.shape.simulate import StageCost, simulate

pytestmark = pytest.mark.torch


def bubble(schedule: Schedule) -> float:
    return simulate(schedule, [StageCost(1, 2)] * len(schedule.rank_of)).bubble


@pytest.mark.parametrize("name", [*LOOPS, *THERE_AND_BACK])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 16)])
def test_stages_lie_where_torch_puts_them_and_wait_less_than_1f1b(
    name: str, ranks: int, microbatches: int
) -> None:
    schedule = torch_schedule(name, ranks, microbatches)
    style = "v" if name in THERE_AND_BACK else "loop"
    assert schedule.rank_of == schedules.generate_stage_to_rank_mapping(ranks, 2 * ranks, style)
    assert bubble(schedule) < (ranks - 1) / (microbatches + ranks - 1) - 0.01


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16)])
def test_interleaved_stages_wait_as_the_closed_form_says(p: int, m: int, chunks: int) -> None:
    found = bubble(torch_schedule("Interleaved1F1B", p, m, chunks))
    assert found == pytest.approx((p - 1) / (chunks * m + p - 1), abs=1e-9)


@pytest.mark.parametrize(("p", "m", "chunks"), [(2, 2, 2), (2, 8, 3), (3, 6, 2), (4, 16, 2)])
def test_stages_come_by_in_torchs_order(p: int, m: int, chunks: int) -> None:
    assert interleaved(p, m, chunks).ranks == torch_schedule("Interleaved1F1B", p, m, chunks).ranks


def test_what_torch_refuses_is_refused_with_its_reason() -> None:
    with pytest.raises(PlanError, match=r"DualPipeV on 4 ranks: .*at least as many microbatches"):
        torch_schedule("DualPipeV", 4, 4)


def test_gpipe_is_torchs_order() -> None:
    class Stage:
        num_stages, group_size, group_rank, stage_index = 3, 3, 0, 0
        is_first, is_last, has_backward, submod, device = True, False, True, None, "cpu"

    def torchs(kind: Any) -> list[list[str]]:
        order = kind(Stage(), 4, loss_fn=lambda output, _: output).pipeline_order
        return [[str(a) for a in order[r] if a and str(a)[1] in "FB"] for r in sorted(order)]

    ours = [[str(action) for action in rank] for rank in gpipe(3, 4).ranks]
    assert ours == torchs(schedules.ScheduleGPipe)
    # torch's list of 1F1B counts the last rank's forwards from 1; what it runs does not
    ours = [[str(action) for action in rank] for rank in one_f_one_b(3, 4).ranks]
    assert ours[:-1] == torchs(schedules.Schedule1F1B)[:-1]

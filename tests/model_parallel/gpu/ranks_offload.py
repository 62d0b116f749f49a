"""How much memory of the GPU a step takes at most, with activations that stay and that leave."""

from __future__ import annotations

import torch
from torch import nn

import muster_modelparallel as smp
from muster_modelparallel.run import session as sessions
from tests.model_parallel.support.ranks import give

WIDTH, ROWS = 1024, 16384


def step_of(leaves: bool) -> tuple[list[float], int, float]:
    """Losses of four steps, and the peak and the seconds of the last."""
    smp.init({"offload_activations": leaves})
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8)]
    model = smp.DistributedModel(nn.Sequential(*layers))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))

    @smp.step
    def train(model, x):
        loss = model(x).square().mean()
        model.backward(loss)
        return loss

    losses, peak, seconds = [], 0, 0.0
    for _ in range(4):
        x = torch.randn(ROWS, WIDTH)
        optimizer.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        losses.append(float(train(model, x).reduce_mean()))
        end.record()
        torch.cuda.synchronize()
        peak, seconds = torch.cuda.max_memory_allocated(), begin.elapsed_time(end) / 1e3
        optimizer.step()
    sessions.shutdown()
    return losses, peak, seconds


if __name__ == "__main__":
    give({"stay": step_of(False), "leave": step_of(True)})

"""What a forward pass saves leaves its device until backward needs it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from muster_modelparallel.errors import StepError
from muster_modelparallel.run.offload import Offload

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


class Watched(nn.Module):
    """Knows whether the tensors that it returned are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: list[weakref.ref[torch.UntypedStorage]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x * 2
        self.storages.append(weakref.ref(out.untyped_storage()))
        return out

    @property
    def there(self) -> int:
        gc.collect()
        return sum(one() is not None for one in self.storages)


class Net(nn.Module):
    """Three layers have one input, which nothing but the graph keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.watched = nn.Linear(32, 32), Watched()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.last = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.watched(self.first(x))
        return self.last(sum(layer(x) for layer in self.layers).tanh())


def gradients(net: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.parametrize("loads_ahead", [False, True])
def test_activations_leave_once_and_gradients_are_the_same(loads_ahead: bool) -> None:
    torch.manual_seed(1)
    net, x = Net(), torch.randn(64, 32)
    wanted = gradients(net, net(x).square().sum())
    offload = Offload(CPU, horizon=1, least_bytes=1024)
    net.watched.storages.clear()
    with offload.saving([*net.parameters(), x], loads_ahead) as saved:
        out = net(x)
    assert net.watched.there == 0
    each_bytes = 64 * 32 * 4
    assert offload.offloaded_bytes == 2 * each_bytes  # the layers' input, and the last one's
    if not loads_ahead:
        saved.load()
    found = gradients(net, out.square().sum())
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_without_it_the_graph_keeps_them() -> None:
    net = Net()
    out = net(torch.randn(64, 32))
    assert net.watched.there == 1
    del out


def test_what_a_checkpointed_module_begins_with_leaves() -> None:
    torch.manual_seed(1)
    net, x = Net(), torch.randn(64, 32)
    body = nn.Sequential(nn.Linear(32, 32), nn.Tanh())

    def run() -> torch.Tensor:
        return checkpoint(body, net.watched(net.first(x)), use_reentrant=False).square().sum()

    wanted = torch.autograd.grad(run(), net.first.weight)
    net.watched.storages.clear()
    offload = Offload(CPU, horizon=1, least_bytes=1024)
    with offload.saving([*net.parameters(), *body.parameters(), x], True):
        loss = run()
    assert net.watched.there == 0
    assert torch.equal(torch.autograd.grad(loss, net.first.weight)[0], wanted[0])


def test_memory_that_was_given_away_is_not_taken_for_what_left() -> None:
    """Tensors that come and go have the same address, shape and version."""
    offload = Offload(CPU, horizon=1, least_bytes=1)
    weight = torch.ones(256, requires_grad=True)
    total = torch.zeros(())
    with offload.saving([weight], True):
        for number in range(8):
            total = total + (weight * torch.full((256,), float(number))).sum()
    (found,) = torch.autograd.grad(total, weight)
    assert torch.equal(found, torch.full((256,), 28.0))


def test_backward_may_come_twice() -> None:
    offload = Offload(CPU, horizon=1, least_bytes=1)
    x = torch.ones(8, requires_grad=True)
    with offload.saving([], True):
        out = (x * 3).square().sum()
    first = torch.autograd.grad(out, x, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(out, x)[0])


def test_an_expanded_tensor_stays() -> None:
    offload = Offload(CPU, horizon=1, least_bytes=1)
    x = torch.ones(1, 8, requires_grad=True)
    row = torch.ones(1, 8).expand(64, 8)
    with offload.saving([], True):
        out = (x * row).sum()
    assert offload.offloaded_bytes == 0
    assert torch.equal(torch.autograd.grad(out, x)[0], torch.full((1, 8), 64.0))


def test_a_tensor_that_was_changed_meanwhile_is_refused() -> None:
    offload = Offload(CPU, horizon=1)
    weight = torch.ones(8, requires_grad=True)
    with offload.saving([weight], True):
        out = (weight.exp() * weight).sum()
    with torch.no_grad():
        weight.mul_(100)
    with pytest.raises(StepError, match=r"changed in place after the forward pass"):
        out.backward()


def test_a_graph_without_backward_is_freed() -> None:
    offload = Offload(CPU, horizon=1, least_bytes=1024)
    net = Net()
    small = nn.Linear(32, 1)
    with offload.saving([*net.parameters(), *small.parameters()], True):
        out = small(net(torch.randn(64, 32))).sigmoid()  # which its own node saves
    storage = weakref.ref(out.untyped_storage())
    del out
    gc.collect()
    assert storage() is None

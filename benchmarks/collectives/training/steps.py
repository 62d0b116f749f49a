"""What the training rows share: a model, a step of it, and proof that two ways train alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.collectives.training.rows import OURS, REGISTERED, STOCK
from muster_collectives.tools.bench.group import BenchGroup

BATCH = 16
THROUGH_OURS = (OURS, REGISTERED, STOCK)
CLOSE = 1e-5
Step = Callable[[], object]


class Trained(NamedTuple):
    """`steps` by contender, ready to be measured; `size_bytes` of what is sent in one of them;
    `close`: after the measuring, on all ranks."""

    what: str
    size_bytes: int
    steps: Mapping[str, Step]
    close: Callable[[], None] = lambda: None


def network(group: BenchGroup, width: int, layers: int) -> Any:
    """The same weights on every rank and in every copy."""
    group.torch.manual_seed(0)
    parts = [group.torch.nn.Linear(width, width) for _ in range(layers)]
    return group.torch.nn.Sequential(*parts)


def bytes_of(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def step_of(
    group: BenchGroup, model: Any, width: int, batch: int = BATCH, alike: bool = False
) -> Step:
    """Forward, backward and an optimizer that changes nothing, so that every step is the first.
    `alike`: all ranks take the same batch, as tensor parallelism wants it."""
    chance = group.torch.Generator().manual_seed(0 if alike else group.rank)
    data = group.torch.randn(batch, width, generator=chance)
    optimizer = group.torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def require_ways(group: BenchGroup, steps: Mapping[str, Step]) -> None:
    """Makes one step of each contender. Raises ValueError where one that stands for our group does
    not call it, or another one does: torch keeps plans of meshes that look alike, and would let
    both go the first one's way."""
    for name, step in steps.items():
        before = _calls(group)
        step()
        if (_calls(group) > before) != (name in THROUGH_OURS):
            way = "has not called" if name in THROUGH_OURS else "has called"
            raise ValueError(f"the step over {name!r} {way} our group")


def _calls(group: BenchGroup) -> int:
    """Of the core, in our group, on this rank."""
    core = group.dist.group.WORLD.stats().core
    return sum(core.calls.values())


def require_alike(group: BenchGroup, one: Any, other: Any, close: float = CLOSE) -> None:
    """Of two models that have made a step: raises ValueError where their gradients on this rank
    differ by more than `close` of the largest, for then they do not do the same work."""
    torch = group.torch
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        if (mine.grad is None) != (theirs.grad is None):
            raise ValueError("only one of the two ways has a gradient here")
        if mine.grad is None:
            continue
        a, b = (
            getattr(grad, "to_local", lambda grad=grad: grad)() for grad in (mine.grad, theirs.grad)
        )
        most = float(b.abs().max()) if b.numel() else 0.0
        if not torch.allclose(a, b, atol=max(CLOSE, close * most), rtol=close):
            raise ValueError("the gradients of the two ways differ")

"""Models as chains of units with costs, for tests of plans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain as flat

from muster_modelparallel.shape.units import INPUT, Flow, ModelProfile, Unit

MIB = 2**20


def chain(
    costs: Sequence[float],
    *,
    blocks: Sequence[str] = (),
    parameter_bytes: Sequence[int] = (),
    saved_bytes: Sequence[int] = (),
    flow_bytes: int = 1000,
    noise: float = 0.0,
) -> ModelProfile:
    """Unit k needs `costs[k]` seconds, a third of it forward, and feeds unit k + 1."""
    count = len(costs)
    units = (
        Unit(
            f"u{at}",
            block=blocks[at] if blocks else "",
            parameters=(f"u{at}.weight",),
            parameter_bytes=parameter_bytes[at] if parameter_bytes else 1000,
            forward_s=cost / 3,
            backward_s=2 * cost / 3,
            saved_bytes=saved_bytes[at] if saved_bytes else 0,
        )
        for at, cost in enumerate(costs)
    )
    flows = (Flow(at, at + 1, flow_bytes) for at in range(count))
    first = Flow(INPUT, 0, flow_bytes, grad=False)
    return ModelProfile("Chain", tuple(units), (first, *flows), noise=noise)


def _uneven(
    before: Sequence[float], blocks: Sequence[float], after: Sequence[float]
) -> ModelProfile:
    names = [*[""] * len(before), *(f"h.{at}" for at in range(len(blocks))), *[""] * len(after)]
    return chain([cost * 1e-2 for cost in flat(before, blocks, after)], blocks=names)


# relative seconds as such models have them on a CPU: a large head; early layers, which are large,
# of a residual network; both ends of a U
UNEVEN = {
    "gpt": _uneven([0.1, 0.02], [1.0] * 12, [0.05, 4.0]),
    "resnet": _uneven([2.0], [4.0] * 3 + [2.2] * 4 + [1.4] * 6 + [1.0] * 3, [0.05]),
    "unet": _uneven([1.0], [5.0, 3.0, 2.0, 1.5, 1.5, 2.0, 3.0, 6.0], [0.5]),
}

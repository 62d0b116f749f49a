"""A training step as Megatron-DeepSpeed makes it, on 2 x 2 x 2 ranks; run by test_sharded.py.

Tensor groups share a layer, pipeline groups the layers, data groups the batch; the embedding is the
first stage's and the last's. Against one process that has the whole model and the whole batch.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding

from muster_collectives.runtime.types import Verb
from muster_collectives.torch import stats
from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
WORDS, WIDTH, LENGTH, ROWS = 12, 16, 6, 2
STAGES, PARTS, COPIES = 2, 2, 2  # pipeline, tensor, data
MICRO, STEPS, RATE = 3, 3, 0.5


@dataclass(frozen=True)
class Place:
    """Where this rank stands in each direction, and its group there."""

    stage: int
    part: int
    copy: int
    tensor: Any
    pipeline: Any
    data: Any
    ends: Any  # of the embedding

    @property
    def next(self) -> int:
        """The other stage's rank with the same part and copy."""
        return rank_of(1 - self.stage, self.copy, self.part)


def rank_of(stage: int, copy: int, part: int) -> int:
    return (stage * COPIES + copy) * PARTS + part


def groups_of(world: World) -> Place:
    """All ranks make all groups, in the same order."""
    stage, rest = divmod(world.rank, COPIES * PARTS)
    copy, part = divmod(rest, PARTS)

    def mine(members: list[list[int]]) -> Any:
        made = [dist.new_group(ranks) for ranks in members]
        return next(
            group for group, ranks in zip(made, members, strict=True) if world.rank in ranks
        )

    stages, copies, parts = range(STAGES), range(COPIES), range(PARTS)
    along = [[rank_of(s, c, p) for s in stages] for c in copies for p in parts]
    return Place(
        stage, part, copy,
        tensor=mine([[rank_of(s, c, p) for p in parts] for s in stages for c in copies]),
        pipeline=mine(along),
        data=mine([[rank_of(s, c, p) for c in copies] for s in stages for p in parts]),
        ends=mine(along),  # with two stages the same ranks, as a group of its own
    )  # fmt: skip


class Copied(torch.autograd.Function):
    """To all parts: the gradient is the sum of theirs."""

    @staticmethod
    def forward(context: Any, value: Tensor, group: Any) -> Tensor:
        context.group = group
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total, group=context.group)
        return total, None


class Summed(torch.autograd.Function):
    """From all parts: the gradient is everybody's."""

    @staticmethod
    def forward(context: Any, value: Tensor, group: Any) -> Tensor:
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def weights() -> list[dict[str, Tensor]]:
    """Of both stages, whole."""
    torch.manual_seed(5)
    words = torch.randn(WORDS, WIDTH)
    return [
        {
            "words": words.clone(),
            "into": torch.randn(4 * WIDTH, WIDTH) / 4,
            "bias": torch.randn(4 * WIDTH) / 4,
            "out": torch.randn(WIDTH, 4 * WIDTH) / 8,
        }
        for _ in range(STAGES)
    ]


def block(layer: Any, value: Tensor, group: Any = None) -> Tensor:
    """A layer with a residual; of a part of it where there is a group of the parts."""
    given = Copied.apply(value, group) if group is not None else value
    hidden = torch.tanh(given @ layer["into"].t() + layer["bias"]) @ layer["out"].t()
    return value + (Summed.apply(hidden, group) if group is not None else hidden)


def part_of(layer: dict[str, Tensor], part: int) -> dict[str, Tensor]:
    """The first matrix by rows, the second by columns."""
    return {
        "words": layer["words"], "into": layer["into"].chunk(PARTS)[part],
        "bias": layer["bias"].chunk(PARTS)[part], "out": layer["out"].chunk(PARTS, 1)[part],
    }  # fmt: skip


def batch(step: int, copy: int, micro: int) -> tuple[Tensor, Tensor]:
    seeded = torch.Generator().manual_seed(1000 * step + 10 * copy + micro)
    texts = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=seeded)
    return texts[:, :-1], texts[:, 1:]


def loss_of(value: Tensor, words: Tensor, wanted: Tensor) -> Tensor:
    return cross_entropy((value @ words.t() / 4).flatten(0, 1), wanted.flatten())


def expected() -> tuple[list[float], list[dict[str, Tensor]]]:
    """The losses and weights of one process with everything."""
    layers = weights()
    layers[1]["words"] = layers[0]["words"]  # tied
    leaves = {id(each): each.requires_grad_() for layer in layers for each in layer.values()}
    losses = []
    for step in range(STEPS):
        total = torch.zeros(())
        for copy in range(COPIES):
            for micro in range(MICRO):
                given, wanted = batch(step, copy, micro)
                value = block(layers[1], block(layers[0], embedding(given, layers[0]["words"])))
                total = total + loss_of(value, layers[0]["words"], wanted) / (COPIES * MICRO)
        total.backward()
        with torch.no_grad():  # eight processes: torch.optim alone imports for seconds
            for leaf in leaves.values():
                assert leaf.grad is not None
                leaf.sub_(RATE * leaf.grad)
                leaf.grad = None
        losses.append(total.item())
    return losses, layers


class Stage:
    """One rank's part of the model in one piece of memory, with gradients in another."""

    def __init__(self, place: Place) -> None:
        self.place = place
        shapes = part_of(weights()[place.stage], place.part)
        count = sum(each.numel() for each in shapes.values())
        padded = -(-count // COPIES) * COPIES
        self.values, self.gradients = torch.zeros(padded), torch.zeros(padded)
        self.layer: dict[str, Tensor] = {}
        begin = 0
        for name, value in shapes.items():
            span = slice(begin, begin + value.numel())
            self.values[span] = value.flatten()
            leaf = nn.Parameter(self.values[span].view(value.shape))
            leaf.grad = self.gradients[span].view(value.shape)
            self.layer[name], begin = leaf, span.stop

    def forward(self, step: int, micro: int, incoming: Tensor | None) -> Tensor:
        """What goes to the next stage; of the last the loss."""
        given, wanted = batch(step, self.place.copy, micro)
        value = embedding(given, self.layer["words"]) if incoming is None else incoming
        value = block(self.layer, value, self.place.tensor)
        if self.place.stage == 0:
            return value
        return loss_of(value, self.layer["words"], wanted) / MICRO

    def update(self) -> None:
        """Each copy steps a part of the weights, and gets the others' parts."""
        place = self.place
        dist.all_reduce(self.layer["words"].grad, group=place.ends)
        mine = torch.empty(len(self.values) // COPIES)
        dist.reduce_scatter_tensor(mine, self.gradients, dist.ReduceOp.AVG, group=place.data)
        stepped = self.values.chunk(COPIES)[place.copy] - RATE * mine
        dist.all_gather_into_tensor(self.values, stepped, group=place.data)
        self.gradients.zero_()


def exchange(place: Place, given: Tensor | None, wanted: bool) -> Tensor | None:
    """Sends to and receives from the other stage, both under way at once."""
    ops, got = [], torch.empty(ROWS, LENGTH, WIDTH) if wanted else None
    if given is not None:
        ops.append(dist.P2POp(dist.isend, given, place.next, place.pipeline))
    if got is not None:
        ops.append(dist.P2POp(dist.irecv, got, place.next, place.pipeline))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got


def first_stage(stage: Stage, step: int) -> None:
    """One forward before the others' first backward, then forward and backward in turn."""
    waiting = [stage.forward(step, 0, None)]
    sent = dist.isend(waiting[0].detach(), stage.place.next, stage.place.pipeline)
    for micro in range(1, MICRO):
        waiting.append(stage.forward(step, micro, None))
        gradient = exchange(stage.place, waiting[-1].detach(), True)
        waiting.pop(0).backward(gradient)
    last = torch.empty(ROWS, LENGTH, WIDTH)
    work = dist.irecv(last, stage.place.next, stage.place.pipeline)
    assert sent is not None and work is not None
    work.wait()
    sent.wait()
    waiting.pop().backward(last)


def last_stage(stage: Stage, step: int) -> Tensor:
    """The loss of this copy."""
    total = torch.zeros(())
    incoming = exchange(stage.place, None, True)
    for micro in range(MICRO):
        assert incoming is not None
        given = incoming.requires_grad_()
        loss = stage.forward(step, micro, given)
        loss.backward()
        total += loss.detach()
        incoming = exchange(stage.place, given.grad, micro < MICRO - 1)
    return total


def trains_as_one_process(world: World) -> None:
    place = groups_of(world)
    stage = Stage(place)
    known, layers = expected()
    for step in range(STEPS):
        loss = torch.zeros(())
        if place.stage == 0:
            first_stage(stage, step)
        else:
            loss = last_stage(stage, step)
            dist.all_reduce(loss, dist.ReduceOp.AVG, group=place.data)
        dist.broadcast(loss, rank_of(STAGES - 1, place.copy, place.part), group=place.pipeline)
        stage.update()
        # float32: sums in another order, over three steps; the stated bound is 1e-5 of the loss
        assert abs(loss.item() - known[step]) <= 1e-5 * known[step], (step, loss.item(), known)
    assert known[-1] < known[0]
    for name, value in part_of(layers[place.stage], place.part).items():
        ours = stage.layer[name].detach()  # torch.testing imports for seconds, in each process
        assert torch.allclose(ours, value, rtol=1e-4, atol=1e-5), name
    assert stats(place.tensor).calls(Verb.ALL_REDUCE) >= 2 * MICRO * STEPS
    assert stats(place.data).calls(Verb.REDUCE_SCATTER) == STEPS
    for group in (place.tensor, place.pipeline, place.data, place.ends):
        assert not stats(group).fallback
        dist.destroy_process_group(group)


def tensor_pipeline_and_data_parallel_steps_are_those_of_one_process(world: World) -> None:
    trains_as_one_process(world)


def the_same_between_two_nodes(world: World) -> None:
    """Each stage is a node: the pipeline goes over the wire, tensor groups share memory."""
    os.environ["COLLECTIVES_NODE"] = f"node{world.rank // (COPIES * PARTS)}"
    trains_as_one_process(world)
    del os.environ["COLLECTIVES_NODE"]


CHECKS = (
    tensor_pipeline_and_data_parallel_steps_are_those_of_one_process,
    the_same_between_two_nodes,
)

if __name__ == "__main__":
    main(CHECKS)

"""Two ranks, or one, that take steps of the same model in several ways, in turns; one file for each
row: `contenders.py ROW [ARGUMENT]` prints the seconds of every way and round as JSON on rank 0.
ROUNDS in the environment: how many are timed, 15 if it is not set."""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

import muster_modelparallel as smp
from muster_modelparallel.model.trace import Meta
from muster_modelparallel.run import session as sessions
from muster_modelparallel.run.pipeline.executor import Pipeline
from muster_modelparallel.shape.schedule import one_f_one_b
from muster_modelparallel.shape.topology import GroupKind
from tests.model_parallel.support.ranks import RESULT

VOCABULARY, WIDTH, HEADS, BLOCKS, TOKENS, BATCH, MICROBATCHES = 8000, 128, 4, 12, 64, 32, 8
ROUNDS = int(os.environ.get("ROUNDS", "15"))
Ways = Mapping[str, Callable[[], Any]]


class Block(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, _ = x.shape
        split = self.qkv(self.norm1(x)).view(rows, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind()
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, tokens, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Embedding(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))


class Head(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x))


class GPT(nn.Module):  # type: ignore[misc]
    """The whole, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = Head()

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return loss_of(self.head(x), labels)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def ours(net: nn.Module, *arguments: torch.Tensor) -> Callable[[], None]:
    """A step function of the model that returns a loss."""
    model = smp.DistributedModel(net)

    @smp.step
    def train(*given: torch.Tensor) -> torch.Tensor:
        loss = model(*given)
        model.backward(loss)
        return loss

    return lambda: train(*arguments)


def torch_pipeline(
    net: GPT, ids: torch.Tensor, group: Any, blocks_first: int = BLOCKS // 2
) -> Callable[[], None]:
    """What a user of torch.distributed.pipelining writes: equal blocks, ends with the ends."""
    rank = dist.get_rank()
    layers = (
        [net.embedding, *net.blocks[:blocks_first]]
        if rank == 0
        else [*net.blocks[blocks_first:], net.head]
    )
    rows = BATCH // MICROBATCHES
    wide = torch.zeros(rows, TOKENS, WIDTH)
    stage = PipelineStage(
        nn.Sequential(*layers), rank, 2, torch.device("cpu"),
        input_args=ids[:rows] if rank == 0 else wide.clone().requires_grad_(),
        output_args=wide.clone().requires_grad_()
        if rank == 0
        else torch.zeros(rows, TOKENS, VOCABULARY),
        group=group,
    )  # fmt: skip
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of, scale_grads=False)
    if rank == 0:
        return lambda: schedule.step(ids)
    return lambda: schedule.step(target=ids, losses=[], return_outputs=False)


def begin(**parameters: object) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    smp.init({"microbatches": MICROBATCHES, **parameters})
    torch.manual_seed(0)


def data() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, TOKENS))


def row_pipeline() -> Ways:
    begin(pipeline_parallel_degree=2)
    net, ids = GPT(), data()
    gloo = dist.new_group([0, 1], backend="gloo")
    return {
        "torch, equal blocks, gloo": torch_pipeline(copy.deepcopy(net), ids, gloo),
        "torch, equal blocks, muster": torch_pipeline(copy.deepcopy(net), ids, None),
        "ours": ours(net, ids, ids),
    }


def row_deepspeed() -> Ways:
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "2"}
    begin(pipeline_parallel_degree=2, ddp_dist_backend="gloo")
    import deepspeed
    from deepspeed.pipe import PipelineModule

    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    net, ids = GPT(), data()
    other = copy.deepcopy(net)
    layers = [other.embedding, *other.blocks, other.head]
    engine, *_ = deepspeed.initialize(
        model=PipelineModule(
            layers=layers, num_stages=2, loss_fn=loss_of, partition_method="parameters"
        ),
        model_parameters=list(other.parameters()),
        config={
            "train_batch_size": BATCH,
            "train_micro_batch_size_per_gpu": BATCH // MICROBATCHES,
            "gradient_accumulation_steps": MICROBATCHES,
            "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
            "steps_per_print": 10**9, "communication_data_type": "fp32",
        },
    )  # fmt: skip

    def batches() -> Any:
        while True:
            yield from ((piece, piece) for piece in ids.chunk(MICROBATCHES))

    coming = batches()
    step = ours(net, ids, ids)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1e-3))

    def whole() -> None:
        optimizer.zero_grad()
        step()
        optimizer.step()

    return {"DeepSpeed": lambda: engine.train_batch(coming), "ours": whole}


def row_ddp() -> Ways:
    begin(ddp=True, microbatches=1)
    net, ids = GPT(), data()
    other = nn.parallel.DistributedDataParallel(copy.deepcopy(net))

    def plain() -> None:
        other.zero_grad()
        other(ids, ids).backward()

    step = ours(net, ids, ids)

    def whole() -> None:
        net.zero_grad()
        step()

    return {"DDP": plain, "ours": whole}


def row_sharded() -> Ways:
    """Every way with AdamW."""
    begin(
        ddp=True, microbatches=1, sharded_data_parallel_degree=2, sdp_gradient_clipping=0,
        sdp_param_persistence_threshold=1000,
    )  # fmt: skip
    net, ids = GPT(), data()
    groups = {
        "fully_shard, gloo": dist.new_group([0, 1], backend="gloo"),
        "fully_shard, muster": dist.new_group([0, 1]),
    }
    ways = {name: by_hand(copy.deepcopy(net), ids, group) for name, group in groups.items()}
    step = ours(net, ids, ids)
    model: Any = sessions.current().model
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))

    def whole() -> None:
        optimizer.zero_grad()
        step()
        optimizer.step()

    return {**ways, "ours": whole}


def by_hand(net: GPT, ids: torch.Tensor, group: Any) -> Callable[[], None]:
    """What a user of fully_shard writes."""
    mesh = DeviceMesh.from_group(group, "cpu")
    for one in (net.embedding, *net.blocks, net.head):
        fully_shard(one, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        net(ids, ids).backward()
        optimizer.step()

    return step


def row_checkpoint() -> Ways:
    """The call alone, of 100 MB: what goes on behind it is waited for without being timed."""
    begin(ddp=True, microbatches=1, sharded_data_parallel_degree=2)
    net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])
    step = ours(nn.Sequential(net, Mean()), torch.randn(8, 1024))
    model: Any = sessions.current().model
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))
    step()
    optimizer.step()
    folder = smp.allgather(os.path.dirname(os.environ[RESULT]), smp.WORLD)[0]  # is removed

    def save(in_background: bool) -> Callable[[], None]:
        smp.save_checkpoint(
            folder, "one", True, model, optimizer, in_pieces=True, in_background=in_background
        )
        return smp.wait_for_checkpoint

    return {"at once": lambda: save(False), "ours": lambda: save(True)}


class Mean(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


class Wide(nn.Module):  # type: ignore[misc]
    """As long as a step of 20 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def row_alone() -> Ways:
    begin(microbatches=1)
    net, x = Wide(), torch.randn(160, 512)
    other = copy.deepcopy(net)

    def plain() -> None:
        other(x).backward()

    return {"plain loop": plain, "ours": ours(net, x)}


class Small(nn.Module):  # type: ignore[misc]
    """Next to no work: what is left is the engine's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def row_microbatches() -> Ways:
    begin()
    net, x = Small(), torch.randn(16, 16)
    other = copy.deepcopy(net)

    def plain() -> None:
        for rows in x.chunk(MICROBATCHES):
            (other(rows) / MICROBATCHES).backward()

    return {"plain loop": plain, "ours": ours(net, x)}


def row_microbatch() -> Ways:
    begin(pipeline_parallel_degree=2)
    net, x = Small(), torch.randn(16, 16)
    rank = dist.get_rank()
    mine = copy.deepcopy(net.layers)[:2] if rank == 0 else copy.deepcopy(net.layers)[2:]
    wide = torch.zeros(2, 16)
    stage = PipelineStage(
        mine, rank, 2, torch.device("cpu"),
        input_args=wide if rank == 0 else wide.clone().requires_grad_(),
        output_args=wide.clone().requires_grad_(),
    )  # fmt: skip
    schedule = Schedule1F1B(
        stage, MICROBATCHES, loss_fn=lambda out, _: out.square().mean(), scale_grads=False
    )

    def peer() -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x, losses=[], return_outputs=False)

    return {"torch": peer, "ours": ours(net, x)}


class Passing:
    """A stage that computes nothing: what it got goes on, in both directions."""

    def __init__(self, size: int, is_last: bool) -> None:
        self._data = torch.zeros(size // 4, requires_grad=True)
        self._meta = Meta((size // 4,), (1,), torch.float32, torch.device("cpu"), True)
        self._is_last = is_last
        self._ends: dict[int, torch.Tensor] = {}

    def receives(self, microbatch: int) -> list[Meta]:
        return [self._meta]

    def sends(self, microbatch: int) -> list[Meta]:
        return [self._meta]

    def forward(self, microbatch: int, received: Any) -> Any:
        (here,) = received or (self._data,)
        if not self._is_last:
            return (here.view_as(here),)
        self._ends[microbatch] = here.view_as(here)
        return ()

    def roots(self, microbatch: int) -> Any:
        end = self._ends.pop(microbatch)
        return [end], [end.detach()]

    def backward(self, microbatch: int, ends: Any, seeds: Any) -> None:
        self._data.grad = None
        torch.autograd.backward(ends, seeds)

    def is_known(self, microbatch: int) -> bool:
        return True

    def around(self, microbatch: int, forward: Callable[[], None]) -> None:
        forward()

    def soon(self, microbatch: int) -> None:
        pass

    def done(self, microbatch: int) -> None:
        pass


def row_relay(size: str) -> Ways:
    begin(pipeline_parallel_degree=2)
    mesh = sessions.current().mesh
    mine = Passing(int(size), is_last=mesh.rank == 1)
    schedule = one_f_one_b(2, MICROBATCHES)
    groups = {"gloo": dist.new_group([0, 1], backend="gloo"), "ours": mesh.group(GroupKind.PP)}
    pipelines = {name: Pipeline(group, mesh.device) for name, group in groups.items()}
    return {
        name: functools.partial(pipeline.run, schedule, {mesh.rank: mine})
        for name, pipeline in pipelines.items()
    }


def row_simulated() -> Ways:
    begin(pipeline_parallel_degree=2)
    ids = data()
    return {"ours": ours(GPT(), ids, ids)}


ROWS: Mapping[str, Callable[..., Ways]] = {
    "pipeline": row_pipeline, "deepspeed": row_deepspeed, "ddp": row_ddp, "sharded": row_sharded,
    "checkpoint": row_checkpoint,
    "alone": row_alone,
    "microbatches": row_microbatches, "microbatch": row_microbatch,
    "relay": row_relay, "simulated": row_simulated,
}  # fmt: skip


def main(row: str, *arguments: str) -> None:
    ways = ROWS[row](*arguments)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 3):
        for name, step in ways.items():
            if dist.get_world_size() > 1:
                dist.barrier()
            began = time.perf_counter()
            end = step()
            if dist.get_world_size() > 1:
                dist.barrier()
            if turn >= 3:
                times[name].append(time.perf_counter() - began)
            if callable(end):
                end()
    model: Any = sessions.current().model
    if row == "simulated":
        times["simulated"] = [model.stages.planned_step_s] * ROUNDS
    if sessions.current().mesh.rank == 0:
        print("TIMES " + json.dumps(times), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)

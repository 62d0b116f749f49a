"""DeepSpeed 0.19 on CPU: what each ZeRO stage comes to on the backend of the job.

Over gloo the losses are left in the folder REFERENCE; over ours they must be those, and have gone
through the core.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from muster_collectives.runtime.types import Verb
from muster_collectives.torch import MusterProcessGroup, stats
from tests.collectives.support.torch_ranks import World, main
from tests.support.ports import free_port

warnings.filterwarnings("ignore")
STEPS = 4
BUCKET = 1000  # elements: several buckets for this model


def network() -> nn.Module:
    torch.manual_seed(21)
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 4))


def losses_of(world: World, stage: int) -> list[float]:
    import deepspeed

    zero = {"stage": stage, "reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET}
    adam = {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}
    model = network()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": 4, "optimizer": adam, "zero_optimization": zero,
        },
    )  # fmt: skip
    losses = []
    for step in range(STEPS):
        seeded = torch.Generator().manual_seed(step * 100 + world.rank)
        given = torch.randn(4, 12, generator=seeded)
        wanted = torch.randn(4, 4, generator=seeded)
        loss = nn.functional.mse_loss(engine(given), wanted)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def calls(verbs: tuple[Verb, ...]) -> int:
    """Of all groups: DeepSpeed makes some of its own."""
    groups: Any = dist.distributed_c10d._world.pg_map
    return sum(stats(group).calls(verb) for group in groups for verb in verbs)


def trains(world: World, stage: int, *verbs: Verb) -> None:
    known = Path(os.environ["REFERENCE"]) / f"{stage}-{world.rank}.json"
    if world.backend == "gloo":
        known.write_text(json.dumps(losses_of(world, stage)))
        return
    before = calls(verbs)
    ours, theirs = losses_of(world, stage), json.loads(known.read_text())
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-6)
    assert ours[-1] != ours[0]
    assert calls(verbs) >= before + STEPS, "the sums did not go through the core"


def zero_1_trains_as_over_gloo(world: World) -> None:
    trains(world, 1, Verb.ALL_REDUCE, Verb.REDUCE, Verb.REDUCE_SCATTER)


def zero_2_trains_as_over_gloo(world: World) -> None:
    trains(world, 2, Verb.ALL_REDUCE, Verb.REDUCE, Verb.REDUCE_SCATTER)


def zero_3_trains_as_over_gloo(world: World) -> None:
    trains(world, 3, Verb.REDUCE_SCATTER)


def deepspeed_itself_makes_our_group_by_both_names(world: World) -> None:
    """As a script does that knows DeepSpeed alone: by the variables of its launcher."""
    import deepspeed

    if world.backend == "gloo":
        return  # what it would be is known already
    known = json.loads((Path(os.environ["REFERENCE"]) / f"2-{world.rank}.json").read_text())
    verbs = (Verb.ALL_REDUCE, Verb.REDUCE, Verb.REDUCE_SCATTER)
    for name in ("smddp", "muster"):
        deepspeed.comm.destroy_process_group()
        assert not dist.is_initialized()
        if world.rank == 0:
            world.store.set(f"port {name}", str(free_port()))
        os.environ["MASTER_PORT"] = world.store.get(f"port {name}").decode()
        deepspeed.init_distributed(dist_backend=name)
        assert isinstance(dist.group.WORLD, MusterProcessGroup)
        assert dist.get_backend() == name and dist.get_world_size() == world.size
        ours = losses_of(world, 2)
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(known), rtol=1e-5, atol=1e-6)
        assert calls(verbs) >= STEPS, "the sums did not go through the core"


CHECKS = (
    zero_1_trains_as_over_gloo,
    zero_2_trains_as_over_gloo,
    zero_3_trains_as_over_gloo,
    deepspeed_itself_makes_our_group_by_both_names,
)

if __name__ == "__main__":
    main(CHECKS)

"""The training script of these jobs: every rank says who it is, and adds 1 to a sum over all.

With RANK it adds through torch.distributed on gloo, or through the parameter servers where it has
some, or through a step of smdistributed.modelparallel where the job has its parameters; where the
option is mpi, or under an mpirun that gives no RANK (the SDK's own), through mpi4py; otherwise it
is alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def summed() -> tuple[int, int, int]:
    """This rank, the number of ranks, and the sum."""
    if "PARAMETER_SERVER_ADDRESSES" in os.environ:
        return served()
    if "SM_HP_MP_PARAMETERS" in os.environ:
        return stepped()
    asked = json.loads(os.environ.get("SM_FRAMEWORK_PARAMS", "{}"))
    if "RANK" in os.environ and not asked.get("sagemaker_mpi_enabled"):
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        one = torch.ones(1)
        dist.all_reduce(one)
        rank, world = dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        return rank, world, int(one)
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        from mpi4py import MPI

        rank, world = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        if "RANK" in os.environ:
            assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), str(world))
        return rank, world, MPI.COMM_WORLD.allreduce(1)
    return 0, 1, 1


def served() -> tuple[int, int, int]:
    """The same by one step of gradient 1 on every rank, of which the servers take the mean."""
    import torch

    from muster_parameter_server import ServerOptimizer, sgd

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = ServerOptimizer([weight], sgd(lr=1.0))
    (weight * -world).sum().backward()
    optimizer.step()
    optimizer.close()
    return rank, world, int(weight)


def stepped() -> tuple[int, int, int]:
    """The same by a step in which only the first pipeline has a gradient, averaged over them all;
    each stage of a pipeline has the same one."""
    import torch

    import smdistributed.modelparallel.torch as smp

    smp.init()
    asked = json.loads(os.environ["SM_HP_MP_PARAMETERS"])
    assert smp.state.cfg.microbatches == asked.get("microbatches", 1), asked
    assert smp.pp_size() == asked.get("partitions", 1), asked
    layers = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    for layer in layers:
        torch.nn.init.ones_(layer.weight)
    model = smp.DistributedModel(torch.nn.Sequential(*layers))

    @smp.step
    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = model(batch).mean()
        model.backward(loss)
        return loss

    mine = float(smp.size() * smp.dp_size() if smp.dp_rank() == 0 else 0)
    step(torch.full((4, 1), mine)).reduce_mean()
    (gradient,) = {int(weight.grad) for weight in model.local_parameters()}
    return smp.rank(), smp.size(), gradient


def options() -> dict[str, str]:
    """The arguments `--key value`."""
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    return {name: value for name, value in given.items() if name != "--mp_parameters"}


def main() -> None:
    rank, world, total = summed()
    host = os.environ.get("SM_CURRENT_HOST", "")
    hosts = json.loads(os.environ.get("SM_HOSTS", "[]"))
    place = hosts.index(host) if host in hosts else -1
    channel = os.environ.get("SM_CHANNEL_TRAIN", "")
    said = {
        "host": host,
        "rank": rank,
        "world": world,
        "sum": total,
        "options": options(),
        "greeting": os.environ.get("GREETING", ""),
        "data": sorted(os.listdir(channel)) if channel else [],
    }
    folder = Path(os.environ.get("SM_OUTPUT_DATA_DIR", "/opt/ml/output/data"))
    (folder / f"rank-{host}-{rank}.json").write_text(json.dumps(said))
    if rank == 0 and place <= 0:
        Path(os.environ.get("SM_MODEL_DIR", "/opt/ml/model"), "model.txt").write_text("trained")
    print(f"rank {rank} of {world} on {host}: sum {total}", flush=True)
    if options().get("--fail") == str(place):
        raise ValueError(f"bad batch on host {place}")


if __name__ == "__main__":
    main()

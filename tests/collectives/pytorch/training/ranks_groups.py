"""Tensor, pipeline and data groups over the same ranks, as Megatron makes them; after
ranks_sharded.py in the same job of four; run by test_sharded.py."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn

from tests.collectives.pytorch.training import ranks_sharded
from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")


def tensor_pipeline_and_data_groups_train_one_model(world: World) -> None:
    """2 x tensor, 2 x pipeline (4 ranks): the losses and gradients are those of one process."""
    tensor, stages = 2, world.size // 2
    place, stage = world.rank % tensor, world.rank // tensor
    tensor_group = pipeline_group = None
    for each in range(stages):
        ranks = range(each * tensor, (each + 1) * tensor)
        group = dist.new_group(ranks)
        tensor_group = group if world.rank in ranks else tensor_group
    for each in range(tensor):
        ranks = range(each, world.size, tensor)
        group = dist.new_group(ranks)
        pipeline_group = group if world.rank in ranks else pipeline_group
    data_group = dist.new_group(range(world.size))  # all replicas of the norm
    torch.manual_seed(11)
    layers = [nn.Linear(8, 8, bias=False) for _ in range(stages)]
    given = torch.randn(6, 8)
    whole = given
    for layer in layers:
        whole = torch.tanh(layer(whole))
    whole.sum().backward()
    # this rank's rows of its stage's weight
    mine = layers[stage].weight.detach().chunk(tensor)[place].clone().requires_grad_()
    if stage == 0:
        incoming = given.clone()
    else:
        incoming = torch.empty(6, 8)
        dist.recv(incoming, world.rank - tensor, group=pipeline_group)
    incoming.requires_grad_()
    part = torch.tanh(incoming @ mine.t())
    parts = [torch.empty_like(part) for _ in range(tensor)]
    dist.all_gather(parts, part.detach(), group=tensor_group)
    out = torch.cat(parts, 1)
    if stage < stages - 1:
        sent = dist.isend(out, world.rank + tensor, group=pipeline_group)
        back = torch.empty(6, 8)
        request = dist.irecv(back, world.rank + tensor, group=pipeline_group)
        assert request is not None
        request.wait()
        assert sent is not None
        sent.wait()
    else:
        torch.testing.assert_close(out, whole.detach())
        back = torch.ones(6, 8)
    part.backward(back.chunk(tensor, 1)[place])
    gradient = incoming.grad
    assert gradient is not None
    dist.all_reduce(gradient, group=tensor_group)
    if stage > 0:
        dist.send(gradient, world.rank - tensor, group=pipeline_group)
    expected = layers[stage].weight.grad
    assert expected is not None
    torch.testing.assert_close(mine.grad, expected.chunk(tensor)[place])
    # the data group's mean of what all have in common
    norm = mine.grad.pow(2).sum()  # type: ignore[union-attr]
    dist.all_reduce(norm, group=data_group)
    total = torch.stack([layer.weight.grad.pow(2).sum() for layer in layers]).sum()  # type: ignore[union-attr]
    torch.testing.assert_close(norm, total)


def meshes_have_groups_in_every_direction(world: World) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, world.size // 2), mesh_dim_names=("data", "tensor"))
    whole = torch.arange(float(world.size * 4)).view(4, world.size)
    split = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert torch.equal(split.full_tensor(), whole)
    turned = split.redistribute(mesh, [Replicate(), Shard(0)])
    assert torch.equal(turned.full_tensor(), whole)
    one = torch.ones(1)
    dist.all_reduce(one, group=mesh.get_group("data"))
    assert one.item() == 2


def hybrid_sharding_works_over_two_directions(world: World) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, world.size // 2), mesh_dim_names=("copies", "shards"))
    torch.manual_seed(4)
    model = nn.Linear(8, 8)
    plain = nn.parallel.DistributedDataParallel(nn.Linear(8, 8), process_group=world.gloo)
    with torch.no_grad():
        for a, b in zip(plain.parameters(), model.parameters(), strict=True):
            a.copy_(b)
    fully_shard(model, mesh=mesh)
    given = torch.randn(3, 8, generator=torch.Generator().manual_seed(world.rank))
    model(given).sum().backward()
    plain(given).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)  # type: ignore[union-attr]


CHECKS = (
    tensor_pipeline_and_data_groups_train_one_model,
    meshes_have_groups_in_every_direction,
    hybrid_sharding_works_over_two_directions,
)

if __name__ == "__main__":
    main((*ranks_sharded.CHECKS, *CHECKS))

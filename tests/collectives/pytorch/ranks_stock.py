"""Groups whose CUDA tensors are torch's own backend's, with gloo in NCCL's place; run by
test_starts.py. Tensors of "meta" stand for those on a device: that they are taken is proof that
they came to torch's own group."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.torch import MusterProcessGroup, stats
from muster_collectives.torch.works.base import MusterWork
from tests.collectives.pytorch import ranks_again, ranks_later, ranks_starts
from tests.collectives.pytorch.ranks_starts import started, verbs_work
from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SPELLINGS = ("cpu:muster,cuda:gloo", "cuda:gloo,cpu:muster")
_numbers = itertools.count()


@contextmanager
def made(world: World, backend: str = "", **environ: str) -> Iterator[None]:
    """The world's group in a store of its own, for gloo takes old addresses for new ones."""
    whole = world.store
    world.store = dist.PrefixStore(f"stock {next(_numbers)}", whole)
    try:
        with started(world, backend, **environ):
            yield
    finally:
        world.store = whole


def is_summed_by_torch() -> bool:
    """A tensor without values, which torch's own groups take and ours do not."""
    try:
        work = dist.all_reduce(torch.ones(1, device="meta"), async_op=True)
    except TypeError as error:
        assert "has cpu and cuda tensors" in str(error)
        return False
    assert work is None or not isinstance(work, MusterWork)
    return True


def a_device_with_a_backend_of_its_own_has_torchs(world: World) -> None:
    for spelling in SPELLINGS:
        with made(world, spelling):
            for group in (dist.group.WORLD, dist.new_group()):
                assert isinstance(group, MusterProcessGroup), spelling
                assert group._device_types == [CPU, CUDA]
                assert group._get_backend(CPU) is group
                assert isinstance(group._get_backend(CUDA), dist.ProcessGroupGloo)
                assert group.get_group_store() is not None
                stock: Any = group._state.device.stock
                assert type(stock) is dist.ProcessGroup
                assert stock.group_name == group.group_name
            assert dist.get_backend() == spelling
            verbs_work(world.size, world.rank)
            assert stats().transport == "native" and not stats().fallback


def a_tensor_on_a_device_goes_there_as_it_comes(world: World) -> None:
    for spelling in SPELLINGS:
        with made(world, spelling):
            assert is_summed_by_torch()
            assert stats().device == {"allreduce": 1}
    with made(world):
        assert not is_summed_by_torch()


def the_options_of_the_device_path_come_first(world: World) -> None:
    with made(world, SPELLINGS[0], COLLECTIVES_DEVICE_ALL_REDUCE="hierarchical"):
        assert not is_summed_by_torch()
        assert isinstance(dist.group.WORLD._get_backend(CUDA), dist.ProcessGroupGloo)


def parts_split_from_a_stock_group_know_their_ranks(world: World) -> None:
    """However often, and though it is not the first group with gloo of the process."""
    everyone = list(range(world.size))
    ours = everyone[:1] if world.rank == 0 else everyone[1:]
    with made(world, SPELLINGS[0]):
        whole: Any = dist.group.WORLD
        for turn in range(3):
            part = whole.split_group(ours[::-1], None, None, f"part {turn} {ours[0]}")
            inner = part.split_group([part.rank()], None, None, f"own {turn} {world.rank}")
            for group, ranks in ((whole, everyone), (part, ours), (inner, [world.rank])):
                options = group._get_backend(CUDA).options
                assert options.global_ranks_in_group == ranks, ranks
                assert group.rank() == ranks.index(world.rank)
                total = torch.ones(1)
                group.allreduce([total]).wait()
                assert total.item() == len(ranks)
            for group in (inner, part):
                group.shutdown()
        for ranks, devices in (([world.size], None), ([-1], None), ([0], [CPU])):
            try:
                whole.split_group(ranks, None, None, "none", None, devices)
                raise AssertionError(f"{ranks} of {devices} were split from {world.size} ranks")
            except (RuntimeError, ValueError) as error:
                assert "use new_group" in str(error) or "are not ranks" in str(error), error


def a_backend_that_torch_lacks_is_an_error_that_names_the_fix(world: World) -> None:
    if dist.is_nccl_available():
        return
    try:
        with made(world, "cpu:muster,cuda:nccl"):
            raise AssertionError("a group with NCCL was made without it")
    except ValueError as error:
        assert "Fix: name cuda before cpu, or install a torch that has nccl" in str(error)


CHECKS = (
    a_device_with_a_backend_of_its_own_has_torchs,
    a_tensor_on_a_device_goes_there_as_it_comes,
    the_options_of_the_device_path_come_first,
    parts_split_from_a_stock_group_know_their_ranks,
    a_backend_that_torch_lacks_is_an_error_that_names_the_fix,
)

if __name__ == "__main__":
    earlier = (*ranks_again.CHECKS, *ranks_later.CHECKS, *ranks_starts.CHECKS)
    main((*earlier, *CHECKS), start=False)

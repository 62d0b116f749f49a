"""DDP's gradient buckets in registered memory: the ranks of a node reduce straight out of them.

    model = DistributedDataParallel(module, gradient_as_bucket_view=True)
    model.register_comm_hook(RegisteredBuckets(), registered_hook)

With gradient_as_bucket_view gradients are written, reduced and read in one place: no copy at all.
"""

# DDP compares a hook's annotations, so they must not be text: no `from __future__` here.
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from muster_collectives.binding.memory import Region
from muster_collectives.torch import memory
from muster_collectives.torch.hooks.average import average, group_or_world

# DDP cuts its buckets anew after the first step
_SETTLED_AFTER = 1


class RegisteredBuckets:
    """What registered_hook keeps. `group`: None for the world; of another backend than ours, the
    hook averages as usual. `limit`: buckets that are registered at most (the core has room for 64).

    A bucket is registered in the second step, when DDP's buckets are final; all ranks reach that
    step together.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        limit: int = 48,
        least_bytes: int = memory.LEAST_BYTES,
    ) -> None:
        self.group = group_or_world(group)
        self.step = 0
        self.regions: dict[int, Region | None] = {}  # by bucket; None: refused on all ranks
        self._limit, self._least_bytes = limit, least_bytes

    @property
    def registered(self) -> int:
        """Buckets that lie in registered memory."""
        return sum(region is not None for region in self.regions.values())

    def settle(self, bucket: dist.GradBucket) -> None:
        """Registers the bucket where that is due. Collective."""
        buffer, index = bucket.buffer(), bucket.index()
        due = self.step >= _SETTLED_AFTER and index not in self.regions
        is_plain = buffer.device.type == "cpu" and buffer.layout is torch.strided
        if due and is_plain and buffer.nbytes >= self._least_bytes:
            room = len(self.regions) < self._limit
            self.regions[index] = memory.adopt(self.group, buffer) if room else None
        if bucket.is_last():
            self.step += 1


def registered_hook(state: RegisteredBuckets, bucket: dist.GradBucket) -> Future[Tensor]:
    """Averages the bucket in place; see RegisteredBuckets."""
    state.settle(bucket)
    return average(state.group, bucket.buffer())

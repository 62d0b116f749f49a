"""The older model wrapper."""

from muster_collectives.torch.legacy_parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel"]

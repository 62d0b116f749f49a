"""The older model wrapper."""

from muster_collectives.torch.legacy import DistributedDataParallel

__all__ = ["DistributedDataParallel"]

"""The older model wrapper, under its longer name."""

from muster_collectives.torch.legacy import DistributedDataParallel

__all__ = ["DistributedDataParallel"]

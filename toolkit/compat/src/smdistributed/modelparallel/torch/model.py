"""The model wrapper, under its longer name."""

from muster_modelparallel.wrap.model import DistributedModel

__all__ = ["DistributedModel"]

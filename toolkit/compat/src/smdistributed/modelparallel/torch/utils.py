"""What scripts print with."""

from muster_modelparallel.run.state import rmsg

__all__ = ["rmsg"]

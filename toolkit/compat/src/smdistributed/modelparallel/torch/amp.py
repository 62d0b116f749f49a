"""Mixed precision."""

from muster_modelparallel.wrap.grad_scaler import GradScaler

__all__ = ["GradScaler"]

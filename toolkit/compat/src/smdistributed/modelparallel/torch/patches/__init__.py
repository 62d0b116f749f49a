"""`checkpoint`: activation checkpointing of a call."""

from smdistributed.modelparallel.torch.patches import checkpoint

__all__ = ["checkpoint"]

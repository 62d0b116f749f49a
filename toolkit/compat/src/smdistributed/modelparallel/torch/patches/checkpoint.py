"""Activation checkpointing of a call."""

from muster_modelparallel.wrap.activations import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]

"""Importing this makes the backends "smddp" and "muster" of torch.distributed known."""

from muster_collectives.torch import register

register()

__all__ = ["register"]

"""Optimizers that scripts use in place of apex's."""

from muster_modelparallel.wrap.layerwise import FusedLAMB, FusedNovoGrad

FusedLamb = FusedLAMB

__all__ = ["FusedLAMB", "FusedLamb", "FusedNovoGrad"]

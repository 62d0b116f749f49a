"""Comparing models: can be imported; using it raises NotBuiltError."""

from muster_modelparallel.wrap.unbuilt import dump_model, verify

__all__ = ["dump_model", "verify"]

"""The names of the smdistributed data parallel library, over `muster_collectives`."""

from smdistributed.dataparallel.version import __version__

__all__ = ["__version__"]

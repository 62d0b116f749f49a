"""The names of the smdistributed model parallel library, over `muster_modelparallel`."""

from smdistributed.modelparallel.version import __version__

__all__ = ["__version__"]

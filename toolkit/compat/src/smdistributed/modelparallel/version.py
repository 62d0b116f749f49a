"""The version whose API this is, and muster's own: scripts compare the first part."""

from muster_modelparallel.version import __version__ as _muster

__version__ = f"1.15.0+muster.{_muster}"

"""Collective operations between the processes of a training job.

    import muster_collectives.torch          # the backend "muster" (alias "smddp") of torch
    from muster_collectives.core import init  # without torch: the standard library alone

Importing this package does nothing; `muster_collectives.torch` registers its backend.
"""

from __future__ import annotations

from muster_collectives.version import __version__

__all__ = ["__version__"]

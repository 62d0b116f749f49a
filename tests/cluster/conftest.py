"""Hosts in namespaces."""

from tests.support.mpi import mpi, open_mpi

__all__ = ["mpi", "open_mpi"]

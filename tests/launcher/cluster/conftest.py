"""Hosts in namespaces, and in containers."""

from tests.launcher.support.local.local_docker import (
    base,
    engine,
    home,
    nobodys_home,
    socket,
    start,
)
from tests.support.mpi import mpi, open_mpi

__all__ = ["base", "engine", "home", "mpi", "nobodys_home", "open_mpi", "socket", "start"]

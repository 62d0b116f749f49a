"""Real processes on one machine; every job is checked for survivors afterwards."""

from tests.launcher.support.fixtures import cluster
from tests.launcher.support.local.local_runs import start
from tests.support.mpi import mpi, open_mpi

__all__ = ["cluster", "mpi", "open_mpi", "start"]

"""What this machine has to start ranks with, as the planners are given it."""

from __future__ import annotations

from muster.types.values import NamedTuple

MODULES = ("tensorflow", "mxnet", "torch", "muster_parameter_server")


class Frameworks(NamedTuple):
    """Of MODULES, in their order: what is `installed`, what the entry script imports."""

    installed: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()


class Tools(NamedTuple):
    """The programs of this machine that start ranks.

    `torchrun`: its command, () for torch's module under the job's own Python.
    `neuron_parallel_compile`, `mpirun`: their paths, "" when they were not found. `mpi_daemon`:
    that of Open MPI's launch daemon beside that mpirun, of the same version. `frameworks`: for the
    options that need them.
    """

    torchrun: tuple[str, ...] = ()
    neuron_parallel_compile: str = ""
    mpirun: str = ""
    mpi_daemon: str = ""
    frameworks: Frameworks = Frameworks()

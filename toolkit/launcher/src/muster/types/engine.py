"""What a host knows of itself from whatever started it: SageMaker, Slurm, Kubernetes, a list."""

from __future__ import annotations

from collections.abc import Mapping

from muster.types.values import NamedTuple


class Engine(NamedTuple):
    """One host of a job as its engine describes it.

    Host `host_index` of `host_count`; the leader is the first. `names`: of all hosts, () where the
    engine gives none. `addresses`: host index -> address, of those that are known. `leader`: the
    leader's name or address where that is all that is known, "" for none. `slots`: a hint of
    how many ranks a host holds. `job`: a name that all hosts share, "" for none. `attempt`: 1 for
    the first. `deadline_s`: when the engine ends the job, as a time of the wall clock. `stop_s`:
    from the engine's stop signal to its SIGKILL, less a reserve. `signals_all`: that signal reaches
    every process of a host, and not `train` alone. `secret_file`: where the job's
    secret is kept, "" for a variable. `logs`: patterns of files that it writes beside the script.
    `origins`: what was understood -> the variable or file.
    """

    name: str
    host_index: int
    host_count: int
    names: tuple[str, ...] = ()
    addresses: Mapping[int, str] = {}
    leader: str = ""
    slots: int | None = None
    job: str = ""
    attempt: int | None = None
    deadline_s: float | None = None
    stop_s: float | None = None
    signals_all: bool = False
    secret_file: str = ""
    logs: tuple[str, ...] = ()
    origins: Mapping[str, str] = {}

    @property
    def nameless(self) -> bool:
        """Whether hosts cannot prove by their names that they belong to the job."""
        return self.host_count > 1 and not self.names

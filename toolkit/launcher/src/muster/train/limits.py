"""Whether this host's limits leave room for the job, checked before they are hit (F62)."""

from __future__ import annotations

import os

from muster.types.errors import ConfigError

AT_LEAST = 20  # for a job of one rank
PER_RANK = 6  # its channel, its handle, two pipes and two files
FOR_A_MOMENT = 8  # a launcher, and what is open for a moment only


def check_open_files(ranks: int = 0, hosts: int = 1) -> None:
    """Before anything is open; before the join with the number of `hosts` on the leader, which
    holds a connection to each; and with the number of `ranks` before they are started here.

    Raises ConfigError with the limit and the need.
    """
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    open_now = len(os.listdir("/proc/self/fd"))
    others = hosts - 1
    needed = max(AT_LEAST, open_now + others + PER_RANK * ranks + FOR_A_MOMENT)
    if limit < needed:
        what = "any job needs at least"
        if ranks:
            what = f"{ranks} rank(s) on this host need"
        elif others:
            what = f"the leader of {hosts} hosts needs"
        raise ConfigError.of(
            "ulimit -n",
            f"the limit of open files is {limit}; {what} {needed}",
            "raise it: docker run --ulimit nofile=65536, or `ulimit -n 65536` before `train`",
        )

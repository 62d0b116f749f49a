"""Which backend makes the hosts of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.arguments import UsageError
from muster.local.backends.base import Backend
from muster.local.preparation import needs_hosts_apart
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request

NAMES = ("netns", "process", "docker")


def named(name: str) -> type[Backend]:
    """The backend of that name. Each is imported only where it is used."""
    if name == "docker":
        from muster.local.backends.docker.backend import Docker

        return Docker
    if name == "netns":
        from muster.local.backends.netns.backend import Netns

        return Netns
    from muster.local.backends.process.backend import Process

    return Process


def choose(
    request: Request, folder: RunFolder, keys: Mapping[str, str], say: Callable[[str], None]
) -> Backend:
    """The backend that was asked for, else namespaces where a trial shows that they work.

    `keys` switch the distribution on. Raises UsageError where it cannot hold the job.
    """
    apart = "" if request.hosts == 1 else needs_hosts_apart(request, keys)
    if request.isolation:
        backend = named(request.isolation)(request, folder)
        if request.internet and not backend.is_offline:
            raise UsageError(
                "--internet is for --isolation netns: other hosts have a way out already",
                "leave out --internet",
            )
        backend.refuses(apart, say)
        return backend
    from muster.local.backends.netns.backend import Netns

    isolated = Netns(request, folder)
    reason = isolated.missing()
    if not reason:
        return isolated
    if apart:
        raise UsageError(f"{apart}, and there are no namespaces here: {reason}", "use --hosts 1")
    say(f"muster local: no namespaces here ({reason}): hosts are plain processes")
    return named("process")(request, folder)

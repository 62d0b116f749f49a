"""Which backend makes the hosts of a run."""

from __future__ import annotations

from collections.abc import Callable

from muster.arguments import UsageError
from muster.local.backends.base import Backend
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request


def named(name: str) -> Backend:
    """The backend of that name. Each is imported only where it is used."""
    if name == "docker":
        from muster.local.backends.docker.backend import Docker

        return Docker()
    if name == "netns":
        from muster.local.backends.netns.backend import Netns

        return Netns()
    from muster.local.backends.process.backend import Process

    return Process()


def choose(request: Request, folder: RunFolder, apart: str, say: Callable[[str], None]) -> Backend:
    """The backend that was asked for, else namespaces where a trial shows that they work.

    `apart`: as in `Backend.refuses`. Raises UsageError where it cannot hold the job.
    """
    if request.isolation:
        backend = named(request.isolation)
        if request.internet and request.isolation != "netns":
            raise UsageError(
                "--internet is for --isolation netns: other hosts have a way out already",
                "leave out --internet",
            )
        backend.refuses(request, folder, apart, say)
        return backend
    from muster.local.backends.netns.backend import Netns

    reason = Netns().missing(request, folder)
    if not reason:
        return Netns()
    if apart:
        raise UsageError(f"{apart}, and there are no namespaces here: {reason}", "use --hosts 1")
    say(f"muster local: no namespaces here ({reason}): hosts are plain processes")
    return named("process")

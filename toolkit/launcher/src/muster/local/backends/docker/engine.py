"""The container engine: the way to it, and its errors in one sentence with the fix.

The Python package `docker` is imported inside functions of this folder, nowhere else.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from muster.types.errors import ConfigError, LaunchError, MusterError

SOCKET = "unix:///var/run/docker.sock"


class EngineError(MusterError):
    """The engine cannot do it: one sentence, and the fix. `lost`: it did not answer."""

    lost = False

    def __init__(self, message: str, fix: str = "", exit_code: int = LaunchError.exit_code) -> None:
        super().__init__(message, fix)
        self.exit_code = exit_code

    def in_words(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


def connect(limit_s: float, connections: int = 10) -> Any:
    """A client of the engine that the docker command would use. Raises EngineError."""
    try:
        from docker.client import DockerClient
        from docker.errors import DockerException
    except ImportError:
        raise EngineError(
            "the Python package docker is not installed",
            "pip install docker",
        ) from None
    _check_context()
    try:
        return DockerClient.from_env(timeout=limit_s, max_pool_size=connections).api
    except (DockerException, OSError, ValueError) as error:
        raise explain(error) from None


def address() -> str:
    """Of the engine that `connect` asks: DOCKER_HOST's, else the current context's."""
    given = os.environ.get("DOCKER_HOST")
    return given or str(_context().get("base_url") or SOCKET)


def _context() -> Mapping[str, Any]:
    """What the current context says, {} when it is none; as the package docker reads it."""
    from docker.context import ContextAPI

    try:
        return cast("Mapping[str, Any]", ContextAPI.kwargs_from_context())
    except Exception:  # it raises bare ones; `_check_context` has reported it
        return {}


def _check_context() -> None:
    """Raises EngineError where another engine than the docker command's would be asked."""
    from docker.context import ContextAPI

    if os.environ.get("DOCKER_HOST"):
        return
    if not hasattr(ContextAPI, "kwargs_from_context"):
        raise EngineError(
            "the Python package docker is older than 7.2, which does not know contexts",
            "pip install -U 'docker>=7.2', or set DOCKER_HOST",
        )
    name = ""
    try:
        from docker.context.config import get_current_context_name

        name = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
        found = ContextAPI.get_context(name)
    except Exception as error:  # a bare one for a file that is not as it should be
        raise EngineError(
            f"the context {name} cannot be read: {' '.join(str(error).split())}",
            "fix it with `docker context`, or set DOCKER_HOST",
        ) from None
    if found is None:
        raise EngineError(
            f"there is no context {name}", "docker context ls names them; or set DOCKER_HOST"
        )


class explained:  # noqa: N801 - reads as a word: `with explained():`
    """Errors of the client inside the block become EngineError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from docker.errors import DockerException

        if isinstance(error, (DockerException, OSError)):
            raise explain(error) from None


def explain(error: BaseException) -> EngineError:
    """What the engine, or the way to it, said, as one sentence with the fix."""
    from docker.errors import APIError

    if isinstance(error, APIError):
        return _explain_answer(" ".join(str(error.explanation or error).split()))
    where = f"no container engine answers at {address()}"
    found = _explain_loss(error, where)
    found.lost = True
    return found


def _explain_loss(error: BaseException, where: str) -> EngineError:
    number = next((cause.errno for cause in _causes(error) if isinstance(cause, OSError)
                   and cause.errno is not None), None)  # fmt: skip
    if number in (errno.EACCES, errno.EPERM):
        return EngineError(
            f"this user may not use the container engine at {address()}",
            "join the group docker (sudo usermod -aG docker $USER, then log in again)",
        )
    if number in (errno.ENOENT, errno.ECONNREFUSED):
        return EngineError(where, "install and start Docker, or set DOCKER_HOST")
    if any("timed out" in str(cause) for cause in _causes(error)):
        return EngineError(f"{where} in time", "is it overloaded? try `docker ps`")
    return EngineError(f"{where}: {' '.join(str(error).split())}", "check it with `docker version`")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that lie below it; the client wraps them in arguments, too."""
    seen: set[int] = set()
    stack = [error]
    while stack:
        found = stack.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        below = [found.__cause__, found.__context__, getattr(found, "reason", None), *found.args]
        stack += [cause for cause in below if isinstance(cause, BaseException)]


# words of the engine, an expression: (what it means, the fix, exit code); the first that fits
_ANSWERS = (
    (
        "invalid reference format",
        "that is not the name of an image",
        "a name is NAME[:TAG] in small letters, such as my-image:1",
        ConfigError.exit_code,
    ),
    (
        "is already in use by container",
        "another container has the name of a host of this run",
        "docker ps -a names it; run again, and other names are drawn",
        LaunchError.exit_code,
    ),
    (
        "bind source path does not exist",
        "the container engine does not see this machine's files, so it runs on another one",
        "use an engine of this machine, or keep source and runs in a folder that it shares",
        LaunchError.exit_code,
    ),
    (
        "(non-overlapping IPv4|predefined) address pool",
        "the container engine has no addresses left for one more network",
        "remove unused networks: docker network ls, docker network rm NAME",
        LaunchError.exit_code,
    ),
    (
        "exec format error",
        "the image's programs are not for this kind of processor",
        "use an image for this machine",
        ConfigError.exit_code,
    ),
    (
        "no space left on device",
        "the container engine has no room left on its disk",
        "docker system df says what fills it",
        LaunchError.exit_code,
    ),
)


def _explain_answer(text: str) -> EngineError:
    for words, meaning, fix, code in _ANSWERS:
        if re.search(words, text):
            return EngineError(meaning, fix, code)
    return EngineError(f"the container engine refused: {text}")

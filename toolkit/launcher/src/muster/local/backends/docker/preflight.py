"""What is asked of the container engine before a run: nothing is made, started or pulled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.arguments import UsageError
from muster.local.backends.docker import names as docker_names
from muster.local.backends.docker.engine import EngineError, address, connect, explained
from muster.local.backends.docker.options import DockerOptions, is_root
from muster.local.record.runfolder import is_free

ASK_S = 10.0
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # an image's word: the engine's


def preflight(options: DockerOptions, say: Callable[[str], None]) -> None:
    """Whether the engine can hold hosts of this kind; names what an earlier run left behind.

    Raises UsageError. Starts nothing and pulls nothing.
    """
    try:
        client = connect(ASK_S)
        try:
            with explained():
                facts = client.info()
                check_limits(options, facts)
                image = _check_image(client, options.image, facts)
                runs_as = options.user or image_user(image)
                if not is_root(runs_as):
                    whose = "as --user says" if options.user else "the image's own"
                    say(f"muster local: hosts run as user {runs_as}, {whose}")
                for run, names in leftovers(client):
                    say(f"muster local: a killed run left {names} behind; to remove them:")
                    say(f"  {docker_names.remove_command(run)}")
        finally:
            client.close()
    except EngineError as error:
        raise UsageError(
            f"--isolation docker is not possible here: {error.message}", error.fix
        ) from None


def check_limits(options: DockerOptions, facts: Mapping[str, Any]) -> None:
    """Raises EngineError when the engine would not hold hosts to their limits."""
    if facts.get("OSType", "linux") != "linux":
        raise EngineError(f"the engine at {address()} runs no Linux containers")
    if options.memory_bytes is not None and not facts.get("MemoryLimit", True):
        raise EngineError("the engine cannot limit memory", "leave out --memory")
    if options.cpus is None:
        return
    if not facts.get("CpuCfsQuota", True):
        raise EngineError("the engine cannot limit processors", "leave out --cpus")
    if options.cpus > facts.get("NCPU", options.cpus):
        raise EngineError(
            f"--cpus {options.cpus:g} is more than the {facts['NCPU']} processors of the engine",
            f"at most --cpus {facts['NCPU']}",
        )


def image_user(image: Mapping[str, Any]) -> str:
    """The user that an image names, "" for none."""
    return str((image.get("Config") or {}).get("User") or "")


def _check_image(client: Any, name: str, facts: Mapping[str, Any]) -> Any:
    from docker.errors import ImageNotFound

    try:
        image = client.inspect_image(name)
    except ImageNotFound:
        raise EngineError(
            f"the image {name} is not on this machine, and nothing is pulled unasked",
            f"docker pull {name}, or name one of `docker images`",
        ) from None
    made_for = image.get("Architecture", "")
    machine = facts.get("Architecture", "")
    if made_for in MACHINES and machine in MACHINES.values() and MACHINES[made_for] != machine:
        raise EngineError(
            f"the image {name} is for {made_for}, and the engine runs on {machine}",
            f"docker pull --platform for {machine}, or build it here",
        )
    return image


def leftovers(client: Any) -> list[tuple[str, str]]:
    """(run id, its containers and networks) of runs whose process is gone."""
    filters = {"label": [docker_names.RUN, docker_names.FOLDER]}
    found: dict[str, list[Any]] = {}
    for thing in (*client.containers(all=True, filters=filters), *client.networks(filters=filters)):
        if docker_names.KEPT not in thing["Labels"]:
            found.setdefault(thing["Labels"][docker_names.RUN], []).append(thing)
    dead = []
    for run, things in found.items():
        running = any(thing.get("State") == "running" for thing in things)
        if is_dead(things[0]["Labels"][docker_names.FOLDER], running):
            dead.append((run, ", ".join(map(_name, things))))
    return dead


def _name(thing: Mapping[str, Any]) -> str:
    """Of a container or a network."""
    return str(thing["Names"][0].lstrip("/") if "Names" in thing else thing["Name"])


def is_dead(folder: str, running: bool) -> bool:
    """Whether no `muster local` holds that run folder, which is locked while a run lives.

    One that is not there may be on another machine that shares the engine, as long as something of
    the run is `running`; one that may not be read belongs to another user.
    """
    try:
        return is_free(folder)
    except FileNotFoundError:
        return not running
    except OSError:
        return False

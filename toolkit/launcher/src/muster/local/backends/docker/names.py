"""What containers and networks of a run are called, and the commands that a person needs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

# labels of every container and network that `muster local` makes
RUN = "muster.run"  # the run's id
FOLDER = "muster.folder"  # its run folder; locked as long as the run lives
KEPT = "muster.kept"  # only with --keep
HOST = "muster.host"  # algo-1, ...; not on networks

# what the end of a run left of its containers; nothing said: unknown
LEFT_NOTHING = "nothing"
KEPT_ALL = "kept"


def network_name(run: str) -> str:
    return f"muster-{run}"


def container_name(run: str, host: str) -> str:
    return f"muster-{run}-{host}"


def labels(run: str, folder: str, keep: bool, host: str = "") -> dict[str, str]:
    """Of a container, or of the network when there is no host."""
    found = {RUN: run, FOLDER: folder}
    if keep:
        found[KEPT] = "yes"
    if host:
        found[HOST] = host
    return found


def remove_command(run: str) -> str:
    """Removes all containers and the network of a run, whatever is left of them."""
    label = shlex.quote(f"label={RUN}={run}")
    return (
        f"docker ps -aq --filter {label} | xargs -r docker rm -f -v; "
        f"docker network ls -q --filter {label} | xargs -r docker network rm"
    )


def look_commands(run: str, image: str, hosts: Sequence[str]) -> list[str]:
    """How to look at what a run with --keep left, and what others see: (what, command) as lines.

    Commands are for its last host.
    """
    name = container_name(run, hosts[-1])
    shell = ["docker", "run", "-it", "--rm", "--volumes-from", name]
    shell += ["--network", network_name(run), "--entrypoint", "sh", image]
    names = " ".join(container_name(run, host) for host in hosts)
    return [
        f"  kept    {names}, network {network_name(run)}",
        f"  output  docker logs {name}",
        f"  changes docker diff {name}",
        f"  copy    docker cp {name}:/PATH .",
        f"  shell   {shlex.join(shell)}",
        "  secrets docker inspect shows the job's secret and --env values until they are removed",
        f"  remove  {remove_command(run)}",
    ]

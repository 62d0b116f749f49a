"""The end of a run with containers: they and their network go, and files belong to the caller."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from muster.local import docker_names
from muster.local.docker_engine import EngineError, explained
from muster.local.orders import Containers

GIVE_BACK_S = 600.0
# the run folder's own owner as a container sees it, which differs where users are mapped
GIVE_BACK = 'chown -hR "$(stat -c %u:%g "$1")" "$1"'


def tidy(engine: Any, wanted: Containers) -> list[str]:
    """Removes the run's containers and network, if they are not to be kept, and gives the files
    that containers wrote to the owner of the run folder. What could not be done, as sentences."""
    notes: list[str] = []
    try:
        with explained():
            if not wanted.keep:
                _remove_containers(engine, wanted.run)
            if _has_foreign_files(wanted.folder):
                notes += _give_back(engine, wanted)
            if not wanted.keep:
                _remove_networks(engine, wanted.run)
    except EngineError as error:
        notes.append(f"not everything was removed: {error.message}")
    return notes


def _of_run(run: str) -> dict[str, list[str]]:
    return {"label": [f"{docker_names.RUN}={run}"]}


def _remove_containers(engine: Any, run: str) -> None:
    from docker.errors import NotFound

    for container in engine.containers(all=True, filters=_of_run(run)):
        try:
            engine.remove_container(container["Id"], force=True, v=True)
        except NotFound:
            pass


def _remove_networks(engine: Any, run: str) -> None:
    for network in engine.networks(filters=_of_run(run)):
        engine.remove_network(network["Id"])


def _has_foreign_files(folder: str) -> bool:
    """Whether anything in it belongs to somebody else, as what root wrote in a container does."""
    owner = os.lstat(folder).st_uid
    return any(entry.stat(follow_symlinks=False).st_uid != owner for entry in _entries(folder))


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything below that this user can see."""
    stack = [folder]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except PermissionError:
            continue  # its own entry was foreign
        yield from entries
        stack += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _give_back(engine: Any, wanted: Containers) -> list[str]:
    """One last container as root changes the owner, since the caller may not."""
    from docker.types import Mount

    folder = wanted.folder
    made = engine.create_container(
        wanted.image,
        ["sh", folder],
        entrypoint=["sh", "-c", GIVE_BACK],
        user="0:0",
        host_config=engine.create_host_config(
            network_mode="none", mounts=[Mount(folder, folder, type="bind")]
        ),
        name=docker_names.container_name(wanted.run, "owner"),
        labels=docker_names.labels(wanted.run, folder, False),
    )
    try:
        engine.start(made["Id"])
        status = engine.wait(made["Id"], timeout=GIVE_BACK_S)["StatusCode"]
        said = engine.logs(made["Id"]).decode(errors="replace").strip()
    finally:
        engine.remove_container(made["Id"], force=True, v=True)
    if status == 0:
        return []
    return [
        f"files in {folder} still belong to root: {said.splitlines()[-1] if said else status}; "
        f"to own them: sudo chown -R $(id -u):$(id -g) {folder}"
    ]

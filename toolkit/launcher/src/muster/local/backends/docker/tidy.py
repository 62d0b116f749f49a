"""The end of a run with containers: they and their network go, and files belong to the caller."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterator
from typing import Any

from muster.local.backends.docker import names as docker_names
from muster.local.backends.docker.engine import EngineError, explain, explained
from muster.local.orders import Containers
from muster.local.record.layout import MARK
from muster.types.errors import ConfigError
from muster.types.values import NamedTuple

GIVE_BACK_S = 600.0
ROOT = "0:0"
# the owner of the run folder's mark, or of another folder itself, as a container sees it, which
# differs where users are mapped
GIVE_BACK = f'own="$1/{MARK}"; [ -e "$own" ] || own="$1"; chown -hR "$(stat -c %u:%g "$own")" "$1"'
# in a folder of the user's own, only what the containers' user wrote
GIVE_BACK_OWN = 'find "$1" -xdev -user "$2" -exec chown -h "$(stat -c %u:%g "$1")" {} +'
# says the number of the user that may not
MAY_WRITE = '[ -w "$1" ] && [ -x "$1" ] || { id -u; exit 1; }'
# all but the mark
HAND_OVER = 'chown "$2" "$1" && for entry in "$1"/*; do chown -hR "$2" "$entry" || exit; done'


class Tidied(NamedTuple):
    """What is left of a run's containers, and why.

    `is_clean`: only what was to be kept is left. `notes`: what could not be done.
    """

    is_clean: bool
    notes: tuple[str, ...]


def tidy(
    engine: Any,
    wanted: Containers,
    settle: Callable[[], bool],
    give_back_s: float = GIVE_BACK_S,
    checkpoint: str = "",
) -> Tidied:
    """Removes the run's containers and network, if they are not to be kept, and gives the files
    that containers wrote to the owner of the run folder, and in `checkpoint` those of the
    containers' user to that folder's. A step that fails stops no other one.

    `settle` waits a moment for containers that are being made: False when some still are.
    """
    tidier = _Tidier(engine, wanted)
    errors, is_settled = tidier.errors, settle()
    if not wanted.keep:
        tidier.remove_all()
        if not is_settled and not tidier.is_lost:  # what was made meanwhile
            is_settled = settle()
            errors.clear()
            tidier.remove_all()
        if not is_settled and not errors:
            errors.append(EngineError("the container engine is still making a container"))
    user = wanted.user.partition(":")[0] or "0"
    fix = f"sudo chown -R $(id -u):$(id -g) {shlex.quote(wanted.folder)}"
    problems = [tidier.give_back((GIVE_BACK, wanted.folder), fix, give_back_s)]
    if checkpoint:
        which = f"{shlex.quote(checkpoint)} -xdev -user {shlex.quote(user)}"
        fix = f"sudo find {which} -exec chown -h $(id -u):$(id -g) {{}} +"
        problems.append(tidier.give_back((GIVE_BACK_OWN, checkpoint, user), fix, give_back_s))
    notes = [f"not everything was removed: {error.message}" for error in errors]
    return Tidied(not errors, (*notes, *filter(None, problems)))


def hand_over(engine: Any, wanted: Containers, limit_s: float, checkpoint: str = "") -> None:
    """Gives the run folder to the containers' user, until it is given back. `checkpoint` is the
    caller's own and only has to be writable for that user. Raises EngineError."""
    tidier = _Tidier(engine, wanted)
    if why := tidier.run_as(ROOT, (HAND_OVER, wanted.folder, wanted.user), limit_s):
        raise EngineError(
            f"the run folder cannot be handed to user {wanted.user}: {why}",
            "use an image with sh and chown, or --user 0",
        )
    if checkpoint:
        why = tidier.run_as(wanted.user, (MAY_WRITE, checkpoint), limit_s)
        if why.isdecimal():
            raise _unwritable(checkpoint, why)
        if why:
            raise EngineError(f"--checkpoint {checkpoint} cannot be looked at: {why}")


def _unwritable(folder: str, uid: str) -> EngineError:
    status = os.stat(folder)
    owner, mode = f"{status.st_uid}:{status.st_gid}", stat.S_IMODE(status.st_mode)
    return EngineError(
        f"--checkpoint {folder}: hosts run as user {uid}, who may not write there; "
        f"it belongs to {owner} with mode {mode:o}",
        f"sudo chown {uid} {shlex.quote(folder)}, or run hosts as its owner with --user {owner}",
        ConfigError.exit_code,
    )


class _Tidier:
    """What an engine is asked to do at the end of one run. `errors`: what it could not."""

    def __init__(self, engine: Any, wanted: Containers) -> None:
        self._engine = engine
        self._wanted = wanted
        self.errors: list[EngineError] = []

    @property
    def is_lost(self) -> bool:
        return any(error.lost for error in self.errors)

    def remove_all(self) -> None:
        """Containers, then networks."""
        engine, filters = self._engine, {"label": [f"{docker_names.RUN}={self._wanted.run}"]}
        for found in self._attempt(engine.containers, all=True, filters=filters) or ():
            self._attempt(engine.remove_container, found["Id"], force=True, v=True)
        for found in self._attempt(engine.networks, filters=filters) or ():
            self._attempt(engine.remove_network, found["Id"])

    def give_back(self, change: tuple[str, ...], fix: str, limit_s: float) -> str:
        """Why files of the folder are not its owner's, and the fix; "" when they are."""
        folder = change[1]
        try:
            if not _has_foreign_files(folder):
                return ""
            why = "the container engine does not answer"
            if not self.is_lost:
                why = self.run_as(ROOT, change, limit_s)
        except FileNotFoundError:
            return ""  # it is gone
        except OSError as error:
            why = f"{error.filename or folder}: {error.strerror}"
        if not why:
            return ""
        whose = self._wanted.user or "root"
        return f"files in {folder} may still belong to {whose}: {why}; to own them: {fix}"

    def run_as(self, user: str, change: tuple[str, ...], limit_s: float) -> str:
        """A container does it, as `user`. Returns why it could not, "" if it did.

        `change`: the script, the folder, and what else it needs.
        """
        engine, made = self._engine, ""
        try:
            with explained():
                made = self._make_container(user, *change)
                engine.start(made)
                status = engine.wait(made, timeout=limit_s)["StatusCode"]
                said = engine.logs(made).decode(errors="replace").split("\n")
        except EngineError as error:
            return error.message
        finally:
            if made:
                self._attempt(engine.remove_container, made, force=True, v=True)
        return "" if status == 0 else next(filter(None, reversed(said)), f"exit code {status}")

    def _make_container(self, user: str, script: str, folder: str, *words: str) -> str:
        from docker.types import Mount

        engine, wanted = self._engine, self._wanted
        made = engine.create_container(
            wanted.image,
            ["sh", folder, *words],
            entrypoint=["sh", "-c", script],
            user=user,
            host_config=engine.create_host_config(
                network_mode="none", mounts=[Mount(folder, folder, type="bind")]
            ),
            use_config_proxy=False,
            name=docker_names.container_name(wanted.run, "owner"),
            labels=docker_names.labels(wanted.run, wanted.folder, False),
        )
        return str(made["Id"])

    def _attempt(self, call: Callable[..., Any], *words: object, **more: object) -> Any:
        """The engine's answer. One that was lost is not asked again: each time would take as
        long."""
        from docker.errors import DockerException, NotFound

        if self.is_lost:
            return None
        try:
            return call(*words, **more)
        except NotFound:
            pass  # it is gone
        except (DockerException, OSError) as error:
            self.errors.append(explain(error))
        return None


def _has_foreign_files(folder: str) -> bool:
    """Whether anything in it belongs to somebody else, as what root wrote in a container does."""
    owner = os.lstat(folder).st_uid
    try:
        if os.lstat(os.path.join(folder, MARK)).st_uid != owner:
            return True  # it was handed over
    except PermissionError:
        return True  # the same
    except (FileNotFoundError, NotADirectoryError):
        pass  # it is no run folder
    return any(_owner(entry) not in (owner, None) for entry in _entries(folder))


def _owner(entry: os.DirEntry[str]) -> int | None:
    """None when it is gone by now."""
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except FileNotFoundError:
        return None


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything below that this user can see."""
    stack = [folder]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except (PermissionError, FileNotFoundError):
            continue  # its own entry was foreign, or it is gone
        yield from entries
        stack += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]

"""Where a host of `muster run` has its /opt/ml, and how the code gets there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from glob import glob
from itertools import chain

from muster.arguments import UsageError
from muster.contract.engines.sagemaker import MARK
from muster.elsewhere.network import Whereabouts
from muster.local import preparation
from muster.local.code.module import entry_point
from muster.local.record import layout, runfolder
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from muster.local.tree import CHECKPOINTS
from muster.types.engine import Engine
from muster.types.values import NamedTuple

CONTAINER_BASE = "/opt/ml"
ARCHIVE = "input/sourcedir.tar.gz"
ARCHIVES, S3 = (".tar.gz", ".tgz"), "s3://"


class Folders(NamedTuple):
    """`base`: the host's opt/ml. `run`: the run folder of all hosts, "" for none. `source`: where
    the code is. `channels`: those that are still to be linked."""

    base: str
    run: str
    source: str
    channels: Mapping[str, str]


def make_folders(
    request: Request,
    engine: Engine,
    place: Whereabouts,
    output: str | None,
    base: str = CONTAINER_BASE,
) -> Folders:
    """The folders below --output, else /opt/ml itself where that can be written; with the code
    packed. Raises UsageError."""
    me = place.names[engine.host_index]
    there = base_folder(me, output, base)
    try:
        if output is not None:
            return _below_output(request, engine, os.path.realpath(output), me)
        return _in_container(request, engine, there)
    except OSError as error:
        why = f"the run cannot be prepared: {runfolder.in_words(error)}"
        raise UsageError(why, runfolder.OTHER_PLACE) from None


def base_folder(host: str, output: str | None, base: str = CONTAINER_BASE) -> str:
    """Which folder is a host's opt/ml. Raises UsageError where no place was named."""
    if output is not None:
        return os.path.join(os.path.realpath(output), host, "opt/ml")
    if os.path.isdir(base) and os.access(base, os.W_OK):
        return base
    where = "cannot be written" if os.path.isdir(base) else "is not there"
    raise UsageError(
        f"{base} {where}, and no other place was named",
        "add --output DIR, a folder that all hosts share or one of each host's own",
    )


def left_out(request: Request, engine: Engine, run: str) -> tuple[str, ...]:
    """What is no code in the source folder, and would differ between hosts: the run, and what the
    engine writes there meanwhile."""
    logs = (glob(os.path.join(request.source_dir, one)) for one in engine.logs)
    return (run, *([request.checkpoint] if request.checkpoint else []), *chain(*logs))


def _below_output(request: Request, engine: Engine, run: str, host: str) -> Folders:
    """A folder of the host's name, as in a run of `muster local`. A later attempt of the job finds
    what an earlier one left and goes on from it."""
    again = (engine.attempt or 1) > 1
    made = runfolder.make_run_folder(
        request.program, os.path.join(run, host), request.overwrite or again
    )
    # `train` keeps it, so that no other job takes the folder; ranks close what they inherit
    os.set_inheritable(made.lock, True)
    base = os.path.join(made.path, "opt/ml")
    try:
        archive = os.path.join(made.path, layout.FRESH_SOURCE)
        source = _bring_code(request, archive, left_out(request, engine, run))
    except (UsageError, OSError):
        runfolder.leave(made)
        raise
    if again and not request.overwrite:
        _go_on(made, base)
    else:
        runfolder.clear(made)
    if source == archive:
        source = os.path.join(made.path, layout.SOURCE)
    return Folders(base, os.path.dirname(made.path), source, request.channels)


def is_packed(source_dir: str) -> bool:
    """Whether it names an archive, here or at S3, and not a folder."""
    return source_dir.startswith(S3) or source_dir.endswith(ARCHIVES)


def _bring_code(request: Request, archive: str, left_out: tuple[str, ...]) -> str:
    """Where the packed code is: at `archive`, or at S3, where `train` fetches it. Raises UsageError
    and OSError."""
    packed = request.source_dir
    if packed.startswith(S3):
        return packed
    if is_packed(packed) and not os.path.isdir(packed):
        if not os.path.isfile(packed):
            raise UsageError(f"--source-dir {packed}: no such file", "name one that this host has")
        os.makedirs(os.path.dirname(archive), exist_ok=True)
        shutil.copyfile(packed, archive)
    else:
        preparation.pack_into(request, archive, left_out, lambda: None)
    return archive


def _go_on(made: RunFolder, base: str) -> None:
    """Takes away what the earlier attempt was given, and leaves what it made."""
    for name in ("code", "input"):
        shutil.rmtree(os.path.join(base, name), ignore_errors=True)
    if os.path.islink(os.path.join(base, "checkpoints")):
        os.unlink(os.path.join(base, "checkpoints"))
    source = os.path.join(made.path, layout.SOURCE)
    os.makedirs(os.path.dirname(source), exist_ok=True)
    with suppress(FileNotFoundError):
        os.replace(os.path.join(made.path, layout.FRESH_SOURCE), source)


def _in_container(request: Request, engine: Engine, base: str) -> Folders:
    """/opt/ml of a container. Code that lies there already is run where it is; what an earlier
    `muster run` unpacked there becomes code.earlier, and its links give way."""
    code, archive = os.path.join(base, "code"), os.path.join(base, ARCHIVE)
    config = os.path.join(base, "input/config")
    in_place = os.path.realpath(request.source_dir) == os.path.realpath(code)
    full = not in_place and os.path.isdir(code) and os.listdir(code)
    if full and not (os.path.exists(archive) and os.path.exists(os.path.join(config, MARK))):
        raise UsageError(
            f"{code} holds other code than {request.source_dir}",
            f"name a script in {code}, or add --output DIR",
        )
    data = os.path.join(base, "input/data")
    channels = _still_to_link(request.channels, data)
    if in_place and request.module:
        name, content = entry_point(request.module)
        with open(os.path.join(code, name), "wb") as file:
            file.write(content)
    source = code if in_place else ""
    if not in_place:
        source = _bring_code(request, archive, left_out(request, engine, base))
    if full:
        shutil.rmtree(f"{code}.earlier", ignore_errors=True)
        os.rename(code, f"{code}.earlier")
    links = [os.path.join(data, name) for name in channels]
    if request.checkpoint:
        links.append(os.path.join(base, CHECKPOINTS))
    for path in filter(os.path.islink, links):
        os.unlink(path)
    for name in ("init-config.json", "trainingjobconfig.json"):  # not every run writes them
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(config, name))
    return Folders(base, "", source, channels)


def _still_to_link(channels: Mapping[str, str], data: str) -> dict[str, str]:
    """The channels that do not lie where they belong. Raises UsageError for another folder there,
    which is no link of an earlier run."""
    found = {}
    for name, folder in channels.items():
        there = os.path.join(data, name)
        same = os.path.realpath(there) == os.path.realpath(folder)
        if os.path.lexists(there) and not os.path.islink(there) and not same:
            fix = f"use it as it is: --channel {name}={there}"
            raise UsageError(f"--channel {name}: {there} is there already", fix)
        if not (same and os.path.isdir(there)):
            found[name] = folder
    return found

"""The user's code, from wherever the job says, in one folder.

Promises: F52, F54, F55, F56.
"""

from __future__ import annotations

import os
import re

from muster.stage.code.program import decide
from muster.stage.code.workspace import Workspace, entries
from muster.stage.patience import Patience
from muster.stage.space import DISK_FULL, shortage, tree_bytes
from muster.types.errors import ConfigError, SourceError
from muster.types.job import Job, Program
from muster.types.steps import Log
from muster.types.values import NamedTuple

_ARCHIVE = "sourcedir.tar.gz"
_SUFFIXES = (".tar.gz", ".tgz")


class _Code(NamedTuple):
    """Where the code lies; `ours`: muster put it there, so it may be changed."""

    folder: str
    ours: bool


def fetch(job: Job, log: Log) -> Program:
    """Brings the code to this host and says what to run.

    A code folder that is not empty wins over everything. Otherwise the code comes from
    `job.source`, or from the `code` channel, and lies in the code folder afterwards; plain files
    of the channel are run where they are. May block: for 120 s on S3, and on slow mounts.
    Raises SourceError when the code cannot be had, ConfigError when the request cannot be right.
    """
    code = _bring(job, log)
    where = job.origins.get("program", "sagemaker_program")
    with Patience(code.folder, log):
        return decide(code.folder, job.program, job.arguments, where, code.ours)


def code_hash(program: Program) -> str:
    """See stage.fingerprint: equal on two hosts exactly when their code is."""
    from muster.stage.code.fingerprint import fingerprint

    return fingerprint(program.code_dir)


def _bring(job: Job, log: Log) -> _Code:
    folder = job.paths.code
    with Patience(folder, log):
        occupied = bool(entries(folder))
    if occupied:
        if job.source and not _same(job.source, folder):
            from muster.stage.code.s3 import redacted

            log(
                "stage", "the code folder is not empty: its files run, other code is not fetched",
                code=folder, ignored=redacted(job.source),
            )  # fmt: skip
        return _Code(folder, False)
    channel = os.path.join(job.paths.data, "code")
    source = "" if job.source and _same(job.source, folder) else job.source
    if not source:
        with Patience(channel, log):
            source = channel if entries(channel) else ""
    if not source:
        return _Code(folder, False)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", source)
    if scheme and scheme[1] != "s3" and scheme[1] != "file":
        where = job.origins.get("source", "sagemaker_submit_directory")
        raise ConfigError.of(
            where,
            f"supported: s3, local path; got {scheme[1]!r}",
            "upload the archive to S3, or mount it and give its path",
        )
    if scheme and scheme[1] == "s3":
        return _from_s3(source, job, log)
    return _from_disk(source.removeprefix("file://"), channel, job, log)


def _from_s3(location: str, job: Job, log: Log) -> _Code:
    from muster.stage.code.archive import unpack
    from muster.stage.code.s3 import download, redacted

    with Workspace(job.paths.code) as workspace:
        path = os.path.join(workspace.folder, _ARCHIVE)
        log("stage", "fetching the code", location=redacted(location))
        download(location, path, job.environ, log)
        files = unpack(path, redacted(location), workspace.tree)
        workspace.move_in()
    log("stage", "code unpacked", files=files, code=job.paths.code)
    return _Code(job.paths.code, True)


def _from_disk(path: str, channel: str, job: Job, log: Log) -> _Code:
    """A folder, an archive, or a single file of this machine."""
    with Patience(path, log):
        is_folder = os.path.isdir(path)
        packed = os.path.join(path, _ARCHIVE)
        if is_folder and _same(path, channel):
            if os.path.lexists(os.path.join(path, job.program)) or not os.path.isfile(packed):
                return _Code(channel, False)
            path, is_folder = packed, False
        if not is_folder and not os.path.isfile(path):
            raise SourceError(
                f"the code is to come from {path}, which does not exist on this host",
                "check sagemaker_submit_directory, or mount the folder into the container",
            )
        with Workspace(job.paths.code) as workspace:
            if not is_folder and path.endswith(_SUFFIXES):
                from muster.stage.code.archive import unpack

                unpack(path, path, workspace.tree)
            else:
                _copy(path, is_folder, workspace.tree)
            workspace.move_in()
    log("stage", "code copied", source=path, code=job.paths.code)
    return _Code(job.paths.code, True)


def _copy(source: str, is_folder: bool, tree: str) -> None:
    """The contents of a folder, or one file, into the fresh folder `tree`."""
    import shutil

    short = ""
    try:
        if is_folder and os.path.realpath(tree).startswith(os.path.realpath(source) + os.sep):
            raise SourceError(
                f"the code is to come from {source}, which holds the code folder itself",
                "give a folder with nothing but the code in it",
            )
        short = shortage(tree, tree_bytes(source) if is_folder else os.path.getsize(source))
        if short:
            raise OSError(next(iter(DISK_FULL)), "no space left")
        if is_folder:
            shutil.copytree(source, tree, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, tree)
    except OSError as error:  # shutil.Error is one: its first item says which file and why
        full = error.errno in DISK_FULL or "No space left" in str(error)
        reason = error.strerror or str(error)[:300]
        what = f"no space left ({short or 'the disk is full'})" if full else reason
        raise SourceError(
            f"copying the code from {source} failed: {what}",
            "give the code folder's disk more room" if full else "make the files readable",
        ) from error


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)

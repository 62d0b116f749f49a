"""The run folder of a submitted job: code, secret, the engine's file, and submitted.json."""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import suppress

from muster.arguments import UsageError
from muster.local import preparation
from muster.local.record import layout, runfolder
from muster.local.record.command_file import SUBMIT, write_command
from muster.local.record.layout import ENVIRON, SECRET, SUBMITTED
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from muster.submit.arguments import code_elsewhere
from muster.submit.values import Submitted
from muster.types import files
from muster.types.files import read_object, write_whole
from muster.types.run_files import SUMMARY
from muster.version import __version__

SCHEMA = 1


def make(request: Request, argv: tuple[str, ...]) -> RunFolder:
    """A locked run folder with the code packed, a secret, and the script's own variables. What an
    earlier run made is aside until `runfolder.drop_earlier`. Raises UsageError."""
    folder = runfolder.make_run_folder(request.program, request.output, request.overwrite)
    undo = runfolder.leave
    try:
        if not code_elsewhere(request.source_dir):
            preparation.pack_source(request, folder, lambda: None)
        runfolder.set_aside(folder)
        undo = runfolder.discard
        runfolder.begin(folder)
        write_command(folder, argv, SUBMIT)
        write_private(os.path.join(folder.path, SECRET), secrets.token_hex(32) + "\n")
        if request.environ:
            environ = json.dumps(dict(request.environ))
            write_private(os.path.join(folder.path, ENVIRON), environ)
    except BaseException as error:
        undo(folder)
        if not isinstance(error, OSError):
            raise
        raise _unwritten(error) from None
    return folder


def write_private(path: str, text: str) -> None:
    """A new file of mode 600. Raises UsageError."""
    try:
        files.write_private(path, text)
    except OSError as error:
        raise _unwritten(error) from None


def source(run: str) -> str:
    """Where the packed code lies."""
    return os.path.join(run, layout.SOURCE)


def keep(job: Submitted) -> None:
    """Writes submitted.json. Raises UsageError."""
    document = {
        "schema": SCHEMA,
        "muster": __version__,
        "submitted": round(time.time(), 3),
        **job._asdict(),
    }
    del document["run"]  # the folder may be moved, or be mounted elsewhere
    try:
        write_whole(os.path.join(job.run, SUBMITTED), json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise _unwritten(error) from None


def keep_code(job: Submitted, code: int) -> None:
    """Adds how the job ended to submitted.json, where that can be written: others who look may not
    have the right to."""
    path = os.path.join(job.run, SUBMITTED)
    with suppress(OSError):
        if document := read_object(path):  # else it could not be read just now
            write_whole(path, json.dumps(document | {"code": code}, indent=1) + "\n")


def find(name: str) -> Submitted:
    """As `submitted`. Raises UsageError where there is none."""
    if found := submitted(name):
        return found
    runfolder.entries(name)
    raise UsageError(
        f"no submitted run {name!r}",
        f"name the run folder that `muster submit` printed; it holds {SUBMITTED}",
    )


def submitted(name: str) -> Submitted | None:
    """The job of a run folder, or of one's name below muster-runs."""
    paths = (os.path.realpath(path) for path in (os.path.join(layout.RUNS, name), name) if name)
    return next(filter(None, map(read, paths)), None)


def read(run: str) -> Submitted | None:
    """What submitted.json says; None where there is none that can be understood."""
    document = read_object(os.path.join(run, SUBMITTED))
    with suppress(KeyError, TypeError, ValueError):
        where = {str(key): str(value) for key, value in dict(document["where"]).items()}
        return Submitted(
            engine=str(document["engine"]),
            job_id=str(document["job_id"]),
            name=str(document["name"]),
            hosts=int(document["hosts"]),
            run=run,
            where=where,
            code=document.get("code"),
        )
    return None


def summary_code(run: str) -> int | None:
    """The exit code that the job's own summary gives, None where there is none yet."""
    outcome = read_object(os.path.join(run, SUMMARY)).get("outcome")
    code = outcome.get("exit_code") if isinstance(outcome, dict) else None
    return code if type(code) is int else None


def _unwritten(error: OSError) -> UsageError:
    why = f"the run folder cannot be written: {runfolder.in_words(error)}"
    return UsageError(why, runfolder.OTHER_PLACE)

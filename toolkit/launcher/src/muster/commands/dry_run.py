"""What `muster plan SCRIPT` plans from: the files and the environment that `muster local` would
give its first host, written to a temporary folder that is gone afterwards. Starts no host of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from muster.arguments import UsageError
from muster.commands.plan_values import DryRun, Row
from muster.local import environment, preparation, tree
from muster.local.backends.base import Backend
from muster.local.backends.choice import choose
from muster.local.code import sourcecode
from muster.local.code.module import entry_point
from muster.local.record import layout, runfolder
from muster.local.record.runfolder import RunFolder
from muster.local.request import read_request
from muster.types.names import counted

CHOSEN_LATE = ("MUSTER_CONTROL_PORT", "MUSTER_STORE_PORT", "MUSTER_WORKER_PORT", "MUSTER_PS_PORT")
NEVER_SHOWN = (*CHOSEN_LATE, "MUSTER_JOB_SECRET")


@contextmanager
def dry_run(args: argparse.Namespace) -> Iterator[DryRun]:
    """Raises UsageError for what `muster local` would refuse."""
    request = read_request(args)
    keys = preparation.checked_keys(request)
    with tempfile.TemporaryDirectory(prefix="muster-plan-") as temp:
        stem = os.path.splitext(os.path.basename(request.program))[0]
        folder = RunFolder(os.path.realpath(temp), runfolder.job_name(f"TIME-{stem}"), -1)
        backend = choose(request, folder, keys, _say)
        try:
            environ = _with_tree(backend, keys)
        except OSError as error:
            fix = "make room there, or set TMPDIR to another folder"
            raise UsageError(f"{temp} cannot be written: {error.strerror}", fix) from None
        yield _dry(backend, environ)


def _say(text: str) -> None:
    sys.stderr.write(text.replace("muster local:", "muster plan:", 1) + "\n")


def _with_tree(backend: Backend, keys: dict[str, str]) -> dict[str, str]:
    """The first host's environment, after its tree was written."""
    request, folder = backend.request, backend.folder
    host = request.host_names[0]
    source = os.path.join(folder.path, layout.SOURCE)  # the archive's name, for the code itself
    os.mkdir(os.path.dirname(source))
    if request.module:  # its entry point is made when the code is packed
        os.mkdir(source)
        name, content = entry_point(request.module)
        with open(os.path.join(source, name), "wb") as file:
            file.write(content)
    else:
        os.symlink(request.source_dir, source)
    documents = preparation.documents(backend, keys, host, source)
    tree.write_tree(folder.base(host), documents, request.channels)
    shared = environment.run_variables(backend, backend.addresses())
    shared = {name: value for name, value in shared.items() if name not in NEVER_SHOWN}
    return environment.host_environ(os.environ, host, shared, backend)


def _dry(backend: Backend, environ: dict[str, str]) -> DryRun:
    request, folder = backend.request, backend.folder
    run = request.output or os.path.join(os.path.realpath(layout.RUNS), folder.job)
    base = folder.base(request.host_names[0])
    there = backend.base(request.host_names[0]).replace(folder.path, run, 1)
    size, count = sourcecode.measure(
        request.source_dir, (run, request.checkpoint or run), request.ignored
    )
    code = f"{request.source_dir} ({counted(count, 'file')}, {-(-size // 1024):,} KiB)"
    if left_out := request.ignored.in_words(sourcecode.LEFT_OUT):
        _say(f"muster local: {left_out}")
    assumed = ["free ports are chosen when the hosts start: those shown are the defaults"]
    if backend.assumption:
        assumed.append(backend.assumption)
    return DryRun(
        environ=environ,
        base=base,
        names_resolve=not backend.shares_network,
        machine=backend.seen,
        rows=(
            Row("base folder", there, f"isolation {backend.name}"),
            Row("code", code, "packed for every host"),
        ),
        assumptions=tuple(assumed),
        shown=lambda text: text.replace(base, there).replace(folder.path, run),
    )

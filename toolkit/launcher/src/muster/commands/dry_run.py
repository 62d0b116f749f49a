"""What `muster plan SCRIPT` plans from: the files and the environment that `muster local` would
give its first host, or `muster run` this one, written to a temporary folder that is gone
afterwards. Starts no host of it.
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
from muster.elsewhere.command import prepared
from muster.elsewhere.network import Whereabouts
from muster.elsewhere.place import ARCHIVE, Folders, base_folder, is_packed
from muster.local import environment, preparation, tree
from muster.local.backends.base import Backend
from muster.local.backends.choice import choose
from muster.local.code import sourcecode
from muster.local.code.module import entry_point
from muster.local.command import NO_TYPE
from muster.local.record import layout, runfolder
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request, read_request
from muster.types.engine import Engine
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
    source = _with_code(request, os.path.join(folder.path, layout.SOURCE))
    documents = preparation.documents(backend, keys, host, source)
    tree.write_tree(folder.base(host), documents, request.channels)
    shared = environment.run_variables(backend, backend.addresses())
    shared = {name: value for name, value in shared.items() if name not in NEVER_SHOWN}
    return environment.host_environ(os.environ, host, shared, backend)


def _with_code(request: Request, source: str) -> str:
    """The code itself where its archive would be."""
    os.makedirs(os.path.dirname(source))
    if request.module:  # its entry point is made when the code is packed
        os.mkdir(source)
        name, content = entry_point(request.module)
        with open(os.path.join(source, name), "wb") as file:
            file.write(content)
    else:
        os.symlink(request.source_dir, source)
    return source


@contextmanager
def on_engine(args: argparse.Namespace) -> Iterator[DryRun]:
    """Raises UsageError and ConfigError for what `muster run` would refuse on this host."""
    with tempfile.TemporaryDirectory(prefix="muster-plan-") as temp:
        me, code = os.path.realpath(temp), ""  # as the host's own folder
        base = there = os.path.join(me, "opt/ml")

        def folders(
            request: Request, engine: Engine, place: Whereabouts, output: str | None
        ) -> Folders:
            nonlocal there, code
            code = source = request.source_dir
            there = base_folder(place.names[engine.host_index], output)
            brought = code != os.path.join(there, "code")
            if brought and (os.path.isdir(code) or not is_packed(code)):
                archive = os.path.join(me, layout.SOURCE) if output else os.path.join(base, ARCHIVE)
                source = _with_code(request, archive)
            return Folders(base, os.path.realpath(output) if output else "", source, {})

        given = {**vars(args), "count": args.hosts, "hosts": None}
        if args.instance_type == NO_TYPE:
            given["instance_type"] = ""
        _, environ = prepared(argparse.Namespace(**given), "muster plan", folders)
        yield DryRun(
            environ={name: value for name, value in environ.items() if name not in NEVER_SHOWN},
            base=base,
            names_resolve=False,
            machine=lambda machine: machine,
            rows=(
                Row("base folder", there, "option --output" if args.output else "default"),
                Row("code", code, "brought by every host"),
            ),
            assumptions=(),
            shown=lambda text: text.replace(me, there.removesuffix("/opt/ml")),
        )


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

"""From a request to its exit code: prepares the run, starts the hosts, waits, and reports."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from signal import SIGKILL
from typing import TYPE_CHECKING

from muster.arguments import UsageError
from muster.local import caches, memory, preparation
from muster.local.backends.base import Backend
from muster.local.backends.choice import choose
from muster.local.code.module import imports_from_here
from muster.local.code.sourcecode import LEFT_OUT
from muster.local.hosts import LIMIT_S, start_hosts
from muster.local.model_plan import picture_of
from muster.local.paths import shown
from muster.local.record import layout, runfolder, summary
from muster.local.record.artifacts import made
from muster.local.record.command_file import write_command
from muster.local.request import Request
from muster.local.session import HostSession, Timeout
from muster.local.show import github
from muster.local.show.progress import Progress, Tail
from muster.local.show.screen import Screen
from muster.local.show.user_files import failing_place, with_own_paths
from muster.local.signals import Signals
from muster.run.base.shortage import not_started, shortage
from muster.types.errors import InstallError, MusterError, StoppedError
from muster.types.names import counted
from muster.types.run_files import SUMMARY
from muster.types.values import NamedTuple

if TYPE_CHECKING:
    from socket import socket

    from muster.local.faults.injector import Landing
    from muster.local.faults.spec import Fault

STOP_MARGIN_S = 1.0


class _Ready(NamedTuple):
    """A run whose trees are written and whose hosts can be started, in the control groups of
    `--memory` if there are any."""

    backend: Backend
    groups: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    debug_port: socket | None = None


def launch(
    request: Request, argv: Sequence[str] = (), on_folder: Callable[[str], None] = lambda path: None
) -> int:
    """Runs the job; returns its exit code. `argv`: the command line, for the record. `on_folder`
    gets the run folder once the run is sure to begin.

    Raises UsageError before anything has started.
    """
    signals = Signals()
    screen = Screen(request.as_json, os.environ)
    try:
        ready = _prepare(request, argv, screen, signals)
    except StoppedError as error:
        screen.say(f"muster local: {error.message}")
        return error.exit_code
    on_folder(ready.backend.folder.path)
    try:
        return _launch(ready, screen, signals)
    finally:
        memory.remove_groups(ready.groups)


def _launch(ready: _Ready, screen: Screen, signals: Signals) -> int:
    request = ready.backend.request
    timeout = None
    if request.timeout_s is not None:
        timeout = Timeout(request.timeout_s, time.monotonic() + request.timeout_s)
    _tell_differences(ready.backend, screen)
    try:
        if ready.backend.is_offline:
            from muster.local.provision import provision_hosts

            provision_hosts(request, ready.backend.folder, screen, signals, timeout)
    except MusterError as error:
        return _close_unstarted(ready.backend, error, screen)
    except OSError as error:
        why = f"the packages cannot be put into the run folder: {runfolder.in_words(error)}"
        return _close_unstarted(ready.backend, InstallError(why, runfolder.OTHER_PLACE), screen)
    return _run(ready, screen, signals, timeout)


def _prepare(request: Request, argv: Sequence[str], screen: Screen, signals: Signals) -> _Ready:
    """Makes the run folder and fills it; what cannot be run leaves none behind, and an earlier run
    as it was."""
    keys = preparation.checked_keys(request)
    if beside := imports_from_here(request.program, request.source_dir, os.getcwd()):
        screen.say(
            f"muster local: {request.program} imports {', '.join(beside)} of this folder, which "
            "is not in its source folder: add --source-dir ."
        )
    if left_out := request.ignored.in_words(LEFT_OUT):
        screen.say(f"muster local: {left_out}")
    folder = runfolder.make_run_folder(request.program, request.output, request.overwrite)
    give_up = runfolder.leave
    groups: tuple[str, ...] = ()
    try:
        backend = choose(request, folder, keys, screen.say)
        faults = preparation.settled_faults(request, keys, backend.name)
        debug_port = preparation.settle_debug(request, keys, backend.name)
        preparation.pack_source(request, folder, signals.check)
        groups = backend.groups()
        signals.check()
        give_up = runfolder.discard  # an earlier run gives way only to one that can begin
        runfolder.clear(folder)
        preparation.write_trees(backend, keys, signals.check)
        write_command(folder, argv)
    except (UsageError, StoppedError, OSError) as error:
        memory.remove_groups(groups)
        give_up(folder)
        if not isinstance(error, OSError):
            raise
        why = f"the run cannot be prepared: {runfolder.in_words(error)}"
        short = shortage(error.errno or 0)
        raise UsageError(why, short.fix if short else runfolder.OTHER_PLACE) from None
    runfolder.link_latest(folder)
    where = shown(folder.path)
    hosts = counted(request.hosts, "host")
    screen.say(f"muster local: {request.program} on {hosts}, record in {where}")
    for fault in faults:
        screen.say(f"muster local: --fault {fault.spec}")
    return _Ready(backend, groups, faults, debug_port)


def _tell_differences(backend: Backend, screen: Screen) -> None:
    from muster.local.differences import differences, vanishing

    screen.say(f"muster local: isolation {backend.name}, which differs from SageMaker in:")
    for sentence in differences(backend):
        screen.say(f"  - {sentence}")
    visible = backend.visible(os.environ)
    if visible is None:
        return
    for warning in vanishing(backend.request, visible):
        screen.say(f"muster local: WARNING {warning}")


def _run(ready: _Ready, screen: Screen, signals: Signals, timeout: Timeout | None) -> int:
    backend, groups, faults, debug_port = ready
    request, folder = backend.request, backend.folder
    began = time.monotonic()
    try:
        orders = preparation.make_orders(backend, os.environ, groups, faults)
        in_use = caches.use(orders.caches)
        hosts = start_hosts(orders._replace(lock=folder.lock))
    except OSError as error:
        what = f"the hosts ({error.filename})" if error.filename else "the hosts"
        return _close_unstarted(backend, not_started(what, error.errno or 0), screen)
    if github.in_actions(os.environ):
        screen.pump.say(github.group(f"muster local: output of {request.program}"))
    progress = Progress(request.host_names)
    tail = Tail([folder.events(name) for name in request.host_names])
    injector = None
    if faults:
        from muster.local.faults.injector import Injector

        means = backend.means(orders, hosts.pid)
        injector = Injector(faults, folder, request.host_names, means, hosts.statuses)
        injector.start()
    desk = None
    if request.debug is not None:
        from muster.local.debugger.desk import Desk

        desk = Desk(request.debug, debug_port, backend)
        screen.clear()  # a person types here, or reads what does not move
        desk.start()
    session = HostSession(
        signals, hosts, progress, tail, screen, timeout, stop_limit_s(request), injector, desk
    )
    reports: Sequence[Landing] = ()
    try:
        session.run()
    finally:
        if injector is not None:
            reports = injector.close()
        if desk is not None:
            desk.close()
        hosts.close(0 if session.ending.abandoned else LIMIT_S)
        caches.release(in_use)
        tail.close()
    killed = injector.killed if injector is not None else ()
    ends = tuple(
        summary.HostEnd(name, -SIGKILL if name in killed else hosts.statuses.get(host_index))
        for host_index, name in enumerate(request.host_names)
    )
    end = summary.RunEnd(
        hosts=ends,
        ending=session.ending,
        isolation=backend.name,
        seconds=time.monotonic() - began,
        timeout_s=request.timeout_s,
        error=hosts.error,
        error_code=hosts.error_code,
        notes=(*hosts.notes, *memory.kill_notes(groups, request.memory_bytes or 0)),
        facts={**hosts.facts, **({"faults": [r._asdict() for r in reports]} if reports else {})},
        reports=tuple(reports),
        hints=backend.hints(orders, hosts.facts),
    )
    for why in hosts.lost:
        end = _lacking(end, why)
    return _close(backend, end, progress, screen, hosts.ready)


def stop_limit_s(request: Request) -> float:
    """How long a host may take from SIGTERM to its end, as its own `train` sees it."""
    from muster.types.deadlines import parse_deadlines

    environ = {**os.environ, **request.environ}
    local_mode = request.instance_type.startswith("local")
    return parse_deadlines(environ, local_mode)[0].stop_total_s + STOP_MARGIN_S


def _close(
    backend: Backend, end: summary.RunEnd, progress: Progress, screen: Screen, were_ready: bool
) -> int:
    """Completes the record and tells where everything lies; a failure's own block comes last."""
    began = time.time() - end.seconds  # before what is kept is gathered, which may take long
    request, folder = backend.request, backend.folder
    names = request.host_names
    path = os.path.join(folder.path, SUMMARY)
    end = summary.settled(path, end)
    end = _gather_models(end, folder.path, summary.leader_first(path, names))
    picture = picture_of(folder, names[0]) if request.model_plan else ""
    if request.model_plan and not picture and summary.exit_code(end) == 0:
        end = _lacking(
            end, f"{request.program} came to no smp.step that trains a model: nothing was planned"
        )
    document = summary.compose(path, end, folder.job)
    try:
        summary.write(path, document)
    except OSError as error:
        end = _lacking(end, _unwritten(path, error))
        document = summary.compose(path, end, folder.job)
    screen.clear()
    if github.in_actions(os.environ):
        screen.pump.say(github.END_GROUP)
    if end.error:
        what = "" if were_ready else "the hosts could not be made: "
        screen.say(f"muster local: {what}{end.error}")
    for note in end.notes:
        screen.say(f"muster local: {note}")
    if disagreement := summary.disagreement(end):
        screen.say(f"muster local: {disagreement}")
    places = summary.places(folder.path, names, request.checkpoint)
    lines = [*summary.table(end, progress), *places]
    if end.reports:
        lines += _account(end, began, progress, folder.path, request.checkpoint)
    if picture:
        lines.append(f"  {'plan':<11} {shown(picture)}")
    screen.say_verdict(f"muster local: {summary.verdict(end)}", summary.exit_code(end) == 0)
    screen.say("\n".join(lines))
    for command in end.hints:  # to be copied, so in one piece
        screen.pump.say(command)
    _say_last(request.source_dir, end, document, screen)
    _flush(request, document, screen)
    return summary.exit_code(end)


def _account(
    end: summary.RunEnd, began: float, progress: Progress, run: str, checkpoint: str | None
) -> list[str]:
    """The block about the faults. `began`: when the run did, in seconds since the epoch."""
    from muster.local.faults import account

    kept = [one.folder for one in made(run, checkpoint) if one.kind in ("model", "checkpoints")]
    saved = account.saved_since(kept, began)
    return account.lines(end.reports, progress.outcome, summary.exit_code(end), saved)


def _flush(request: Request, document: Mapping[str, object], screen: Screen) -> None:
    screen.flush()
    if request.as_json:
        screen.give_result(json.dumps(document) + "\n")


def _say_last(
    source: str, end: summary.RunEnd, document: Mapping[str, object], screen: Screen
) -> None:
    """The block of the failure, with the user's own paths; of a stop one line with its code."""
    said = summary.last_line(end)
    tail = summary.first_tail(document)
    if github.in_actions(os.environ) and summary.exit_code(end):
        headline = said or summary.headline(document) or end.error
        screen.pump.say(github.error(headline, failing_place(tail, source), os.environ))

    def edit(block: bytes) -> bytes:
        if said and block.startswith(b"STOPPED by "):
            forced = [line for line in block.splitlines() if line.startswith(b"StoppedError")]
            return b"".join(line + b"\n" for line in forced)
        return with_own_paths(block.decode("utf-8", "replace"), source).encode()

    screen.pump.edit_blocks(edit)
    screen.release()
    if said:
        screen.say(said)


def _gather_models(end: summary.RunEnd, run: str, hosts: Sequence[str]) -> summary.RunEnd:
    """The models of all hosts in one place; what cannot be gathered stays with its host."""
    from muster.local.record.artifacts import gather

    try:
        clashes = gather(run, hosts)
    except OSError as error:
        where = shown(os.path.join(run, "algo-*/opt/ml/model"))
        why = f"the model cannot be gathered in {layout.MODEL}/: {runfolder.in_words(error)}"
        return _lacking(end, f"{why}; what hosts saved lies in {where}")
    note = summary.clashes_in_words(clashes)
    return end._replace(notes=(*end.notes, note)) if note else end


def _lacking(end: summary.RunEnd, why: str) -> summary.RunEnd:
    """The end of a run without its record or its model, which has failed in any case."""
    if summary.exit_code(end):
        return end._replace(notes=(*end.notes, why))
    return end._replace(error=why)


def _unwritten(path: str, error: OSError) -> str:
    return f"the record cannot be completed: {error.filename or path}: {error.strerror or error}"


def _close_unstarted(backend: Backend, error: MusterError, screen: Screen) -> int:
    """The end of a run whose hosts were never made."""
    result = "Stopped" if isinstance(error, StoppedError) else "Failed"
    job, folder = backend.folder.job, backend.folder.path
    document = summary.incomplete(job, result, error.exit_code, error.headline)
    path = os.path.join(folder, SUMMARY)
    try:
        summary.write(path, document)
    except OSError as unwritten:
        screen.say(f"muster local: {_unwritten(path, unwritten)}")
    stopped_by = error.message.removeprefix("stopped by ")
    stopped = f"Stopped: {stopped_by} (exit code {error.exit_code})"
    screen.say(f"FAILED {error.headline}" if result == "Failed" else stopped)
    if error.fix:
        screen.say(f"Fix: {error.fix}")
    _flush(backend.request, document, screen)
    return error.exit_code

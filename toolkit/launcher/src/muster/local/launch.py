"""From a request to its exit code: prepares the run, starts the hosts, waits, and reports."""

from __future__ import annotations

import json
import os
import sys
import time

from muster.commands.arguments import UsageError
from muster.local import preparation, runfolder, summary
from muster.local.environment import NETNS
from muster.local.hosts import LIMIT_S, Hosts, start_hosts
from muster.local.orders import Orders
from muster.local.preparation import Prepared
from muster.local.progress import Progress, Tail
from muster.local.request import Request
from muster.local.screen import Screen
from muster.local.signals import Signals
from muster.spec.errors import ConfigError, MusterError, StoppedError

STOP_MARGIN_S = 1.0


def launch(request: Request) -> int:
    """Runs the job; returns its exit code. Raises UsageError before anything has started."""
    signals = Signals()
    screen = Screen(request.as_json, os.environ)
    try:
        prepared = _prepare(request, screen, signals)
    except StoppedError as error:
        screen.say(f"muster local: {error.message}")
        return error.exit_code
    _tell_differences(prepared, screen)
    try:
        if prepared.isolation == NETNS:
            from muster.local.provision import provision_hosts

            provision_hosts(request, prepared.folder, screen, signals)
    except MusterError as error:
        return _close_unstarted(prepared, error, screen)
    return _run(prepared, screen, signals)


def _prepare(request: Request, screen: Screen, signals: Signals) -> Prepared:
    """Makes the run folder and fills it; what cannot be run leaves none behind."""
    try:
        keys = preparation.distribution_keys(request)
    except ConfigError as error:
        problems = "; ".join(map(str, error.problems))
        raise UsageError(problems, error.fix) from None
    folder = runfolder.make_run_folder(request.program, request.output)
    try:
        isolation = preparation.choose_isolation(request, folder, keys, screen.say)
        prepared = preparation.prepare(request, folder, isolation, keys, signals.check)
    except (UsageError, StoppedError):
        runfolder.discard(folder)
        raise
    runfolder.link_latest(folder)
    hosts = f"{request.hosts} host{'' if request.hosts == 1 else 's'}"
    where = summary.shown(folder.path)
    screen.say(f"muster local: {request.program} on {hosts}, record in {where}")
    return prepared


def _tell_differences(prepared: Prepared, screen: Screen) -> None:
    from muster.local.differences import differences

    screen.say(f"muster local: isolation {prepared.isolation}, which differs from SageMaker in:")
    for sentence in differences(prepared.request, prepared.isolation):
        screen.say(f"  - {sentence}")


def _run(prepared: Prepared, screen: Screen, signals: Signals) -> int:
    from muster.local.session import Session

    request, folder = prepared.request, prepared.folder
    began = time.monotonic()
    orders = preparation.make_orders(prepared, os.environ)
    hosts = start_hosts(orders._replace(lock=folder.lock))
    progress = Progress(request.host_names)
    tail = Tail(os.path.join(folder.path, runfolder.EVENTS))
    session = Session(
        signals, hosts, progress, tail, screen, request.timeout_s, stop_limit_s(request)
    )
    try:
        session.run()
    finally:
        hosts.close(0 if session.ending.abandoned else LIMIT_S)
        tail.close()
    ends = tuple(
        summary.HostEnd(name, hosts.statuses.get(place))
        for place, name in enumerate(request.host_names)
    )
    end = summary.RunEnd(
        hosts=ends,
        ending=session.ending,
        isolation=prepared.isolation,
        seconds=time.monotonic() - began,
        timeout_s=request.timeout_s,
        error=hosts.error,
        error_code=hosts.error_code,
        notes=tuple(hosts.notes),
        facts=hosts.facts,
        hints=_hints(orders, hosts),
    )
    return _close(prepared, end, progress, screen, hosts.ready)


def _hints(orders: Orders, hosts: Hosts) -> tuple[str, ...]:
    """What a person can do with containers that are still there."""
    if orders.containers is None:
        return ()
    from muster.local.docker_names import KEPT_ALL, LEFT_NOTHING, look_commands, remove_command

    run, left = orders.containers.run, hosts.facts.get("left")
    if left == KEPT_ALL:
        names = [host.name for host in orders.hosts]
        return tuple(look_commands(run, orders.containers.image, names))
    if left == LEFT_NOTHING:
        return ()
    return ("containers of this run may be left; to remove them:", f"  {remove_command(run)}")


def stop_limit_s(request: Request) -> float:
    """How long a host may take from SIGTERM to its end, as its own `train` sees it."""
    from muster.spec.deadlines import parse_deadlines

    environ = {**os.environ, **request.environ}
    local_mode = request.instance_type.startswith("local")
    return parse_deadlines(environ, local_mode)[0].stop_total_s + STOP_MARGIN_S


def _close(
    prepared: Prepared, end: summary.RunEnd, progress: Progress, screen: Screen, were_ready: bool
) -> int:
    """Completes the record and tells where everything lies; a failure's own block comes last."""
    folder, names = prepared.folder, prepared.request.host_names
    path = os.path.join(folder.path, runfolder.SUMMARY)
    try:
        document = summary.complete(path, end, folder.job)
    except OSError as error:
        end = _unrecorded(end, _unwritten(path, error))
        document = summary.compose(path, end, folder.job)
    screen.clear()
    if end.error:
        what = "" if were_ready else "the hosts could not be made: "
        screen.say(f"muster local: {what}{end.error}")
    for note in end.notes:
        screen.say(f"muster local: {note}")
    if disagreement := summary.disagreement(end):
        screen.say(f"muster local: {disagreement}")
    model = os.path.join(folder.base(summary.leader_of(document, names)), "model")
    lines = [*summary.table(end, progress), *summary.places(folder.path, model), *end.hints]
    screen.say("\n".join([f"muster local: {summary.verdict(end)}", *lines]))
    screen.pump.release()
    screen.flush()
    if prepared.request.as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    return summary.exit_code(end)


def _unrecorded(end: summary.RunEnd, why: str) -> summary.RunEnd:
    """The end of a run without a record, which has failed in any case."""
    if summary.exit_code(end):
        return end._replace(notes=(*end.notes, why))
    return end._replace(error=why)


def _unwritten(path: str, error: OSError) -> str:
    return f"the record cannot be completed: {error.filename or path}: {error.strerror}"


def _close_unstarted(prepared: Prepared, error: MusterError, screen: Screen) -> int:
    """The end of a run whose hosts were never made."""
    result = "Stopped" if isinstance(error, StoppedError) else "Failed"
    job, folder = prepared.folder.job, prepared.folder.path
    document = summary.incomplete(job, result, error.exit_code, error.headline)
    path = os.path.join(folder, runfolder.SUMMARY)
    try:
        summary.write(path, document)
    except OSError as unwritten:
        screen.say(f"muster local: {_unwritten(path, unwritten)}")
    screen.say(f"FAILED {error.headline}" if result == "Failed" else f"STOPPED {error.message}")
    if error.fix:
        screen.say(f"Fix: {error.fix}")
    screen.flush()
    if prepared.request.as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    return error.exit_code

"""From a request to its exit code: prepares the run, starts the hosts, waits, and reports."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from muster.commands.arguments import UsageError
from muster.local import environment, runfolder, summary, tree
from muster.local.environment import NETNS, PROCESS
from muster.local.orders import HostOrder, Orders
from muster.local.progress import Progress, Tail
from muster.local.provision import provision_hosts
from muster.local.request import Request
from muster.local.rootfs import ML, is_below
from muster.local.runfolder import RunFolder, make_run_folder
from muster.local.screen import Screen
from muster.spec.errors import ConfigError, MusterError

STOP_MARGIN_S = 1.0


class Prepared(NamedTuple):
    """A run whose trees are written and whose hosts can be started."""

    request: Request
    folder: RunFolder
    isolation: str
    addresses: Mapping[str, str]
    shared: Mapping[str, str]


def train_command() -> tuple[str, ...]:
    """What runs as PID 1 of a host, as `train` does in a container."""
    return (sys.executable, "-m", "muster", "train")


def launch(request: Request, train: tuple[str, ...] | None = None) -> int:
    """Runs the job; returns its exit code. Raises UsageError before anything has started.

    `train`: another program in the place of `train`, for tests of this package alone.
    """
    try:
        keys = distribution_keys(request)
    except ConfigError as error:
        raise UsageError(error.message, error.fix) from None
    screen = Screen(request.as_json, os.environ)
    folder = make_run_folder(request.program, request.output)
    hosts = f"{request.hosts} host{'' if request.hosts == 1 else 's'}"
    screen.say(
        f"muster local: {request.program} on {hosts}, record in {summary.shown(folder.path)}"
    )
    try:
        isolation = choose_isolation(request, folder, screen)
        prepared = prepare(request, folder, isolation, keys)
    except UsageError:
        runfolder.discard(folder)
        raise
    runfolder.link_latest(folder)
    _tell_differences(prepared, screen)
    try:
        if isolation == NETNS:
            provision_hosts(request, folder, screen)
    except MusterError as error:
        screen.say(f"muster local: {error.headline}\n  {error.fix}")
        screen.flush()
        return error.exit_code
    return _run(prepared, train or train_command(), screen)


def choose_isolation(request: Request, folder: RunFolder, screen: Screen) -> str:
    """The isolation asked for, else namespaces where a trial shows that they work."""
    if request.isolation == PROCESS:
        return PROCESS
    from muster.local.hosts import why_not_isolated

    reason = unsuitable(folder.path) or why_not_isolated(folder.path)
    if not reason:
        return NETNS
    if request.isolation == NETNS:
        raise UsageError(
            f"--isolation netns is not possible here: {reason}", "use --isolation process"
        )
    screen.say(f"muster local: no namespaces here ({reason}): hosts are plain processes")
    return PROCESS


def unsuitable(run_folder: str) -> str:
    """Why the run folder cannot be seen by hosts with an /opt/ml of their own, or ""."""
    if is_below(run_folder, [ML]):
        return f"the run folder {run_folder} lies below {ML}, which each host has of its own"
    return ""


def prepare(
    request: Request, folder: RunFolder, isolation: str, keys: Mapping[str, str]
) -> Prepared:
    """Packs the code and writes every host's tree; `keys` switch the distribution on.

    Raises UsageError.
    """
    from muster.local import sourcecode

    archive = os.path.join(folder.path, runfolder.SOURCE)
    sourcecode.pack(request.source_dir, archive, folder.path)
    interface = environment.interface_of(isolation)
    for host in request.host_names:
        documents = {
            "resourceconfig.json": tree.resource_config(request, host, interface),
            "inputdataconfig.json": tree.input_data_config(tuple(request.channels)),
            "hyperparameters.json": tree.hyperparameters(request, keys, folder.job, archive),
        }
        tree.write_tree(folder.base(host), documents, request.channels)
        os.makedirs(folder.host(host, "site"), exist_ok=True)
    os.makedirs(os.path.join(folder.path, "logs"), exist_ok=True)
    addresses = environment.addresses(isolation, request.host_names)
    shared = environment.run_variables(request, folder, isolation, addresses)
    return Prepared(request, folder, isolation, addresses, shared)


def distribution_keys(request: Request) -> dict[str, str]:
    """The hyperparameters that switch the distribution on. Raises ConfigError."""
    if request.distribution is None:
        return {}
    from muster.sdk.distribution import to_hyperparameters

    keys = to_hyperparameters(
        request.distribution,
        processes_per_host=request.processes_per_host,
        instance_type=request.instance_type,
    )
    if keys and request.groups:  # all groups take part unless the dictionary names some
        names = [group.name for group in request.groups]
        keys.setdefault("sagemaker_distribution_instance_groups", json.dumps(names))
    return keys


def _tell_differences(prepared: Prepared, screen: Screen) -> None:
    from muster.local.differences import differences

    screen.say(f"muster local: isolation {prepared.isolation}, which differs from SageMaker in:")
    for sentence in differences(prepared.request, prepared.isolation):
        screen.say(f"  - {sentence}")


def _run(prepared: Prepared, train: tuple[str, ...], screen: Screen) -> int:
    from muster.local.hosts import start_hosts
    from muster.local.session import Session

    request, folder = prepared.request, prepared.folder
    began = time.monotonic()
    hosts = start_hosts(make_orders(prepared, train, os.environ))
    progress = Progress(request.host_names)
    tail = Tail(os.path.join(folder.path, runfolder.EVENTS))
    session = Session(hosts, progress, tail, screen, request.timeout_s, stop_limit_s(request))
    try:
        ending = session.run()
    finally:
        hosts.close()
        tail.close()
    ends = tuple(
        summary.HostEnd(name, hosts.statuses.get(place))
        for place, name in enumerate(request.host_names)
    )
    seconds = time.monotonic() - began
    end = summary.RunEnd(ends, ending, prepared.isolation, seconds, request.timeout_s, hosts.error)
    return _close(prepared, end, progress, screen)


def make_orders(prepared: Prepared, train: tuple[str, ...], caller: Mapping[str, str]) -> Orders:
    """What the holder is to start."""
    request, folder, isolation = prepared.request, prepared.folder, prepared.isolation
    hosts = tuple(
        HostOrder(
            name=name,
            address=prepared.addresses[name],
            argv=train,
            environ=environment.host_environ(
                caller, request, folder, name, prepared.shared, isolation
            ),
            cwd="/" if isolation == NETNS else folder.host(name),
            base=folder.base(name),
            output=-1,
            errors=-1,
        )
        for name in request.host_names
    )
    if isolation == PROCESS:
        return Orders(False, hosts)
    kept = environment.kept_paths(caller)
    return Orders(True, hosts, kept, (folder.path,), request.channels)


def stop_limit_s(request: Request) -> float:
    """How long a host may take from SIGTERM to its end, as its own `train` sees it."""
    from muster.spec.deadlines import parse_deadlines

    environ = {**os.environ, **request.environ}
    local_mode = request.instance_type.startswith("local")
    return parse_deadlines(environ, local_mode)[0].stop_total_s + STOP_MARGIN_S


def _close(prepared: Prepared, end: summary.RunEnd, progress: Progress, screen: Screen) -> int:
    """Completes the record and tells where everything lies; a failure's own block comes last."""
    folder, names = prepared.folder, prepared.request.host_names
    path = os.path.join(folder.path, runfolder.SUMMARY)
    document = summary.complete(path, end, folder.job)
    screen.clear()
    if end.error:
        screen.say(f"muster local: the hosts could not be made: {end.error}")
    if disagreement := summary.disagreement(end):
        screen.say(f"muster local: {disagreement}")
    model = os.path.join(folder.base(summary.leader_of(document, names)), "model")
    lines = [*summary.table(end, progress), *summary.places(folder.path, model)]
    screen.say("\n".join([f"muster local: {summary.verdict(end)}", *lines]))
    screen.pump.release()
    screen.flush()
    if prepared.request.as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    return summary.exit_code(end)

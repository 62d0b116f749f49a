"""Everything that a run needs on disk and in memory before its hosts are started."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from muster.commands.arguments import UsageError
from muster.local import environment, runfolder, tree
from muster.local.docker_request import DOCKER
from muster.local.environment import NETNS, PROCESS
from muster.local.orders import Containers, HostOrder, Orders
from muster.local.request import Request
from muster.local.rootfs import ML, is_below
from muster.local.runfolder import RunFolder


class Prepared(NamedTuple):
    """A run whose trees are written and whose hosts can be started."""

    request: Request
    folder: RunFolder
    isolation: str
    addresses: Mapping[str, str]
    shared: Mapping[str, str]


def choose_isolation(
    request: Request, folder: RunFolder, keys: Mapping[str, str], say: Callable[[str], None]
) -> str:
    """The isolation asked for, else namespaces where a trial shows that they work.

    Raises UsageError where it cannot hold the job.
    """
    if request.docker:
        if clash := unsuitable(folder.path):
            raise UsageError(clash, "name another one with --output")
        from muster.local.docker_preflight import preflight

        preflight(request.docker, say)
        return DOCKER
    apart = "" if request.hosts == 1 else needs_hosts_apart(request, keys)
    if request.isolation == PROCESS:
        if apart:
            raise UsageError(apart, "use --isolation netns or docker, or --hosts 1")
        return PROCESS
    from muster.local.hosts import why_not_isolated

    reason = unsuitable(folder.path) or why_not_isolated(folder.path)
    if not reason:
        return NETNS
    if request.isolation == NETNS:
        raise UsageError(
            f"--isolation netns is not possible here: {reason}", "use --isolation process"
        )
    if apart:
        raise UsageError(f"{apart}, and there are no namespaces here: {reason}", "use --hosts 1")
    say(f"muster local: no namespaces here ({reason}): hosts are plain processes")
    return PROCESS


def needs_hosts_apart(request: Request, keys: Mapping[str, str]) -> str:
    """Why several hosts must have a network and a name of their own each, or "".

    Open MPI knows hosts by their addresses and names, and files of hosts that share /dev/shm clash.
    """
    from muster.contract.distribution import choose_distribution
    from muster.contract.findings import Findings
    from muster.contract.hyperparameters import decode_hyperparameters
    from muster.spec.distribution import Mpi

    findings = Findings()
    document = tree.hyperparameters(request, keys, "", "")
    found = choose_distribution(decode_hyperparameters(document, findings), True, findings)
    if not isinstance(found, Mpi):
        return ""
    return (
        f"{found.option} starts mpirun, which takes several hosts that are plain processes of one "
        "machine for one host"
    )


def unsuitable(run_folder: str) -> str:
    """Why the run folder cannot be seen by hosts with an /opt/ml of their own, or ""."""
    if is_below(run_folder, [ML]):
        return f"the run folder {run_folder} lies below {ML}, which each host has of its own"
    return ""


def prepare(
    request: Request,
    folder: RunFolder,
    isolation: str,
    keys: Mapping[str, str],
    check: Callable[[], None],
) -> Prepared:
    """Packs the code and writes every host's tree; `keys` switch the distribution on.

    `check` is called again and again, and may raise to end it. Raises UsageError.
    """
    from muster.local import sourcecode

    archive = os.path.join(folder.path, runfolder.SOURCE)
    sourcecode.pack(request.source_dir, archive, folder.path, check)
    check()
    interface = environment.interface_of(isolation)
    for host in request.host_names:
        documents = {
            "resourceconfig.json": tree.resource_config(request, host, interface),
            "inputdataconfig.json": tree.input_data_config(tuple(request.channels)),
            "hyperparameters.json": tree.hyperparameters(request, keys, folder.job, archive),
        }
        tree.write_tree(folder.base(host), documents, request.channels, isolation == DOCKER)
        if isolation != DOCKER:
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
        elsewhere=any(key.startswith("sagemaker_") for key in request.hyperparameters),
    )
    if keys and request.groups:  # all groups take part unless the dictionary names some
        names = [group.name for group in request.groups]
        keys.setdefault("sagemaker_distribution_instance_groups", json.dumps(names))
    return keys


def make_orders(prepared: Prepared, caller: Mapping[str, str]) -> Orders:
    """What the holder is to start."""
    request, folder, isolation = prepared.request, prepared.folder, prepared.isolation
    hosts = tuple(
        HostOrder(
            name=name,
            address=prepared.addresses.get(name, ""),
            argv=train_command(isolation),
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
    if request.docker:
        made_of = Containers(os.urandom(4).hex(), folder.path, **request.docker._asdict())
        return Orders(False, hosts, channels=request.channels, containers=made_of)
    kept = environment.kept_paths(caller)
    return Orders(True, hosts, kept, (folder.path,), request.channels)


def train_command(isolation: str) -> tuple[str, ...]:
    """What runs as PID 1 of a host; in a container it is the image's, behind its entrypoint."""
    if isolation == DOCKER:
        return ("train",)
    return (sys.executable, "-m", "muster", "train")

"""Everything that a run needs on disk and in memory before its hosts are started."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

from muster.arguments import UsageError
from muster.local import environment, tree
from muster.local.backends.base import Backend
from muster.local.orders import HostOrder, Orders
from muster.local.record import runfolder
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from muster.run.base.record import LOGS
from muster.types.distribution import Distribution
from muster.types.errors import ConfigError
from muster.types.values import NamedTuple

MOST_RANKS = 4  # for each processor, unless --oversubscribe is given


class Prepared(NamedTuple):
    """A run whose trees are written and whose hosts can be started."""

    request: Request
    folder: RunFolder
    backend: Backend
    addresses: Mapping[str, str]
    shared: Mapping[str, str]
    groups: tuple[str, ...] = ()  # control groups of the hosts, with --memory


def choose_backend(
    request: Request, folder: RunFolder, keys: Mapping[str, str], say: Callable[[str], None]
) -> Backend:
    """What the hosts of the run are made of. Raises UsageError where it cannot hold the job."""
    from muster.local.backends.choice import choose

    apart = "" if request.hosts == 1 else needs_hosts_apart(request, keys)
    return choose(request, folder, apart, say)


def needs_hosts_apart(request: Request, keys: Mapping[str, str]) -> str:
    """Why several hosts must have a network and a name of their own each, or "".

    Open MPI knows hosts by their addresses and names, and files of hosts that share /dev/shm clash.
    """
    from muster.types.distribution import Mpi

    found = asked_distribution(request, keys)
    if not isinstance(found, Mpi):
        return ""
    return (
        f"{found.option} starts mpirun, which takes several hosts that are plain processes of one "
        "machine for one host"
    )


def asked_distribution(request: Request, keys: Mapping[str, str]) -> Distribution:
    """The distribution as the hosts will understand it; what is wrong with it they will say."""
    from muster.contract.findings import Findings
    from muster.contract.request.distribution import choose_distribution
    from muster.contract.request.hyperparameters import decode_hyperparameters

    findings = Findings()
    document = tree.hyperparameters(request, keys, "", "")
    return choose_distribution(decode_hyperparameters(document, findings), True, findings)


def refuse_too_many(request: Request, keys: Mapping[str, str]) -> None:
    """Raises UsageError for more ranks than this machine can run in a useful time."""
    from muster.types.distribution import Single

    option, processors = asked_distribution(request, keys), len(os.sched_getaffinity(0))
    ranks = request.hosts
    if not isinstance(option, Single):
        each = option.processes_per_host or 1
        ranks = getattr(option, "processes", None) or request.hosts * each
    if ranks > MOST_RANKS * processors and not request.oversubscribe:
        raise UsageError(
            f"{ranks} ranks on {processors} processors: over {MOST_RANKS} for each would stand in "
            "one another's way",
            f"ask for at most {MOST_RANKS * processors}, or add --oversubscribe",
        )


def pack_source(request: Request, folder: RunFolder, check: Callable[[], None]) -> None:
    """Packs the code beside what an earlier run left in the folder, for `runfolder.clear`.

    `check` is called again and again, and may raise to end it. Raises UsageError and OSError.
    """
    from muster.local.code import sourcecode
    from muster.local.code.module import entry_point

    archive = os.path.join(folder.path, runfolder.FRESH_SOURCE)
    checkpoint = request.checkpoint or folder.path
    more = dict([entry_point(request.module)]) if request.module else {}
    left_out = (folder.path, checkpoint)
    sourcecode.pack(request.source_dir, archive, left_out, check, more, request.ignored)
    os.makedirs(checkpoint, exist_ok=True)


def prepare(
    request: Request,
    folder: RunFolder,
    backend: Backend,
    keys: Mapping[str, str],
    check: Callable[[], None],
) -> Prepared:
    """Writes every host's tree; `keys` switch the distribution on.

    `check` may raise to end it. Raises OSError.
    """
    check()
    archive = os.path.join(folder.path, runfolder.SOURCE)
    for host in request.host_names:
        for path in (folder.host(host), folder.host(host, LOGS)):
            os.mkdir(path, runfolder.PRIVATE)
        files = documents(request, keys, host, backend.interface, folder.job, archive)
        backend.tree(request, folder, host, files)
    addresses = backend.addresses(request.host_names)
    shared = environment.run_variables(request, folder, backend, addresses)
    return Prepared(request, folder, backend, addresses, shared)


def documents(
    request: Request, keys: Mapping[str, str], host: str, interface: str, job: str, source: str
) -> dict[str, Mapping[str, object]]:
    """One host's files of input/config, by name."""
    return {
        "resourceconfig.json": tree.resource_config(request, host, interface),
        "inputdataconfig.json": tree.input_data_config(tuple(request.channels)),
        "hyperparameters.json": tree.hyperparameters(request, keys, job, source),
    }


def checked_keys(request: Request) -> dict[str, str]:
    """`distribution_keys`, with what is wrong with the size or with them as a UsageError."""
    try:
        keys = distribution_keys(request)
    except ConfigError as error:
        raise UsageError("; ".join(map(str, error.problems)), error.fix) from None
    refuse_too_many(request, keys)
    return keys


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
    """What the host supervisor is to start."""
    request, folder, backend = prepared.request, prepared.folder, prepared.backend
    groups = prepared.groups or ("",) * request.hosts
    hosts = tuple(
        HostOrder(
            name=name,
            address=prepared.addresses.get(name, ""),
            argv=backend.train,
            environ=environment.host_environ(
                caller, request, folder, name, prepared.shared, backend
            ),
            cwd=backend.place(folder, name),
            base=folder.base(name),
            output=-1,
            errors=-1,
            group=group,
        )
        for name, group in zip(request.host_names, groups, strict=True)
    )
    return backend.orders(request, folder, hosts, caller)

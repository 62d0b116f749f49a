"""Everything that a run needs on disk and in memory before its hosts are started."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from muster.arguments import UsageError
from muster.local import environment, tree
from muster.local.backends.base import Backend
from muster.local.orders import HostOrder, Orders
from muster.local.record import layout, runfolder
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request
from muster.types.distribution import Distribution
from muster.types.errors import ConfigError
from muster.types.run_files import LOGS

if TYPE_CHECKING:
    from socket import socket

    from muster.local.faults.spec import Fault

MOST_RANKS = 4  # for each processor, unless --oversubscribe is given


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
    """The distribution as the hosts will understand it. Raises UsageError for what they refuse."""
    from muster.contract.findings import Findings
    from muster.contract.request.distribution import choose_distribution
    from muster.contract.request.hyperparameters import decode_hyperparameters

    findings = Findings()
    document = tree.hyperparameters(request, keys, "", "")
    found = choose_distribution(decode_hyperparameters(document, findings), True, findings)
    for problem in findings.problems:
        raise UsageError(str(problem), problem.fix)
    return found


def asked_ranks(request: Request, keys: Mapping[str, str]) -> int:
    """How many ranks the job is to have, as far as the request says."""
    from muster.types.distribution import Single

    option = asked_distribution(request, keys)
    if isinstance(option, Single):
        return request.hosts
    return getattr(option, "processes", None) or request.hosts * (option.processes_per_host or 1)


def settled_faults(request: Request, keys: Mapping[str, str], isolation: str) -> tuple[Fault, ...]:
    """The faults of the request as hosts of this kind can suffer them. Raises UsageError."""
    if not request.faults:
        return ()
    from muster.local.faults.plan import settle

    if request.model_plan:
        raise UsageError("--fault needs a job: --model-plan runs none", "leave out one of them")
    if request.checkpoint and any(fault.disks for fault in request.faults):
        raise UsageError(
            "--fault disk: all hosts share the folder of --checkpoint, on this machine's disk",
            "leave out --checkpoint: each host then has checkpoints of its own",
        )
    ranks, exact = known_ranks(request, keys)
    return settle(request.faults, request.host_names, ranks, exact, isolation)


def settle_debug(request: Request, keys: Mapping[str, str], isolation: str) -> socket | None:
    """The port for --debug, if that is asked for and can be. Raises UsageError."""
    if request.debug is None:
        return None
    from muster.local.debugger.asked import check_debug
    from muster.local.debugger.desk import listen

    if request.model_plan:
        why = f"{request.debug.option} needs a job: --model-plan runs none"
        raise UsageError(why, "leave out one of them")
    check_debug(request.debug, *known_ranks(request, keys), isolation)
    return listen(request.debug)


def known_ranks(request: Request, keys: Mapping[str, str]) -> tuple[int, bool]:
    """`asked_ranks`, and whether it is exact: without a number of processes a device each may get
    a rank."""
    from muster.types.distribution import Single

    option = asked_distribution(request, keys)
    given = (getattr(option, name, None) for name in ("processes", "processes_per_host"))
    return asked_ranks(request, keys), isinstance(option, Single) or any(given)


def refuse_crowd(ranks: int, oversubscribe: bool) -> int:
    """How many processors this machine has. Raises UsageError for more ranks than it can run in a
    useful time."""
    processors = len(os.sched_getaffinity(0))
    if ranks > MOST_RANKS * processors and not oversubscribe:
        raise UsageError(
            f"{ranks} ranks on {processors} processors: over {MOST_RANKS} for each would stand in "
            "one another's way",
            f"ask for at most {MOST_RANKS * processors}, or add --oversubscribe",
        )
    return processors


def pack_source(request: Request, folder: RunFolder, check: Callable[[], None]) -> None:
    """Packs the code beside what an earlier run left in the folder, for `runfolder.clear`.

    `check` is called again and again, and may raise to end it. Raises UsageError and OSError.
    """
    checkpoint = request.checkpoint or folder.path
    archive = os.path.join(folder.path, layout.FRESH_SOURCE)
    pack_into(request, archive, (folder.path, checkpoint), check)
    os.makedirs(checkpoint, exist_ok=True)


def pack_into(
    request: Request, archive: str, left_out: tuple[str, ...], check: Callable[[], None]
) -> None:
    """Packs the code, and the entry point of a module. Raises UsageError and OSError."""
    from muster.local.code import sourcecode
    from muster.local.code.module import entry_point

    more = dict([entry_point(request.module)]) if request.module else {}
    sourcecode.pack(request.source_dir, archive, left_out, check, more, request.ignored)


def write_trees(backend: Backend, keys: Mapping[str, str], check: Callable[[], None]) -> None:
    """Writes every host's tree; `keys` switch the distribution on.

    `check` may raise to end it. Raises OSError.
    """
    check()
    folder = backend.folder
    for host in backend.request.host_names:
        for path in (folder.host(host), folder.host(host, LOGS)):
            os.mkdir(path, runfolder.PRIVATE)
        source = os.path.join(folder.path, layout.SOURCE)
        backend.tree(host, documents(backend, keys, host, source))


def documents(
    backend: Backend, keys: Mapping[str, str], host: str, source: str
) -> dict[str, Mapping[str, object]]:
    """One host's files of input/config, by name. `source`: where the code is."""
    request, job = backend.request, backend.folder.job
    return {
        "resourceconfig.json": tree.resource_config(request, host, backend.interface),
        "inputdataconfig.json": tree.input_data_config(tuple(request.channels)),
        "hyperparameters.json": tree.hyperparameters(request, keys, job, source),
    }


def checked_keys(request: Request) -> dict[str, str]:
    """`distribution_keys` of a job that this machine can run. Raises UsageError."""
    keys = distribution_keys(request)
    refuse_crowd(asked_ranks(request, keys), request.oversubscribe)
    return keys


def distribution_keys(request: Request) -> dict[str, str]:
    """The hyperparameters that switch the distribution on. Raises UsageError."""
    if request.distribution is None:
        return {}
    from muster.sdk.distribution import to_hyperparameters

    try:
        keys = to_hyperparameters(
            request.distribution,
            processes_per_host=request.processes_per_host,
            instance_type=request.instance_type,
            elsewhere=any(key.startswith("sagemaker_") for key in request.hyperparameters),
        )
    except ConfigError as error:
        raise UsageError("; ".join(map(str, error.problems)), error.fix) from None
    if keys and request.groups:  # all groups take part unless the dictionary names some
        names = [group.name for group in request.groups]
        keys.setdefault("sagemaker_distribution_instance_groups", json.dumps(names))
    return keys


def make_orders(
    backend: Backend,
    caller: Mapping[str, str],
    groups: tuple[str, ...] = (),
    faults: Sequence[Fault] = (),
) -> Orders:
    """What the host supervisor is to start. `groups`: control groups of the hosts, () for none.
    `faults`: a host whose disk will be full has one of its own."""
    request, folder = backend.request, backend.folder
    addresses = backend.addresses()
    shared = environment.run_variables(backend, addresses)
    full = {name for fault in faults for name in fault.disks}
    hosts = tuple(
        HostOrder(
            name=name,
            address=addresses.get(name, ""),
            argv=backend.train,
            environ=environment.host_environ(caller, name, shared, backend),
            cwd=backend.place(name),
            base=folder.base(name),
            output=-1,
            errors=-1,
            group=group,
            disk=name in full,
        )
        for name, group in zip_longest(request.host_names, groups, fillvalue="")
    )
    return backend.orders(hosts, caller)

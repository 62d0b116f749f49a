"""Which options and parameters of Open MPI a request may set: the allow-list as tables.

There are three kinds: those that are allowed; those that never are, since they change which hosts,
programs, agents or files take part; and all others, which MUSTER_MPI_RAW_OPTIONS=1 lets through.
Promises: S02, S06. Source: the manuals of mpirun 4.1 and 5.0.
"""

from __future__ import annotations

import re

from muster.types.values import NamedTuple

ALLOWED, RAW, NEVER = "allowed", "raw", "never"

DAEMONS = {4: "orted", 5: "prted"}  # main versions whose command line is known -> launch daemon
MCA = ("mca", "gmca", "prtemca", "pmixmca")  # what stands before a parameter's name and value
ALIASES = {
    "c": "np", "n": "np", "N": "npernode", "H": "host", "machinefile": "hostfile",
    "v": "verbose", "q": "quiet", "h": "help", "V": "version", "d": "debug-devel",
    "wd": "wdir", "am": "tune", "rf": "rankfile", "s": "preload-binary",
    "oversub": "oversubscribe", "bynode": "map-by-node", "report-pid": "report-uri",
}  # fmt: skip
PLACING = {  # option -> the words that its value may begin with
    "bind-to": (
        *("none", "hwthread", "hwt", "core", "l1cache", "l2cache", "l3cache"),
        *("socket", "package", "numa", "board"),
    ),
    "map-by": (
        *("slot", "hwthread", "core", "l1cache", "l2cache", "l3cache", "socket", "package"),
        *("numa", "board", "ppr"),
    ),
    "rank-by": ("slot",),
}
DISPLAYS = ("map", "allocation", "bind", "bindings", "topo")
FLAGS = ("display-map", "display-allocation", "report-bindings", "verbose", "use-hwthread-cpus")
# There are as many slots as ranks; 5.0.11 loses ranks of other hosts beside `--map-by core`.
SLOTS = ("oversubscribe", "nooversubscribe")
OUTPUT = ("tag-output", "timestamp-output", "merge-stderr-to-stdout", "output")
NOTHING = ("allow-run-as-root", "quiet")  # the first is on our line, 5.0 does not know the second
SPELLINGS = (*PLACING, *FLAGS, *SLOTS, *OUTPUT, *NOTHING, *MCA, "display", "x", "NCCL_DEBUG")


class Refusal(NamedTuple):
    values: int  # how many words after it belong to it
    why: str


def _each(names: str, values: int, why: str) -> dict[str, Refusal]:
    return dict.fromkeys(names.split(), Refusal(values, why))


_HOSTS = "the hosts, and how many ranks each holds, are the job's"
_PROGRAM = "what runs, and where, is the job's"
_AGENT = "hosts are reached through muster alone"
_DEBUG = "another program would stand between mpirun and the ranks"
REFUSED = {
    **_each("np npernode npersocket host hostfile default-hostfile rankfile ppr", 1, _HOSTS),
    **_each("add-host add-hostfile max-vm-size", 1, _HOSTS),
    **_each("pernode nolocal novm do-not-launch do-not-resolve", 0, _HOSTS),
    **_each("map-by-node byboard loadbalance", 0, "ranks are numbered host after host"),
    **_each("app path wdir preload-files personality execute", 1, _PROGRAM),
    **_each("preload-binary set-cwd-to-session-dir", 0, _PROGRAM),
    **_each("prefix pmix-prefix app-prefix launch-agent dvm dvm-uri ompi-server hnp", 1, _AGENT),
    **_each("app-pmix-prefix dvm-master-uri rtos runtime-options", 1, _AGENT),
    **_each("noprefix no-prefix daemonize system-server-first system-server-only", 0, _AGENT),
    **_each("tune amca", 1, "it takes options from an unchecked file"),
    **_each("omca gomca gprtemca gpmixmca", 2, "write --mca, --prtemca or --pmixmca"),
    **_each("output-filename output-directory report-uri", 1, "logs are written by muster alone"),
    **_each("xml-file debug-daemons-file", 1, "logs are written by muster alone"),
    **_each("help version", 0, "mpirun would print a text and start no rank"),
    **_each("debug debug-devel tv stop-on-exec stop-in-init", 0, _DEBUG),
    **_each("debugger xterm exec-agent stdin", 1, _DEBUG),
}

_WHOLE = (*REFUSED, *SPELLINGS, *(name for name in ALIASES if len(name) > 1))

# Families of parameters that change how ranks exchange data, or what is reported of it.
_FAMILIES = (
    "accelerator|allocator|bml|btl|coll|fbtl|fcoll|fs|gds|hwloc|io|memory|mpi|mpool|mtl|op|osc|"
    "patcher|pcompress|pml|rcache|reachable|sharedfp|smsc|topo|ucx|vprotocol"
)
_SINGLE = (
    "opal_(common_ucx|cuda|leave_pinned|warn|abort)[a-z_]*|opal_net_private_ipv4|"
    "(orte|prte)_(abort_on_non_zero_status|base_help_aggregate|(tag|timestamp)_output|"
    "report_bindings|display_alloc|display_map|show_progress)"
)
_ALLOWED = rf"({_FAMILIES})(_[a-z0-9_]+)?|{_SINGLE}"  # compiled at first use
# Who starts what where, what is loaded, who listens, and where trusted files lie.
_FORBIDDEN = (
    r"(plm|ess|ras|odls|oob|rml|routed|ptl|psec|sec|schizo|filem|dfs|pmix|pnet|plog)(_.*)?|"
    r"rmaps_(rank_file|seq|lsf).*|.*(agent|prefix|host_?file|machine_?file|rank_?file).*|"
    r".*(component_path|param_file|param_path|envar_file|override_param|env_list).*|"
    r".*(tmpdir|session_dir|dash_host|node_regex|hnp|_uri|daemon|xterm|fork|preload).*|"
    r".*(orted|prted|launch|debugger|singleton).*|"
    r"(orte|prte)_(server|local|remote|top|set|exec).*"
)
DAEMON_LINK = ("oob_tcp_if_include", "oob_tcp_if_exclude")  # daemons use the job's own interface
INSTEAD = {
    "rmaps_base_mapping_policy": "--map-by",
    "rmaps_default_mapping_policy": "--map-by",
    "hwloc_base_binding_policy": "--bind-to",
    "hwloc_default_binding_policy": "--bind-to",
}
# Of a launcher around us: mpirun would take itself for a part of it.
FOREIGN = (
    *("SLURM_", "SLURMD_", "PMI_", "PMI2_", "PMIX_", "PRTE_", "ORTE_", "HYDRA_", "MPIRUN_"),
    *("PBS_", "LSB_", "LSF_", "JSM_", "FLUX_", "COBALT_", "SGE_", "PE_HOSTFILE"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_APP_CTX_", "OMPI_NUM_APP_CTX"),
    *("OMPI_FIRST_RANKS", "OMPI_FILE_LOCATION", "OMPI_COMMAND", "OMPI_ARGV"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_plm", "OMPI_MCA_pmix"),
)
# Not by -x either. OPAL_* of an image say where its Open MPI lies; MUSTER_* are the launcher's.
_NEVER_ASKED = (*FOREIGN, "OPAL_", "OMPI_MCA_", "MUSTER_")
_PARAMETER = r"(?:OMPI|PRTE|PMIX)_MCA_(.+)"


def parameter_kind(name: str) -> str:
    """ALLOWED, RAW or NEVER for the name of an MCA parameter."""
    lowered = name.lower()
    if re.fullmatch(_FORBIDDEN, lowered):
        return NEVER
    return ALLOWED if re.fullmatch(_ALLOWED, lowered) and lowered not in INSTEAD else RAW


def variable_kind(name: str) -> str:
    """The same for a variable, which scripts and mpirun beside them would get."""
    parameter = re.fullmatch(_PARAMETER, name)
    if parameter is not None:
        return parameter_kind(parameter[1])
    return NEVER if name.startswith(_NEVER_ASKED) else ALLOWED


def shortened_from(name: str) -> str:
    """The option that mpirun 5 would take an unknown `name` (no dashes in front) for, "" for none.

    It knows an option by any beginning that fits one alone. Only those are looked for that no list
    may ask for, or that muster reads or writes itself.
    """
    begin = name.lower().replace("_", "-")
    return next((one for one in _WHOLE if one.lower().startswith(begin)), "")

"""What custom MPI options may not change: hosts, placement, programs, agents, launch daemons.

All else is handed to mpirun. Sources: the manuals of mpirun 4.1 and 5.0, `--help full` of 4.1.4,
the options that 5.0.11 defines.
"""

from __future__ import annotations

import re

DAEMONS = {4: "orted", 5: "prted"}  # main versions whose command line is known -> launch daemon
MCA = ("mca", "gmca", "prtemca", "pmixmca")  # options of a name and a value
ALIASES = {
    "c": "np", "n": "np", "N": "npernode", "H": "host", "machinefile": "hostfile",
    "v": "verbose", "q": "quiet", "h": "help", "V": "version", "d": "debug-devel",
    "wd": "wdir", "am": "tune", "rf": "rankfile", "s": "preload-binary",
    "oversub": "oversubscribe", "report-pid": "report-uri", "cf": "cartofile",
    "mapby": "map-by", "rankby": "rank-by", "bindto": "bind-to",
}  # fmt: skip

_HOSTS = "the hosts, and how many ranks each holds, are the job's"
_ORDER = "ranks are numbered host after host"
_PROGRAM = "what runs, and where, is the job's"
_AGENT = "hosts are reached through muster alone"
_ENVIRONMENT = "scripts have their own host's environment; write -x NAME=VALUE"
_DEBUG = "another program would stand between mpirun and the ranks"
REFUSED = {
    name: why
    for names, why in (
        ("np npernode npersocket host hostfile default-hostfile rankfile ppr", _HOSTS),
        ("add-host add-hostfile max-vm-size", _HOSTS),
        ("pernode nolocal novm do-not-launch do-not-resolve", _HOSTS),
        ("bynode bycore map-by-node byboard loadbalance", _ORDER),
        ("app path wdir preload-files personality execute preload-binary", _PROGRAM),
        ("set-cwd-to-session-dir index-argv-by-rank", _PROGRAM),
        ("prefix pmix-prefix app-prefix app-pmix-prefix noprefix no-prefix launch-agent", _AGENT),
        ("dvm dvm-uri dvm-master-uri ompi-server hnp rtos runtime-options singleton", _AGENT),
        ("daemonize debug-daemons debug-daemons-file leave-session-attached", _AGENT),
        ("system-server system-server-first system-server-only report-events", _AGENT),
        ("fwd-environment prepend-env append-env unset-env", _ENVIRONMENT),
        ("tmpdir", "muster chooses where Open MPI leaves its files"),
        ("tune amca file", "it takes options from an unchecked file"),
        ("omca gomca gprtemca gpmixmca", "write --mca, --prtemca or --pmixmca"),
        # 5.0 takes the word after output-proctable for its value, 4.1 for the program to start.
        ("report-uri xml-file output-proctable", "logs are written by muster alone"),
        ("help version", "mpirun would print a text and start no rank"),
        ("debug debug-devel tv stop-on-exec stop-in-init stop-in-app", _DEBUG),
        ("debugger xterm exec-agent stdin", _DEBUG),
    )
    for name in names.split()
}
# Left out, with a line that says why.
_SLOT = "every rank has its slot"
_STREAMS = "output of ranks does not pass through mpirun; MUSTER_LOG_PREFIX=1 marks their lines"
LEFT_OUT = {
    # Slots and ranks are as many; 5.0.11 loses ranks of other hosts beside `--map-by core`.
    **dict.fromkeys(("oversubscribe", "nooversubscribe", "byslot"), _SLOT),
    **dict.fromkeys(("tag-output", "timestamp-output", "merge-stderr-to-stdout"), _STREAMS),
    **dict.fromkeys(("output", "output-filename", "output-directory"), _STREAMS),
    "allow-run-as-root": "muster sets it",
    "quiet": "Open MPI 5 does not know it",
}
WITH_VALUE = ("output", "output-filename", "output-directory")
# Options without a value: mpirun would start the word after one as the job's program. An option of
# neither list may be one of them, so no word may follow it either.
FLAGS, VALUED = (
    names.split()
    for names in (
        "bind-to-core bind-to-socket continuous disable-recovery display-allocation display-comm "
        "display-comm-finalize display-devel-allocation display-devel-map display-diffable-map "
        "display-map display-topo enable-instant-on-support enable-recovery fwd-mpirun-port "
        "get-stack-traces hetero-nodes no-aggregate-help no-app-prefix no-ready-msg parsable "
        "parseable report-bindings report-child-jobs-separately report-state-on-timeout set-sid "
        "show-progress soft use-hwthread-cpus use-regexp verbose xml",
        "arch cartofile cpu-list cpu-set cpus-per-proc cpus-per-rank display forward-signals "
        "gpu-support initial-errhandler max-restarts memory-alloc-kinds pset spawn-timeout "
        "stream-buffering timeout with-ft",
    )
)
SHOWN = {  # -> the word of `--display` for it
    "display-map": "map",
    "display-allocation": "allocation",
    "display-topo": "topo",
    "report-bindings": "bindings",
}
PLACING = ("map-by", "rank-by", "bind-to")
# mpirun knows a word of these values by its beginning, too.
PLACEMENTS = ("node", "dist", "seq", "rankfile")
MODIFIERS = ("nolocal", "file", "qfile", "donotlaunch", "do-not-launch")

# Who starts what where, what is loaded, who listens, and where trusted files lie.
_FORBIDDEN = (
    r"(plm|ess|ras|odls|oob|rml|routed|ptl|psec|sec|schizo|filem|dfs|pmix|pnet|plog)(_.*)?|"
    r"rmaps|rmaps_(rank_file|seq|lsf|ppr).*|if_do_not_resolve|"
    r"rmaps_base_(bynode|bycore|pattern|pernode|n_per.*|no_schedule.*)|"
    r".*(agent|prefix|host_?file|machine_?file|rank_?file).*|"
    r".*(component_path|param_file|param_path|envar_file|override_param|env_list).*|"
    r".*(tmpdir|session_dir|dash_host|node_regex|hnp|_uri|daemon|xterm|fork|preload).*|"
    r".*(orted|prted|launch|debugger|singleton).*|.*(max_vm_size|no_?vm.*|xml_file)|"
    r"(orte|prte)_(server|local|remote|top|set|exec).*"
)
LEFT_OUT_PARAMETERS = {
    **dict.fromkeys(("plm_rsh_no_tree_spawn", "plm_ssh_no_tree_spawn"), "muster sets it"),
    **dict.fromkeys(
        ("oob_tcp_if_include", "oob_tcp_if_exclude"), "launch daemons use the interface of the job"
    ),
}
# Parameters that say the same as an option, which is then checked, and ours of that name gives way.
OPTION_OF = {
    "rmaps_base_mapping_policy": "map-by",
    "rmaps_default_mapping_policy": "map-by",
    "rmaps_base_schedule_policy": "map-by",
    "rmaps_base_ranking_policy": "rank-by",
    "rmaps_default_ranking_policy": "rank-by",
    "hwloc_base_binding_policy": "bind-to",
    "hwloc_default_binding_policy": "bind-to",
}
# Of a launcher around this one: mpirun would take itself for a part of it.
FOREIGN = (
    *("SLURM_", "SLURMD_", "PMI_", "PMI2_", "PMIX_", "PRTE_", "ORTE_", "HYDRA_", "MPIRUN_"),
    *("PBS_", "LSB_", "LSF_", "JSM_", "FLUX_", "COBALT_", "SGE_", "PE_HOSTFILE"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_APP_CTX_", "OMPI_NUM_APP_CTX"),
    *("OMPI_FIRST_RANKS", "OMPI_FILE_LOCATION", "OMPI_COMMAND", "OMPI_ARGV"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_plm", "OMPI_MCA_pmix"),
)
# -x may not set them either. OPAL_* of an image say where its Open MPI lies; MUSTER_* are muster's.
FORBIDDEN_VARIABLES = (*FOREIGN, "OPAL_", "OMPI_MCA_", "MUSTER_")
_KNOWN = (*REFUSED, *LEFT_OUT, *FLAGS, *VALUED, *PLACING, *MCA, *(a for a in ALIASES if a[1:]))


def short_name(parameter: str) -> str:
    """The name of an MCA parameter without its project, with which Open MPI knows it, too."""
    return re.sub("^(ompi|opal|orte|prte|pmix|oshmem)_", "", parameter)


def parameter_refused(name: str) -> bool:
    """Whether the MCA parameter of that name, in lower case, may not be set."""
    names = (name, short_name(name))
    return not re.fullmatch(r"[a-z0-9_.]+", name) or any(re.fullmatch(_FORBIDDEN, n) for n in names)


def placement_refused(value: str) -> bool:
    """Whether a value of `--map-by` or `--rank-by` contradicts the table of ranks."""
    head, *modifiers = re.split("[:,]", value.lower())
    return _begins(head, PLACEMENTS) or any(
        _begins(modifier.partition("=")[0], MODIFIERS) for modifier in modifiers
    )


def whole_name(name: str) -> str:
    """The option above that mpirun 5 would take an unknown `name` for, "" for none: it knows an
    option by any beginning that fits one alone."""
    if name in FLAGS:
        return ""
    return next((one for one in _KNOWN if one.lower().startswith(name)), "")


def _begins(word: str, words: tuple[str, ...]) -> bool:
    return bool(word) and any(one.startswith(word) or word.startswith(one) for one in words)

"""The custom MPI options of a request as words for the mpirun at hand."""

from __future__ import annotations

from collections.abc import Iterator

from muster.plan.openmpi.version import main_version
from muster.plan.variables import MASTER_VARIABLES, RANK_VARIABLES
from muster.types.distribution import Mpi
from muster.types.errors import ConfigError
from muster.types.mpi_options import Option, read_request
from muster.types.mpi_rules import MCA, PLACING, SHOWN, short_name
from muster.types.values import NamedTuple

MPI_KEY = "sagemaker_mpi_custom_mpi_options"
DATA_PARALLEL_KEY = "sagemaker_distributed_dataparallel_custom_mpi_options"
# Of two parameters that exclude each other, the user's wins.
_EXCLUDES = {"btl_tcp_if_exclude": "btl_tcp_if_include"}
_WORDS_IN_4 = {"package": "socket", "hwt": "hwthread"}
# As which parameters mpirun 4 hands its own options on to its daemons.
_HANDED_ON_IN_4 = {
    "bind-to": ("hwloc_base_binding_policy",),
    "map-by": ("rmaps_base_mapping_policy",),
    "rank-by": ("rmaps_base_ranking_policy",),
    "use-hwthread-cpus": ("hwloc_base_use_hwthreads_as_cpus",),
    "report-bindings": ("orte_report_bindings", "hwloc_base_report_bindings"),
    "display-map": ("rmaps_base_display_map", "orte_display_map"),
    "display-allocation": ("ras_base_display_alloc", "orte_display_alloc"),
    "display-topo": ("rmaps_base_display_topo_with_map",),
}


class MpiOptions(NamedTuple):
    """Words for mpirun, and what muster must know of them.

    `names`: the MCA parameters, and the options `map-by` and `bind-to`, that they set: they replace
    the plan's of the same name. `parameters`: name -> value of MCA parameters, which mpirun hands
    to its daemons. `variables`: what `-x NAME=VALUE` asks for, which scripts get from their own
    host. `warnings`: lines for the log.
    """

    arguments: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    parameters: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def read_options(option: Mpi, version: str, *, several: bool = True) -> MpiOptions:
    """The custom options of `option` for Open MPI `version`.

    `several`: as in `read_request`. Raises ConfigError with all that is wrong.
    """
    data_parallel = option.option in ("pytorchddp", "smdistributed.dataparallel")
    where = DATA_PARALLEL_KEY if data_parallel else MPI_KEY
    request = read_request(option.custom_options, where, several=several)
    if request.problems:
        raise ConfigError(request.problems)
    warnings = [*request.warnings]
    variables = dict(request.variables)
    in_4 = main_version(version) == 4
    words: list[str] = []
    handed: list[str] = []
    names: set[str] = set()
    parameters: dict[str, str] = {}
    for name, values in _in_4(request.options) if in_4 else request.options:
        if in_4 and name == "pmixmca":  # it reads those parameters from the environment alone
            variables[f"PMIX_MCA_{values[0]}"] = values[1]
            continue
        if in_4 and name in ("prtemca", "display"):
            what = f"--{name} {values[0]} is left out"
            warnings.append(f"{what}: Open MPI {version} does not know it")
            continue
        words += [f"--{name}", *values]
        if name in MCA:
            names |= {values[0], short_name(values[0])}
            parameters[values[0]] = values[1]
        else:
            names.add("bind-to" if name.startswith("bind-to") else name)
            handed_on = _HANDED_ON_IN_4.get(name, ()) if in_4 else ()
            parameters.update(dict.fromkeys(handed_on, values[0] if values else "1"))
        handed.append(" ".join([f"--{name}", *values[:-1]]))
    if handed:
        warnings.append(f"handed to mpirun as given: {', '.join(handed)}")
    if "map-by" in names:  # whatever the ranks are mapped by, they are numbered host after host
        words += ["--rank-by", "slot"]
        if in_4:
            parameters["rmaps_base_ranking_policy"] = "slot"
    names |= {_EXCLUDES[name] for name in names & _EXCLUDES.keys()}
    for name in (*RANK_VARIABLES, *MASTER_VARIABLES):  # every rank gets its own
        if variables.pop(name, None) is not None:
            warnings.append(f"-x {name} is left out: muster sets it for every rank")
    return MpiOptions(
        tuple(words),
        frozenset(names),
        tuple(parameters.items()),
        tuple(variables.items()),
        tuple(warnings),
    )


def _in_4(options: tuple[Option, ...]) -> Iterator[Option]:
    """The options in the words of Open MPI 4, those that it does not know among them."""
    for name, values in options:
        if name == "display":
            known = {part: Option(option) for option, part in SHOWN.items()}
            for part in values[0].split(","):
                yield known.get(part, Option(name, (part,)))
        elif name in PLACING:
            head, colon, modifiers = values[0].partition(":")
            yield Option(name, (_WORDS_IN_4.get(head.lower(), head) + colon + modifiers,))
        else:
            yield Option(name, values)

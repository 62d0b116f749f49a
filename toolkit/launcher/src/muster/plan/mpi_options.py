"""The custom MPI options of a request as words for the mpirun at hand.

Open MPI 4 and 5 spell some options in different ways; what one of them does not know is said and
left out. Promises: S06, B31.
"""

from __future__ import annotations

from muster.plan.mpi_version import main_version
from muster.plan.variables import MASTER_VARIABLES, RANK_VARIABLES
from muster.types.distribution import Mpi
from muster.types.errors import ConfigError
from muster.types.mpi_options import MpiRequest, Option, read_request
from muster.types.values import NamedTuple

MPI_KEY = "sagemaker_mpi_custom_mpi_options"
DATA_PARALLEL_KEY = "sagemaker_distributed_dataparallel_custom_mpi_options"
# Of two parameters that exclude each other, the user's wins.
_EXCLUDES = {"btl_tcp_if_exclude": "btl_tcp_if_include"}
_SHOWS_IN_4 = {
    "map": "--display-map",
    "allocation": "--display-allocation",
    "bind": "--report-bindings",
    "bindings": "--report-bindings",
}
_SHOWS_IN_5 = {
    "--display-map": "map",
    "--display-allocation": "allocation",
    "--report-bindings": "bindings",
}
# As which parameters mpirun 4 hands its own options on to its daemons.
_HANDED_ON_IN_4 = {
    "--bind-to": ("hwloc_base_binding_policy",),
    "--map-by": ("rmaps_base_mapping_policy",),
    "--rank-by": ("rmaps_base_ranking_policy",),
    "--use-hwthread-cpus": ("hwloc_base_use_hwthreads_as_cpus",),
    "--report-bindings": ("orte_report_bindings", "hwloc_base_report_bindings"),
    "--display-map": ("rmaps_base_display_map", "orte_display_map"),
    "--display-allocation": ("ras_base_display_alloc", "orte_display_alloc"),
}
_WORDS_IN_4 = {"package": "socket", "hwt": "hwthread"}


class MpiOptions(NamedTuple):
    """The custom MPI options of a job, in the words of the Open MPI that is here.

    `arguments`: words for mpirun. `names`: the MCA parameters, and the options `map-by` and
    `bind-to`, that they set: they replace the plan's of the same name. `parameters`: name -> value
    of MCA parameters, which mpirun hands to its daemons. `variables`: what `-x NAME=VALUE` asks
    for, which scripts get from their own host. `warnings`: lines for the log.
    """

    arguments: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    parameters: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


def read_options(
    option: Mpi, version: str, *, raw: bool = False, several: bool = True
) -> MpiOptions:
    """The custom options of `option` for Open MPI `version`.

    `raw`, `several`: as in `read_request`. Raises ConfigError with all that is wrong.
    """
    data_parallel = option.option in ("pytorchddp", "smdistributed.dataparallel")
    where = DATA_PARALLEL_KEY if data_parallel else MPI_KEY
    request = read_request(option.custom_options, where, raw=raw, several=several)
    if request.problems:
        raise ConfigError(request.problems)
    return _translate(request, version)


def _translate(request: MpiRequest, version: str) -> MpiOptions:
    say = _in_4 if main_version(version) == 4 else _in_5
    words: list[str] = []
    warnings = [*request.warnings]
    variables = dict(request.variables)
    shown: dict[str, None] = {}
    parameters: dict[str, str] = {}
    for one in request.given:
        if one.switch in ("--display", *_SHOWS_IN_5):
            shown.update(dict.fromkeys(_shows(one)))
            continue
        if one.switch == "--pmixmca" and main_version(version) == 4:
            variables[f"PMIX_MCA_{one.name}"] = one.value or ""
            continue
        said = say(one)
        if not said:
            warnings.append(
                f"{one.switch} {one.name} is left out: Open MPI {version} does not know it"
            )
        elif one.name:
            parameters[one.name] = one.value or ""
        words += said
    words += _display(shown, version, warnings)
    names = set(parameters)
    names |= {_EXCLUDES[name] for name in names & _EXCLUDES.keys()}
    names |= {one.switch[2:] for one in request.given if one.switch in ("--map-by", "--bind-to")}
    if "--map-by" in words:  # whatever the ranks are mapped by, they are numbered host after host
        words += ["--rank-by", "slot"]
    if main_version(version) == 4:
        parameters.update(_handed_on(words))
    return MpiOptions(
        tuple(words),
        frozenset(names),
        tuple(parameters.items()),
        _without_ranks(variables, warnings),
        tuple(warnings),
    )


def _handed_on(words: list[str]) -> dict[str, str]:
    """The parameters that mpirun 4 makes of its options."""
    pairs = zip(words, [*words[1:], ""], strict=False)
    return {
        name: "1" if value.startswith("--") or not value else value
        for word, value in pairs
        for name in _HANDED_ON_IN_4.get(word, ())
    }


def _in_4(one: Option) -> tuple[str, ...]:
    """The words of one option for Open MPI 4, () for what it does not know."""
    if one.switch == "--prtemca" or one.name.startswith("prte_"):
        return ()
    if one.switch in ("--map-by", "--bind-to"):
        head, colon, rest = (one.value or "").partition(":")
        head = _WORDS_IN_4.get(head.lower(), head)
        return (one.switch, f"{head}{colon}{rest}")
    return _as_given(one)


def _in_5(one: Option) -> tuple[str, ...]:
    """The same for Open MPI 5."""
    return () if one.name.startswith("orte_") else _as_given(one)


def _as_given(one: Option) -> tuple[str, ...]:
    middle = (one.name,) if one.name else ()
    last = () if one.value is None else (one.value,)
    return (one.switch, *middle, *last, *one.values)


def _shows(one: Option) -> tuple[str, ...]:
    """What is to be displayed, in the words of Open MPI 5."""
    if one.switch != "--display":
        return (_SHOWS_IN_5[one.switch],)
    parts = (one.value or "").lower().split(",")
    return tuple("bindings" if part == "bind" else part for part in parts)


def _display(shown: dict[str, None], version: str, warnings: list[str]) -> tuple[str, ...]:
    """One option for all that is to be displayed; 5 takes it only once."""
    if not shown:
        return ()
    if main_version(version) != 4:
        return ("--display", ",".join(shown))
    for part in shown:
        if part not in _SHOWS_IN_4:
            warnings.append(f"--display {part} is left out: Open MPI {version} does not know it")
    return tuple(_SHOWS_IN_4[part] for part in shown if part in _SHOWS_IN_4)


def _without_ranks(variables: dict[str, str], warnings: list[str]) -> tuple[tuple[str, str], ...]:
    """The variables less those that say who a rank is: every rank gets its own."""
    own = (*RANK_VARIABLES, *MASTER_VARIABLES)
    for name in own:
        if variables.pop(name, None) is not None:
            warnings.append(f"-x {name} is left out: muster sets it for every rank")
    return tuple(variables.items())

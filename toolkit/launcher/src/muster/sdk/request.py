"""What `Muster` of SDK v3 is asked for -> the hyperparameters that travel in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping

from muster.contract.findings import Findings
from muster.contract.request.distribution import MPI_OPTIONS, SMDDP_OPTIONS, choose_distribution
from muster.contract.request.hyperparameters import decode_hyperparameters
from muster.contract.request.modeltrainer import OURS, read_keys
from muster.sdk.distribution import to_hyperparameters
from muster.sdk.refusal import RequestError
from muster.types.errors import ConfigError
from muster.types.mpi_options import read_request
from muster.types.names import did_you_mean
from muster.types.plain import short

KNOWN = ("distribution", "processes_per_host", "custom_mpi_options")
_NAMES_OF_THE_SDK = {  # what Torchrun and MPI of the SDK call it
    "process_count_per_node": "processes_per_host",
    "mpi_additional_options": "custom_mpi_options, one text",
    "smp": 'the dictionary {"smdistributed": {"modelparallel": ...}, "torch_distributed": ...}',
}


def distributed_fields(
    distribution: Mapping[str, object] | str | None,
    processes_per_host: int | None,
    custom_mpi_options: str | None,
    unknown: Mapping[str, object],
) -> dict[str, str]:
    """The keys as `train` reads them, each JSON-encoded and without an apostrophe.

    The SDK hands them to a shell between apostrophes that it does not escape. `unknown`: all other
    arguments, of which `muster`, such keys made before, is taken when nothing else is given.
    Raises RequestError with all that is wrong: names, values, combinations, and the options of
    mpirun.
    """
    if OURS in unknown:
        given = (distribution, processes_per_host, custom_mpi_options)
        return _again(unknown[OURS], len(unknown) == 1 and given == (None, None, None))
    findings = Findings()
    for name in unknown:
        _refuse(name, findings)
    keys: dict[str, str] = {}
    try:
        if distribution is None:
            findings.problem("Muster", "no distribution is given", "such as Muster('mpi')")
        else:
            keys = to_hyperparameters(
                distribution,
                processes_per_host=processes_per_host,
                custom_mpi_options=custom_mpi_options,
            )
        _check_mpi_options(keys, findings)
    except ConfigError as error:
        findings.problems += error.problems
    if findings.problems:
        raise RequestError(findings.problems)
    return _without_apostrophes(keys)


def _again(made: object, alone: bool) -> dict[str, str]:
    """A request that comes back, as from `Muster(**muster.model_dump())`, checked again."""
    findings = Findings()
    if not alone:
        what = f"{OURS}= is a whole request, as model_dump() gives it, and stands alone"
        findings.problem("Muster", what, f"leave it out, or all else: {', '.join(KNOWN)}")
    keys = read_keys(made, "Muster", findings)
    if not findings.problems:
        # what only several hosts refuse is for `train` to say: their number is not known here
        choose_distribution(decode_hyperparameters(keys, findings), False, findings, several=False)
    if findings.problems:
        raise RequestError(findings.problems)
    return _without_apostrophes({name: _encoded(text) for name, text in keys.items()})


def _encoded(text: str) -> str:
    try:
        json.loads(text)
    except ValueError:  # a text that stands as it is
        return json.dumps(text)
    return text


def _without_apostrophes(keys: Mapping[str, str]) -> dict[str, str]:
    return {name: text.replace("'", "\\u0027") for name, text in keys.items()}


def _refuse(name: str, findings: Findings) -> None:
    fix = _NAMES_OF_THE_SDK.get(name)
    guess = f", did you mean {fix}?" if fix else did_you_mean(name, KNOWN)
    what = f"unknown option {short(name)}{guess}"
    findings.problem("Muster", what, f"known: {', '.join(KNOWN)}")


def _check_mpi_options(keys: Mapping[str, str], findings: Findings) -> None:
    for name in (MPI_OPTIONS, SMDDP_OPTIONS):
        text = json.loads(keys.get(name, '""'))
        # what only several hosts refuse is for `train` to say: their number is not known here
        findings.problems += read_request(text, "custom_mpi_options", several=False).problems

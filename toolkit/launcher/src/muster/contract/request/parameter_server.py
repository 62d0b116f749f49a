"""What the request says about parameter servers: MXNet's hyperparameters."""

from __future__ import annotations

from muster.contract.findings import Findings
from muster.contract.request.hyperparameters import Hyperparameters
from muster.types.distribution import ParameterServer
from muster.types.plain import whole_number

PORT = "_ps_port"
VERBOSE = "_ps_verbose"


def parameter_server(
    hyperparameters: Hyperparameters, option: str, processes: int | None, findings: Findings
) -> ParameterServer:
    """The option with MXNet's two numbers, which are hyperparameters of the script as well."""
    return ParameterServer(
        option,
        processes,
        _number(hyperparameters, PORT, (1, 65_535), "a port", findings),
        _number(hyperparameters, VERBOSE, (0, 9), "a level", findings),
    )


def _number(
    hyperparameters: Hyperparameters,
    key: str,
    limits: tuple[int, int],
    what: str,
    findings: Findings,
) -> int | None:
    value = hyperparameters.user.get(key)
    if value is None:
        return None
    found = None if isinstance(value, bool | float) else whole_number(str(value), *limits)
    if found is None:
        what = f"{what} from {limits[0]} to {limits[1]}"
        findings.expected(key, what, value, "send a number in this range, or leave it out")
    return found

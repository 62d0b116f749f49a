"""What the request says about parameter servers: MXNet's hyperparameters."""

from __future__ import annotations

from muster.contract.findings import Findings
from muster.contract.request.hyperparameters import Hyperparameters
from muster.types.distribution import ParameterServer
from muster.types.plain import short

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
    text = str(value)
    low, high = limits
    good = not isinstance(value, bool | float) and text.isascii() and text.isdecimal()
    if good and len(text) < 12 and low <= int(text) <= high:
        return int(text)
    what = f"expected {what} from {low} to {high}, got {short(value)}"
    findings.problem(key, what, "send a number in this range, or leave it out")
    return None

"""A tensor parameter server for PyTorch: servers own the parameters, workers push and pull.

    from muster_parameter_server import ParameterServer, ServerOptimizer, sgd, adam

Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server";
Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server".
Torch is imported when the first name that needs it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster_parameter_server.client.worker import ParameterServer
    from muster_parameter_server.errors import (
        AgreementError,
        DeadlineError,
        ParameterServerError,
        ProtocolError,
        ServerLostError,
        SettingsError,
        WorkerLostError,
    )
    from muster_parameter_server.optimizer import ServerOptimizer
    from muster_parameter_server.options import adam, adamw, sgd

__all__ = [
    "AgreementError",
    "DeadlineError",
    "ParameterServer",
    "ParameterServerError",
    "ProtocolError",
    "ServerLostError",
    "ServerOptimizer",
    "SettingsError",
    "WorkerLostError",
    "adam",
    "adamw",
    "sgd",
]

_HOMES = {
    "ParameterServer": "client.worker",
    "ServerOptimizer": "optimizer",
    **dict.fromkeys(("sgd", "adam", "adamw"), "options"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    return getattr(home, name)

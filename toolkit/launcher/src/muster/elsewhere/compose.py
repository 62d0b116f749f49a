"""An engine's host as the request that `train` reads: SageMaker's documents and variables. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping

from muster.contract.engines import Detected
from muster.contract.engines.sagemaker import MARK
from muster.elsewhere.network import Whereabouts
from muster.local import tree
from muster.local.environment import asked_variables, is_of_a_job
from muster.local.request import Request
from muster.types.deadlines import variable
from muster.types.engine import Engine
from muster.types.names import listed
from muster.types.run_files import of_an_outer_record

STOP, HOLD = variable("stop_total_s"), variable("stop_hold_s")
HOLD_S = 2
UTC = "%Y-%m-%d %H:%M:%S UTC"
# what the caller's environment may say, but not to the job
_DONE_WITH = (
    "MUSTER_ENGINE",
    "MUSTER_HOSTS",
    "MUSTER_HOST_INDEX",
    "MUSTER_HOST_COUNT",
    "MUSTER_LEADER",
    "MUSTER_JOB_NAME",
    "MUSTER_ATTEMPT",
    "MUSTER_JOB_SECRET_FILE",
    "MUSTER_SHIM",
    "MUSTER_ISOLATION",
    "MUSTER_SOURCE_DIR",
    "MUSTER_INVENTED_NAMES",
    "MUSTER_DEBUG",
    "MUSTER_SCRIPT_ARGUMENTS",
    "MUSTER_KEEP_SPELLING",
)


def documents(
    request: Request,
    detected: Detected,
    place: Whereabouts,
    keys: Mapping[str, str],
    source: str,
    left_s: float | None = None,
) -> dict[str, Mapping[str, object]]:
    """The files of input/config, by name. `keys` switch the distribution on; `source`: where the
    code is; `left_s`: until the engine ends the job."""
    engine = detected.engine
    resource: dict[str, object] = {
        "current_host": place.names[engine.host_index],
        "current_instance_type": request.instance_type,
        "hosts": list(place.names),
        "network_interface_name": place.interface,
    }
    parameters = tree.hyperparameters(request, keys, engine.job, source)
    if not engine.job:
        del parameters["sagemaker_job_name"]
    found: dict[str, Mapping[str, object]] = {
        "resourceconfig.json": resource,
        "inputdataconfig.json": tree.input_data_config(tuple(request.channels)),
        "hyperparameters.json": parameters,
        MARK: {"engine": engine.name, "why": detected.why, "understood": understood(engine)},
    }
    if engine.attempt is not None:
        found["init-config.json"] = {"jobRunInfo": {"jobRunNumber": engine.attempt}}
    if left_s is not None:
        limit = {"MaxRuntimeInSeconds": max(1, int(left_s))}
        found["trainingjobconfig.json"] = {"StoppingCondition": limit}
    return found


def understood(engine: Engine) -> dict[str, tuple[str, str]]:
    """What the engine said -> (the value, the variable or file that said it)."""
    deadline = engine.deadline_s
    values = {
        "hosts": listed(engine.names),
        "count": str(engine.host_count),
        "tasks": str(engine.host_count),  # others are refused
        "index": str(engine.host_index),
        "leader": engine.leader,
        "slots": "" if engine.slots is None else str(engine.slots),
        "job": engine.job,
        "attempt": str(engine.attempt),
        "deadline": "" if deadline is None else time.strftime(UTC, time.gmtime(deadline)),
        "secret": engine.secret_file,
    }
    return {what: (values.get(what, ""), source) for what, source in engine.origins.items()}


def environ(
    caller: Mapping[str, str],
    request: Request,
    engine: Engine,
    place: Whereabouts,
    base: str,
    run_dir: str,
    secret: str,
) -> dict[str, str]:
    """The environment of this host's `train`: the caller's without a job's leftovers, and the
    run's. What the caller set by himself stays."""
    outer = (*of_an_outer_record(caller), *_DONE_WITH)
    kept = {
        name: value for name, value in caller.items() if not is_of_a_job(name) and name not in outer
    }
    made = {"SAGEMAKER_BASE_DIR": base}
    if engine.job:
        made["TRAINING_JOB_NAME"] = engine.job
    if run_dir:
        made["MUSTER_RUN_DIR"] = run_dir
    if secret:
        made["MUSTER_JOB_SECRET"] = secret
    if not engine.names:
        made["MUSTER_INVENTED_NAMES"] = "1"
    made |= asked_variables(request)
    addresses = ",".join(f"{name}={address}" for name, address in place.addresses.items())
    if addresses:
        kept.setdefault("MUSTER_HOST_ADDRESSES", addresses)
    kept.setdefault("MUSTER_LOG_PREFIX", "1")
    kept.setdefault("MUSTER_QUIET", "0" if request.verbose else "1")
    if engine.stop_s is not None:
        kept.setdefault(STOP, f"{engine.stop_s:g}")
    if engine.signals_all:
        kept.setdefault(HOLD, f"{HOLD_S}")
    return {**kept, **made, **request.environ}

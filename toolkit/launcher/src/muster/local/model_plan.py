"""`--model-plan`: the script runs as one process up to the first step of its model, which
muster_modelparallel plans for the job that was asked for in place of training it."""

from __future__ import annotations

import os

from muster.local.preparation import asked_ranks, distribution_keys
from muster.local.record.runfolder import RunFolder
from muster.local.request import Request

OUT, RANKS = "MODELPARALLEL_PLAN_OUT", "MODELPARALLEL_RANKS"  # of the library
PARAMETERS, SENT_AS = "mp_parameters", "SM_HP_MP_PARAMETERS"
FILE, PICTURE = "model-plan.json", "model-plan.html"


def planned(request: Request) -> Request:
    """The run that plans for `request`, however many ranks that has. Raises UsageError."""
    keys = distribution_keys(request)
    given = {**keys, **request.hyperparameters}
    read = {SENT_AS: given.pop(PARAMETERS)} if PARAMETERS in given else {}
    return request._replace(
        hosts=1,
        processes_per_host=None,
        groups=(),
        distribution=None,
        hyperparameters={k: v for k, v in given.items() if not k.startswith("sagemaker_")},
        environ={RANKS: str(asked_ranks(request, keys)), **read, **request.environ, OUT: FILE},
        ranks="",
        model_plan=True,
    )


def picture_of(folder: RunFolder, host: str) -> str:
    """Where the plan lies as a picture, "" where the script left none."""
    path = os.path.join(folder.base(host), "output", "data", PICTURE)
    return path if os.path.isfile(path) else ""

"""SageMaker's own files, which `train` reads: here only seen to be there."""

from __future__ import annotations

import json
from collections.abc import Mapping

from muster.contract.engines.values import Files, Values
from muster.types.engine import Engine

MARK = "muster-engine.json"  # beside files that `muster run` wrote itself
RESOURCES = "resourceconfig.json"


def read(environ: Mapping[str, str], files: Files) -> Engine | None:
    """The host as its request has it; of a request that cannot be read one host, for `train` to
    say what is wrong."""
    base = environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    path = f"{base}/input/config/{RESOURCES}"
    text = files(path)
    if not text or files(f"{base}/input/config/{MARK}"):
        return None
    try:
        document = json.loads(text)
        names = tuple(map(str, document["hosts"]))
        index = names.index(document["current_host"])
    except (ValueError, TypeError, KeyError, RecursionError):
        names, index = (), 0
    values = Values(environ)
    values.origins.update(hosts=path, index=path, count=path)
    job = values.text("job", "TRAINING_JOB_NAME")
    return values.engine("sagemaker", index, max(1, len(names)), names=names, job=job, stop_s=110.0)

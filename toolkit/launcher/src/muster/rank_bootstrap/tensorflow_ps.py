"""One parameter server of TensorFlow: `python tensorflow_ps.py`, configured by TF_CONFIG.

It serves until it is killed, which happens when the job ends: TensorFlow's servers know no end of
their own. Nothing of muster is imported.
"""

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Raises ModuleNotFoundError without tensorflow, KeyError for a TF_CONFIG without a task."""
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = config["cluster"], config["task"]
    kind, index = str(task["type"]), int(task["index"])
    tensorflow: Any = importlib.import_module("tensorflow")
    server = tensorflow.distribute.Server(
        tensorflow.train.ClusterSpec(cluster), job_name=kind, task_index=index, protocol="grpc"
    )
    sys.stdout.write(f"parameter server {index} serves at {cluster[kind][index]}\n")
    sys.stdout.flush()
    server.join()


if __name__ == "__main__":
    main()

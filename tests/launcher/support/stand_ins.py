"""Frameworks that do nothing but say what they were told: for tests of who is started and how.

Every server prints one line `serving {...}` of its role, pid and variables and then serves for
ever. No key is printed, only its hash.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.local.environment import free_ranges
from tests.launcher.support.cluster import Cluster

_SAY = """
import hashlib, json, os, signal, sys, threading, time
def say(word, **more):
    told = {k: v for k, v in os.environ.items() if k.startswith(
        ("DMLC_", "PS_", "PARAMETER_SERVER_", "CUDA_VISIBLE", "TF_CONFIG", "RANK", "WORLD_SIZE",
         "LOCAL_", "MUSTER_JOB"))}
    if "PARAMETER_SERVER_KEY" in told:
        key = told["PARAMETER_SERVER_KEY"]
        told["PARAMETER_SERVER_KEY"] = f"{len(key)} {hashlib.sha256(key.encode()).hexdigest()}"
    print(word, json.dumps({"pid": os.getpid(), "env": told, **more}), flush=True)
def end(number, frame):
    print("server ends", flush=True)
    os._exit(0)
def wait():
    signal.signal(signal.SIGUSR1, end)
    while True:
        threading.Event().wait()  # as a server does: for another thread, without a limit
"""
_TENSORFLOW = """
from stand_in import say, wait
class distribute:
    class Server:
        def __init__(self, spec, job_name, task_index, protocol):
            say("serving", role=job_name, number=task_index, spec=spec)
        def join(self):
            wait()
class train:
    @staticmethod
    def ClusterSpec(cluster):
        return cluster
"""
_MXNET = """
import os
from stand_in import say, wait
role = os.environ.get("DMLC_ROLE")
if role in ("scheduler", "server"):
    say("serving", role=role)
    wait()
"""
_PYTORCH = """
import os, socket
from stand_in import say
number = int(os.environ["PARAMETER_SERVER_INDEX"])
address, _, port = os.environ["PARAMETER_SERVER_ADDRESSES"].split(",")[number].rpartition(":")
listener = socket.create_server((address, int(port)))
say("serving", role="server", number=number)
while True:
    listener.accept()[0].close()
"""


def framework_cluster(make: Any, script: str, name: str, hosts: int = 2, **options: Any) -> Cluster:
    """A job of `parameter_server` whose processes import stand-ins, on ports that are free.

    `name`: tensorflow, mxnet or pytorch. The script may use `say` and `wait`.
    """
    option = options.pop("option", "parameter_server")
    hyperparameters = {f"sagemaker_{option}_enabled": "true", **options.pop("hyperparameters", {})}
    settings = dict(options.pop("environ", {}))
    job: Cluster = make(
        "from stand_in import say, wait\nimport os, sys, time, json\n" + textwrap.dedent(script),
        hosts=hosts,
        hyperparameters=hyperparameters,
        **options,
    )
    folder = job.folder / "frameworks"
    write_stand_ins(folder)
    servers = max(hosts, int(settings.get("MUSTER_PS_SERVERS", "1")))
    taken = set(job.ports)  # nobody listens on these yet
    while taken & set(range((worker := free_ranges(hosts + servers)[0]), worker + hosts + servers)):
        pass
    ps = worker + hosts
    job.environ.update(
        PYTHONPATH=str(folder),
        MUSTER_PS_FRAMEWORK=name,
        MUSTER_WORKER_PORT=str(worker),
        MUSTER_PS_PORT=str(ps),
        **settings,
    )
    return job


def write_stand_ins(folder: Path) -> None:
    """The modules `tensorflow`, `mxnet` and `muster_parameter_server`, and what they share."""
    package = folder / "muster_parameter_server"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(_PYTORCH)
    (folder / "stand_in.py").write_text(_SAY)
    (folder / "tensorflow.py").write_text(_TENSORFLOW)
    (folder / "mxnet.py").write_text(_MXNET)


def said(text: str, word: str) -> list[dict[str, Any]]:
    """What processes said behind that word, in order."""
    lines = (line.partition(" ") for line in text.splitlines())
    return [json.loads(rest) for first, _, rest in lines if first == word]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def task_of(told: Mapping[str, Any]) -> tuple[str, int]:
    """(type, index) of the TF_CONFIG that a process said it got."""
    task = json.loads(told["env"]["TF_CONFIG"])["task"]
    return task["type"], task["index"]

"""A job of `muster submit --on batch`, as it is rendered, on two nodes that are namespaces."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.launcher.elsewhere.kubelet import Image, Pod
from tests.launcher.elsewhere.submitting import submit
from tests.support.hosts import Networks, address, networks, skip_without_networks
from tests.support.venvs import CHECKOUT
from tests.support.waiting import wait_until

WAIT_S = 90.0
SIZE = ("--set", "queue=q", "--set", "vcpus=2", "--set", "memory=2000")
SCRIPT = """\
import json, os, sys, time
print("said", json.dumps([os.environ["SM_CURRENT_HOST_RANK"], os.environ["A"]]), flush=True)
if sys.argv[1:] == ["fail"] and os.environ["SM_CURRENT_HOST_RANK"] == "1":
    raise SystemExit(42)
time.sleep(600 if sys.argv[1:] == ["stay"] else 0)
"""


class Node(NamedTuple):
    """An instance with one container; see `kubelet.Host`."""

    folder: Path
    networks: Networks
    template: Mapping[str, Any]
    images: Mapping[str, Image]
    claims: Mapping[str, Path]
    name: str = "node"
    count: int = 2
    services: frozenset[str] = frozenset()
    data: Mapping[tuple[str, str], dict[str, bytes]] = {}


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Networks]:
    skip_without_networks()
    with networks(["node-0", "node-1"], whole=True) as found:
        yield found


def started(folder: Path, around: Networks, *arguments: str) -> list[Pod]:
    """The containers of both nodes, told what Batch tells them: of the main node's address only the
    others hear."""
    words = ("--on", "batch", "--image", "i", "--source-dir", "image:/opt/ml/code", "--hosts", "2")
    said = submit(folder, *words, *SIZE, "--env", "A=b", "--dry-run", "--", *arguments)
    assert said.code == 0, said.err
    (folder / "code" / "train.py").write_text(SCRIPT)
    (nodes,) = json.loads(said.out)["RegisterJobDefinition"]["nodeProperties"][
        "nodeRangeProperties"
    ]
    container = nodes["container"]
    pods = []
    for index in (0, 1):
        told = {"NUM_NODES": "2", "NODE_INDEX": str(index), "MAIN_NODE_INDEX": "0"}
        if index:
            told["MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = address(0)
        environ = {f"AWS_BATCH_JOB_{name}": value for name, value in told.items()}
        environ |= {"AWS_BATCH_JOB_ID": "j#0", "A": "b", "MUSTER_JOB_SECRET": "f00d" * 16}
        code = {"name": "code", "mountPath": "/opt/ml/code"}
        variables = [{"name": name, "value": value} for name, value in environ.items()]
        made = {
            "image": "i",
            "command": container["command"],
            "env": [*container["environment"], *variables],
            "volumeMounts": [code],
        }
        volumes = [{"name": "code", "persistentVolumeClaim": {"claimName": "code"}}]
        spec = {"containers": [made], "volumes": volumes, "subdomain": "none"}
        spec["terminationGracePeriodSeconds"] = 30
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        image = Image({"PATH": path}, (Path(sys.base_prefix), CHECKOUT))
        claims = {"code": folder / "code"}
        node = Node(folder / f"node-{index}", around, {"spec": spec}, {"i": image}, claims)
        pods.append(Pod(node, index, 0))
    return pods


def ended(pods: list[Pod]) -> list[int | None]:
    try:
        wait_until(lambda: all(pod.code is not None for pod in pods), WAIT_S)
        return [pod.code for pod in pods]
    finally:
        for pod in pods:
            pod.end()


def test_the_nodes_run_one_job(tmp_path: Path, around: Networks) -> None:
    pods = started(tmp_path, around)
    assert ended(pods) == [0, 0], pods[0].log + pods[1].log
    for index, pod in enumerate(pods):
        assert f'said ["{index}", "b"]' in pod.log
        assert "f00d" * 16 not in pod.log


def test_the_main_node_ends_with_the_others_code(tmp_path: Path, around: Networks) -> None:
    """It is the only one that Batch looks at."""
    pods = started(tmp_path, around, "fail")
    assert ended(pods) == [42, 42], pods[0].log + pods[1].log


def test_a_terminated_job_is_one_that_was_stopped(tmp_path: Path, around: Networks) -> None:
    pods = started(tmp_path, around, "stay")
    try:
        wait_until(lambda: all("said " in pod.log for pod in pods), WAIT_S)
        for pod in pods:
            pod.terminate()
    finally:
        found = ended(pods)
    assert found == [143, 143], pods[0].log + pods[1].log

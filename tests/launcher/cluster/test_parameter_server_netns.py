"""Parameter servers on hosts with a network each: names and ports are the contract's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.local.hosts import why_not_isolated
from tests.launcher.support.local.local_runs import Start, start
from tests.launcher.support.stand_ins import said, write_stand_ins

__all__ = ["start"]
SCRIPT = """\
import json, os, time
import tensorflow as tf
from stand_in import say
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
if task["type"] == "worker":
    tf.distribute.Server(config["cluster"], job_name="worker", task_index=task["index"],
                         protocol="grpc").join()
say("chief")
"""


@pytest.fixture(scope="module", autouse=True)
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    reason = why_not_isolated(str(tmp_path_factory.mktemp("trial")))
    if reason:
        pytest.skip(f"this machine allows no namespaces: {reason}")


def test_hosts_with_a_network_each_meet_by_name_at_the_known_ports(
    start: Start, tmp_path: Path
) -> None:
    write_stand_ins(tmp_path / "code")
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    options = ("--hosts", "3", "--distribution", "ps", "--isolation", "netns")
    run = start(
        tmp_path,
        [str(tmp_path / "code" / "train.py"), *options],
        environ={"MUSTER_PS_FRAMEWORK": "tensorflow", "MUSTER_IDLE_S": "5"},
    )
    result = run.wait()
    assert result.code == 0, result.err
    plain = "\n".join(line.partition("] ")[2] for line in result.out.splitlines())
    (chief,) = said(plain, "chief")
    assert json.loads(chief["env"]["TF_CONFIG"]) == {
        "cluster": {
            "chief": ["algo-1:2222"],
            "worker": ["algo-2:2222", "algo-3:2222"],
            "ps": ["algo-1:2223", "algo-2:2223", "algo-3:2223"],
        },
        "environment": "cloud",
        "task": {"type": "chief", "index": 0},
    }
    told = said(plain, "serving")
    assert sorted(one["role"] for one in told) == ["ps", "ps", "ps", "worker", "worker"]
    assert "[algo-2:server-1] serving" in result.out
    summary = result.summary
    assert summary["plan"]["ports"]["ps"] == 2223

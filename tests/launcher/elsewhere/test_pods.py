"""Jobs of `muster submit --on kubernetes`, as they are rendered, in pods that are namespaces."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.launcher.elsewhere.kubernetes.indexed_job import IndexedJob
from tests.launcher.elsewhere.kubernetes.kubelet import Image
from tests.launcher.elsewhere.submitting import printed
from tests.support.hosts import networks, skip_without_networks
from tests.support.venvs import CHECKOUT
from tests.support.waiting import wait_until

WAIT_S = 90.0
IMAGE = Image(
    {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "MUSTER_JOIN_S": "60"},
    (Path(sys.base_prefix), CHECKOUT),
)
SAFE = (  # what the strictest namespaces ask for
    '--set=pod.securityContext={"runAsUser":1234,"runAsGroup":1234,"runAsNonRoot":true}',
    "--set=container.securityContext.readOnlyRootFilesystem=true",
)
SCRIPT = """\
import json, os, sys, time
from pathlib import Path
rank, kept = int(os.environ["SM_CURRENT_HOST_RANK"]), Path("/mnt/checkpoint")
what = os.environ.get("WHAT", "")
if what == "fail" and rank == 1:
    raise SystemExit(42)
if what == "lost" and not (kept / "again").exists():
    (kept / f"up-{rank}").touch()
    time.sleep(600)
if what == "stay":
    print("ranks run", flush=True)
    time.sleep(600)
data = Path(os.environ["SM_CHANNEL_TRAIN"], "x").read_text()
told = [rank, os.environ["MASTER_ADDR"], data, os.getuid(), sys.argv[1:]]
print("said", json.dumps(told), flush=True)
"""
SUM = """\
import json, os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print("said", json.dumps([int(total), dist.get_world_size()]), flush=True)
dist.destroy_process_group()
"""
Start = Callable[..., IndexedJob]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Renders and starts a job of two pods; `what` is told the script by --env."""
    skip_without_networks()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    claim = tmp_path / "claim"
    (claim / "train").mkdir(parents=True)
    (claim / "train" / "x").write_text("a datum")
    (claim / "kept").mkdir()
    (claim / "kept").chmod(0o777)
    with ExitStack() as stack:

        def one(what: str, *words: str) -> IndexedJob:
            volumes = ("--channel", "train=pvc:c/train", "--checkpoint", "pvc:c/kept")
            made = printed(tmp_path, "--hosts", "2", "--env", f"WHAT={what}", *volumes, *words)
            told = made[0]["stringData"]  # what --dry-run leaves out
            told.update(
                {"secret": secrets.token_hex(32), "environ.json": json.dumps({"WHAT": what})}
            )
            name = made[-1]["metadata"]["name"]
            hosts = stack.enter_context(networks([f"{name}-0", f"{name}-1"], whole=True))
            node = IndexedJob(made, hosts, tmp_path / "pods", {"train:1": IMAGE}, {"c": claim})
            stack.callback(node.close)
            return node

        yield one


def ended(node: IndexedJob) -> str:
    """The job's result, once all of its pods have ended."""
    wait_until(node.tick, WAIT_S)
    return node.result


def logs(node: IndexedJob) -> str:
    return "\n".join(f"== {pod.name}: {pod.code}\n{pod.log}\n{pod.message}" for pod in node.pods)


def test_a_job_of_two_pods_succeeds_without_root(start: Start) -> None:
    node = start("", *SAFE, "--", "$(HOME)", "$$x")
    assert ended(node) == "Complete", logs(node)
    assert [pod.code for pod in node.pods] == [0, 0]
    for index in (0, 1):
        (line,) = [text for text in node.latest(index).log.splitlines() if "said " in text]
        rank, leader, data, user, arguments = json.loads(line.partition("said ")[2])
        assert (rank, data, user, arguments) == (index, "a datum", 1234, ["$(HOME)", "$$x"])
        assert leader, line
    secret = node.data["secret", node.name]["secret"].decode()
    assert secret not in logs(node)


@pytest.mark.torch
@pytest.mark.long
def test_ranks_of_two_pods_train_together(start: Start, tmp_path: Path) -> None:
    (tmp_path / "code" / "train.py").write_text(SUM)
    ranks = ("--distribution", "torch_distributed", "--processes-per-host", "2")
    node = start("", *SAFE, *ranks, "--oversubscribe")
    assert ended(node) == "Complete", logs(node)
    assert [pod.log.count("said [10, 4]") for pod in node.pods] == [2, 2], logs(node)


def test_a_failure_ends_the_job_at_once_and_is_what_a_person_sees(start: Start) -> None:
    node = start("fail", *SAFE)
    assert ended(node) == "PodFailurePolicy", logs(node)
    assert [pod.code for pod in node.pods] == [42, 42], logs(node)
    firsts = {pod.message.splitlines()[0] for pod in node.pods}
    (first,) = firsts
    assert first.startswith("UserScriptError: ") and "rank 1" in first, logs(node)
    assert all(len(pod.message.encode()) <= 1024 for pod in node.pods)


def test_a_lost_pod_begins_the_job_again(start: Start, tmp_path: Path) -> None:
    """It was evicted: that does not count. The other one's end does, and both begin anew."""
    node = start("lost", "--retries", "1")
    kept = tmp_path / "claim" / "kept"
    wait_until(lambda: node.tick() or len(list(kept.glob("up-*"))) == 2, WAIT_S)
    (kept / "again").touch()
    node.latest(1).conditions.add("DisruptionTarget")
    node.latest(1).end()
    assert ended(node) == "Complete", logs(node)
    assert [pod.index for pod in node.pods].count(1) == 2, logs(node)
    assert node.pods[0].code in (102, 143) and node.failures == 1, logs(node)


def test_a_running_job_is_asked_in_its_leaders_pod(start: Start) -> None:
    """Nobody names a run there: a pod has one."""
    leader = start("stay").latest(0)
    wait_until(lambda: "ranks run" in leader.log, WAIT_S, lambda: leader.log)
    wait_until(lambda: leader.asked("muster", "ps").count(" idle") == 2, WAIT_S, lambda: leader.log)
    assert "rank 1 on node-1 is at train.py:" in leader.asked("muster", "stacks", "--ranks", "1")


def test_nothing_is_left(start: Start) -> None:
    node = start("stay")
    wait_until(lambda: node.tick() or all("ranks run" in pod.log for pod in node.pods), WAIT_S)
    spaces = {os.readlink(f"/proc/{pid}/ns/pid") for pod in node.pods for pid in pod.first}
    assert len(spaces) == 2 and alive(spaces) >= 4  # a supervisor and a rank in each
    node.close()
    assert not alive(spaces)


def alive(spaces: set[str]) -> int:
    """How many processes are in these namespaces."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/ns/pid"):
        try:
            found += os.readlink(path) in spaces
        except OSError:
            pass  # it has ended meanwhile
    return found

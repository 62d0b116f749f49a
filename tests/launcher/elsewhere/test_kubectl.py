"""`muster submit --on kubernetes` and the machine's own kubectl, against a server that records."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.arguments import UsageError
from muster.submit import folder, kubernetes
from muster.submit.kubernetes_logs import PodLogs
from tests.launcher.elsewhere.kubernetes.api_server import NAMESPACE, Cluster, api_server
from tests.launcher.elsewhere.submitting import Said, submit
from tests.support.waiting import wait_until, within

INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if not shutil.which("kubectl"):
        pytest.skip("there is no kubectl on this machine")
    with api_server(tmp_path) as found:
        yield found


def asked(cluster: Cluster, *words: str) -> Said:
    """`muster submit` with the cluster as the user's own; --output run."""
    folder = cluster.kubeconfig.parent
    return submit(folder, *words, environ={"KUBECONFIG": str(cluster.kubeconfig), "TOKEN": "t0k"})


def muster(cluster: Cluster, *words: str) -> Said:
    """Another command than `submit`, in the same place."""
    argv = [sys.executable, "-m", "muster", *words]
    environ = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    done = subprocess.run(
        argv,
        cwd=cluster.kubeconfig.parent,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=within(60),
    )
    return Said(done.returncode, done.stdout, done.stderr)


def submitted(cluster: Cluster, *more: str) -> str:
    """The name of a job of two hosts that the cluster took."""
    words = ("--on", "kubernetes", "--image", "train:1", "--hosts", "2", "--output", "run", *more)
    said = asked(cluster, *words)
    assert said.code == 0, said.err
    return str(json.loads((cluster.kubeconfig.parent / "run/submitted.json").read_text())["job_id"])


def pod(cluster: Cluster, job: str, index: int, phase: str, code: int | None = None) -> str:
    """A pod as the job's controller and the kubelet would have made it."""
    name = f"{job}-{index}-abcde"
    template = cluster.kept["jobs", job]["spec"]["template"]
    labels = template["metadata"]["labels"]
    about = {"name": name, "namespace": NAMESPACE, "labels": labels}
    about["annotations"] = {INDEX: str(index)}
    status: dict[str, Any] = {"phase": phase}
    if code is not None:
        ended = {"exitCode": code, "finishedAt": f"2026-11-29T10:00:0{index}Z"}
        status["containerStatuses"] = [{"name": "muster", "state": {"terminated": ended}}]
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": status}
    cluster.kept["pods", name] = made | {"spec": template["spec"]}
    return name


def test_a_job_is_made_kept_and_taken_away(cluster: Cluster) -> None:
    """All that is made is judged first, has the secrets, and goes with the job."""
    job = submitted(cluster, "--env", "TOKEN")
    kinds = ["secrets", "configmaps", "services", "jobs"]
    posts = [one for one in cluster.asked if one.verb == "POST"]
    assert [one.path.rpartition("/")[2] for one in posts] == kinds + kinds
    assert [one.query.get("dryRun") for one in posts] == [["All"]] * 4 + [None] * 4
    assert all(one.query["fieldValidation"] == ["Strict"] for one in posts)
    assert cluster.made() == sorted(f"{kind}/{job}" for kind in kinds)
    owner = cluster.kept["jobs", job]["metadata"]["uid"]
    for kind in kinds[:-1]:
        (reference,) = cluster.kept[kind, job]["metadata"]["ownerReferences"]
        assert reference == {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": owner}
    run = cluster.kubeconfig.parent / "run"
    told = cluster.kept["secrets", job]["stringData"]
    assert told["secret"] == (run / "secret").read_text().strip() and len(told["secret"]) == 64
    assert json.loads(told["environ.json"]) == {"TOKEN": "t0k"}
    kept = (run / "job.yaml").read_text()
    assert told["secret"] not in kept and "t0k" not in kept
    assert asked(cluster, "--cancel", "run").code == 0
    assert cluster.made() == []
    ends = [one.body["propagationPolicy"] for one in cluster.asked if one.verb == "DELETE"]
    assert ends == ["Foreground"] * 4
    said = asked(cluster, "--status", "run")
    assert said.code == 0 and "stopped, exit code 143" in said.out
    history = muster(cluster, "history", "show", "run")
    assert "stopped, exit code 143" in history.out, history


@pytest.mark.parametrize("dry", [True, False])
def test_what_the_cluster_refuses_leaves_nothing(cluster: Cluster, dry: bool) -> None:
    """Before anything is made, or after some of it: its own words, and no object and no folder."""
    words = 'jobs.batch is forbidden: User "me" cannot create resource "jobs"'
    cluster.refusals["jobs", dry] = (403, words)
    said = asked(cluster, "--on", "kubernetes", "--image", "train:1", "--output", "run")
    assert said.code == 2 and words in said.err, said.err
    assert cluster.made() == []
    assert not (cluster.kubeconfig.parent / "run").exists()
    assert any("dryRun" not in one.query for one in cluster.asked) != dry


def kept(run: Path) -> dict[Path, bytes]:
    """All files of a run, but the one that locks it."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != ".muster-run"]
    return {path: path.read_bytes() for path in files}


def test_an_earlier_run_stays_where_the_cluster_refuses_the_new_one(cluster: Cluster) -> None:
    submitted(cluster)
    assert asked(cluster, "--cancel", "run").code == 0
    run = cluster.kubeconfig.parent / "run"
    (run / "algo-1/opt/ml/model").mkdir(parents=True)
    (run / "algo-1/opt/ml/model/weights").write_text("of days")
    before = kept(run)
    cluster.refusals["jobs", False] = (403, "no")
    words = ("--on", "kubernetes", "--image", "train:1", "--output", "run", "--overwrite")
    assert asked(cluster, *words).code == 2
    assert kept(run) == before
    cluster.refusals.clear()
    assert asked(cluster, *words).code == 0
    assert not [*run.rglob("weights")] and not (run / ".earlier").exists()


def test_a_hook_that_knows_no_dry_run_does_not_stand_in_the_way(cluster: Cluster) -> None:
    cluster.refusals["jobs", True] = (400, 'webhook "x" does not support dry run')
    submitted(cluster)


def test_warnings_of_the_cluster_are_passed_on(cluster: Cluster) -> None:
    """Once, and not in place of what went wrong."""
    cluster.warning = 'would violate PodSecurity \\"restricted:latest\\"'
    words = ("--on", "kubernetes", "--image", "train:1", "--output", "run")
    cluster.refusals["jobs", True] = (403, "jobs.batch is forbidden")
    said = asked(cluster, *words)
    assert said.code == 2 and "jobs.batch is forbidden" in said.err, said.err
    del cluster.refusals["jobs", True]
    said = asked(cluster, *words)
    assert said.code == 0 and said.err.count("would violate PodSecurity") == 1, said.err


def test_an_old_cluster_is_told_apart(cluster: Cluster) -> None:
    words = 'strict decoding error: unknown field "spec.podFailurePolicy"'
    cluster.refusals["jobs", True] = (400, words)
    said = asked(cluster, "--on", "kubernetes", "--image", "train:1")
    assert said.code == 2 and "--set spec.podFailurePolicy=null" in said.err


def test_the_state_is_the_jobs_and_the_code_the_pods(cluster: Cluster) -> None:
    """A failure that no retry helps is the job's, not what other pods ended with meanwhile."""
    job = submitted(cluster)

    def state() -> str:
        return asked(cluster, "--status", "run").out.partition(": ")[2].strip()

    assert state() == "queued"
    waits = {"reason": "ImagePullBackOff", "message": "no such image"}
    name = pod(cluster, job, 0, "Pending")
    status = cluster.kept["pods", name]["status"]
    status["containerStatuses"] = [{"name": "muster", "state": {"waiting": waits}}]
    assert state() == "queued (ImagePullBackOff no such image)"
    pod(cluster, job, 0, "Running")
    assert state() == "running"
    pod(cluster, job, 0, "Failed", 143)
    pod(cluster, job, 1, "Failed", 42)
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}
    cluster.kept["jobs", job]["status"] = {"conditions": [failed]}
    assert state() == "failed, exit code 42 (PodFailurePolicy)"
    done = {"type": "Complete", "status": "True"}
    cluster.kept["jobs", job]["status"] = {"conditions": [done]}
    assert state() == "succeeded"


def said(cluster: Cluster) -> str:
    return asked(cluster, "--status", "run").out.partition(": ")[2].strip()


def test_what_is_in_the_way_of_pods_is_said(cluster: Cluster) -> None:
    """Of pods that the cluster does not let be, of one that waits beside one that runs, and of one
    whose status says nothing."""
    job = submitted(cluster)

    def event(kind: str, name: str, reason: str, message: str) -> None:
        about = {"kind": kind, "name": name}
        made = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": reason}}
        made |= {"involvedObject": about, "type": "Warning", "reason": reason, "message": message}
        cluster.kept["events", reason] = made

    event("Job", job, "FailedCreate", "exceeded quota: gpus")
    event("Job", "another", "Other", "of another job")
    assert said(cluster) == "queued (FailedCreate exceeded quota: gpus)"
    name = pod(cluster, job, 1, "Pending")
    waits = {"name": "muster", "state": {"waiting": {"reason": "ContainerCreating"}}}
    ready = {"type": "Ready", "status": "False", "reason": "NotReady", "message": "not ready"}
    cluster.kept["pods", name]["status"] |= {"containerStatuses": [waits], "conditions": [ready]}
    assert said(cluster) == "queued (ContainerCreating)"
    event("Pod", name, "FailedMount", "no such claim")
    assert said(cluster) == "queued (FailedMount no such claim)"
    pod(cluster, job, 0, "Running")
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    scheduled["message"] = "0/3 nodes are available"
    cluster.kept["pods", name]["status"] = {"phase": "Pending", "conditions": [scheduled]}
    assert said(cluster) == "running (Unschedulable 0/3 nodes are available)"


def test_the_code_is_the_jobs_when_its_pod_is_gone(cluster: Cluster) -> None:
    """As with the node that it was on; and whatever another container of a pod ended with."""
    job = submitted(cluster)
    name = pod(cluster, job, 1, "Failed", 143)
    beside = {"name": "proxy", "state": {"terminated": {"exitCode": 3, "finishedAt": "2026"}}}
    cluster.kept["pods", name]["status"]["containerStatuses"].append(beside)
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    cluster.kept["jobs", job]["status"] = {"conditions": [failed]}
    assert said(cluster) == "stopped, exit code 143 (BackoffLimitExceeded)"
    failed["reason"] = "PodFailurePolicy"
    failed["message"] = (
        f"Container muster for pod team/{job}-0-x failed with exit code 137 "
        "matching FailJob rule at index 1"
    )
    assert said(cluster) == "failed, exit code 137 (PodFailurePolicy)"


def test_a_job_that_cannot_be_kept_does_not_run(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the person stops waiting, or the disk is full: nobody would find it again."""
    from muster.arguments import Parser
    from muster.submit import command

    folder_of_run = cluster.kubeconfig.parent
    script = folder_of_run / "train.py"
    script.write_text("")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.chdir(folder_of_run)
    parser = Parser("")
    command.add_arguments(parser)
    args = parser.parse_args([str(script), "--on", "kubernetes", "--image", "train:1"])
    args.command_line = args.script_arguments = ()

    def stopped(*words: object) -> None:
        assert cluster.made()
        raise KeyboardInterrupt

    for module, name in ((kubernetes, "_own"), (folder, "keep")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, stopped)
            with pytest.raises(KeyboardInterrupt):
                command.run(args)
        assert cluster.made() == []


def test_a_log_that_is_cut_off_goes_on(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """With what came since, and without losing the whole of one that could not be had at first."""
    pods = {"items": [{"metadata": {"name": "a"}, "status": {"phase": "Running"}}]}
    (tmp_path / "pods").write_text(json.dumps(pods))
    logs = tmp_path / "logs"
    logs.write_text(
        f"""#!/bin/sh
cd {tmp_path}
echo "$*" >> asked
case $(wc -l < asked) in
1) exit 1 ;;
2) echo first; exit 1 ;;
*) echo last ;;
esac
"""
    )
    logs.chmod(0o755)
    shown = PodLogs(["cat", str(tmp_path / "pods")], [str(logs)])

    def asked_for() -> list[str]:
        shown.more()
        path = tmp_path / "asked"
        return path.read_text().splitlines() if path.exists() else []

    try:
        wait_until(lambda: len(asked_for()) == 3, 30)
        shown.rest()
    finally:
        shown.close()
    first, again, since = asked_for()
    assert (first, again) == ("a", "a") and re.fullmatch(r"--since=[1-9]s a", since)
    assert capfdbinary.readouterr().out == b"first\nlast\n"


def test_following_shows_all_pods_and_ends_with_the_jobs_code(cluster: Cluster) -> None:
    job = submitted(cluster)
    for index in (0, 1):
        cluster.logs[pod(cluster, job, index, "Failed", 7)] = f"line of {index}\nlast of {index}"
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}
    cluster.kept["jobs", job]["status"] = {"conditions": [failed]}
    said = asked(cluster, "--follow", "run")
    assert said.code == 7, said.err
    assert sorted(said.out.splitlines()) == ["last of 0", "last of 1", "line of 0", "line of 1"]


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_other_kinds_are_made_asked_and_taken_away(cluster: Cluster, kind: str) -> None:
    job = submitted(cluster, "--kind", kind)
    assert cluster.made() == sorted(f"{one}/{job}" for one in ("secrets", "configmaps", f"{kind}s"))
    (reference,) = cluster.kept["secrets", job]["metadata"]["ownerReferences"]
    assert reference["kind"].lower() == kind and "/" in reference["apiVersion"]
    done = {"type": "Completed" if kind == "jobset" else "Complete", "status": "True"}
    cluster.kept[f"{kind}s", job]["status"] = {"conditions": [done]}
    cancelled = asked(cluster, "--cancel", "run")
    assert cancelled.code == 0 and "nothing to cancel" in cancelled.err, cancelled.err
    assert cluster.made() == []
    assert "succeeded" in asked(cluster, "--status", "run").out
    assert "succeeded" in muster(cluster, "history", "show", "run").out


def test_a_folder_of_the_same_path_elsewhere_is_another_job(cluster: Cluster) -> None:
    """Runners of CI have the same paths, and neither touches the other's objects."""
    first = submitted(cluster)
    before = cluster.made()
    shutil.rmtree(cluster.kubeconfig.parent / "run")
    assert submitted(cluster) != first
    assert set(before) < set(cluster.made())
    assert asked(cluster, "--cancel", "run").code == 0
    assert cluster.made() == before


def test_questions_go_to_the_leaders_pod(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever order the pods come in, and of a second attempt to the one that runs."""
    job = submitted(cluster)
    pod(cluster, job, 1, "Running")
    kept = folder.read(str(cluster.kubeconfig.parent / "run"))
    assert kept is not None
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    with pytest.raises(UsageError, match="no pod of"):
        kubernetes.inside(kept)
    name = pod(cluster, job, 0, "Running")
    where = ["--context=test", "--namespace=team"]
    into = [name, "--container=muster", "--", "muster"]
    assert kubernetes.inside(kept) == ["kubectl", "exec", *where, *into]


def test_a_job_that_somebody_else_deletes_was_stopped(cluster: Cluster) -> None:
    """Whoever follows it sees it run, and then no more."""
    job = submitted(cluster)
    pod(cluster, job, 0, "Running")
    words = ["submit", "--follow", "run"]
    watcher = subprocess.Popen(
        [sys.executable, "-m", "muster", *words],
        cwd=cluster.kubeconfig.parent,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watcher.stderr is not None and "running" in watcher.stderr.readline()
        for kept in cluster.made():
            del cluster.kept[tuple(kept.split("/"))]  # type: ignore[arg-type]
        _, err = watcher.communicate(timeout=within(60))
    finally:
        watcher.kill()
    assert watcher.returncode == 143 and "stopped, exit code 143" in err, err
    assert "stopped, exit code 143" in muster(cluster, "submit", "--status", "run").out


def test_a_stopped_job_does_not_begin_again(cluster: Cluster) -> None:
    """143 is worth another attempt to Kubernetes, unless the person asked for the stop."""
    job = submitted(cluster)
    pod(cluster, job, 0, "Running")
    assert cluster.kept["jobs", job]["spec"]["backoffLimit"] == 6
    cluster.kept["jobs", job]["status"] = {"failed": 2}  # it has begun again once
    muster(cluster, "stop", "run")  # the server lets nobody into a pod
    assert cluster.kept["jobs", job]["spec"]["backoffLimit"] == 2  # with more it would end at once


def test_a_stop_asks_the_leader_also_without_the_right_to_change_the_job(cluster: Cluster) -> None:
    """And changes nothing where there is no leader to ask."""
    job = submitted(cluster)
    pod(cluster, job, 1, "Running")
    assert "no pod of" in muster(cluster, "stop", "run").err
    assert cluster.kept["jobs", job]["spec"]["backoffLimit"] == 6
    pod(cluster, job, 0, "Running")
    cluster.refusals["jobs", False] = (403, "jobs.batch is forbidden: User cannot patch")
    said = muster(cluster, "stop", "run").err
    assert re.search("may begin again .*cannot patch.*--cancel", said), said
    assert "exec" in said.splitlines()[-1] or "pods" in said, said


def test_the_code_of_pods_that_a_failed_job_ends_is_not_its_own() -> None:
    def ended(*codes: int) -> int | None:
        pods = []
        for place, code in enumerate(codes):
            state = {"terminated": {"exitCode": code, "finishedAt": f"2026-11-29T10:00:0{place}Z"}}
            pods.append({"status": {"containerStatuses": [{"name": "muster", "state": state}]}})
        return kubernetes.exit_code(pods, "muster")

    assert ended(102, 143) == ended(102, 137) == 102
    assert ended(143, 137) == 143 and ended(42, 143) == 42 and ended(137) == 137
    assert ended() is None


def test_the_code_of_an_attempt_that_began_again_is_not_the_jobs() -> None:
    """It lost a host, began again, and then a person stopped it."""
    pods = []
    for place, (index, code) in enumerate([(1, 137), (0, 102), (0, 143), (1, 143)]):
        state = {"terminated": {"exitCode": code, "finishedAt": f"2026-11-29T10:00:0{place}Z"}}
        status = {"containerStatuses": [{"name": "muster", "state": state}]}
        pods.append({"metadata": {"annotations": {INDEX: str(index)}}, "status": status})
    assert kubernetes.exit_code(pods, "muster") == 143
    assert kubernetes.exit_code(pods[:2], "muster") == 102


def test_the_code_that_arrives_is_the_users(cluster: Cluster) -> None:
    import io
    import tarfile

    job = submitted(cluster)
    data = base64.b64decode(cluster.kept["configmaps", job]["binaryData"]["source.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(data)) as packed:
        file = packed.extractfile("train.py")
        assert file is not None and b"hello" in file.read()


def test_without_kubectl_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    os.symlink("/bin/true", tmp_path / "bin" / "true")
    words = ("--on", "kubernetes", "--image", "train:1")
    said = submit(tmp_path, *words, environ={"PATH": str(tmp_path / "bin")})
    assert said.code == 2 and "no kubectl on this machine" in said.err
    assert not list((tmp_path / "muster-runs").glob("*-train"))

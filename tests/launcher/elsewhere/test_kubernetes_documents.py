"""What `muster submit --on kubernetes` renders, judged by upstream's schemas."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import tarfile
from pathlib import Path

import pytest

from tests.launcher.elsewhere.submitting import printed, problems, submit

FULL = (
    *("--hosts", "3", "--channel", "train=pvc:data/train", "--channel", "more=/data/more"),
    *("--checkpoint", "pvc:data/kept", "--env", "A=secret value", "--grace", "90.5"),
    *("--set", "container.resources.limits[nvidia.com/gpu]=8", "--set", "pod.tolerations[0].key=g"),
    *("--set", "metadata.labels[kueue.x-k8s.io/queue-name]=q", "--set", "spec.suspend=true"),
)


def of_kind(made: list[dict[str, object]], kind: str) -> dict[str, object]:
    (found,) = [one for one in made if one["kind"] == kind]
    return found


def test_every_object_is_one_of_kubernetes(tmp_path: Path) -> None:
    """For 1.24, before whose time the failure policy was, without one."""
    made = printed(tmp_path, *FULL)
    assert [one["kind"] for one in made] == ["Secret", "ConfigMap", "Service", "Job"]
    old = printed(tmp_path, *FULL, "--retries", "0", "--set", "spec.podFailurePolicy=null")
    asked = [("1.24", one) for one in old]
    asked += [(version, one) for version in ("1.28", "1.32") for one in made]
    *found, late = problems(*asked, ("1.24", made[-1]))
    assert found == [""] * len(asked)
    assert "podFailurePolicy" in late


def test_a_field_that_does_not_exist_is_found(tmp_path: Path) -> None:
    """The judge of the test above can fail, and `--set` keeps nothing back from the cluster."""
    job = printed(tmp_path, "--set", "pod.nodeSelektor.a=b")[-1]
    jobset = printed(tmp_path, "--kind", "jobset", "--set", "spec.nework.subdomain=b")[-1]
    of_job, of_jobset = problems(("1.32", job), ("", jobset))
    assert "nodeSelektor" in of_job
    assert "spec.nework" in of_jobset


@pytest.mark.parametrize(("kind", "made"), [("jobset", "JobSet"), ("trainjob", "TrainJob")])
def test_other_kinds_are_what_their_models_know(tmp_path: Path, kind: str, made: str) -> None:
    gpus = {"jobset": "container.resources", "trainjob": "spec.trainer.resourcesPerNode"}[kind]
    words = (*FULL[: FULL.index("--set")], "--set", f"{gpus}.limits[nvidia.com/gpu]=8")
    found = printed(tmp_path, "--kind", kind, *words)
    assert [one["kind"] for one in found] == ["Secret", "ConfigMap", made]
    asked = [("1.32", one) for one in found]
    assert problems(*asked) == [""] * len(asked)


def test_pods_learn_their_place_and_no_secret_is_printed(tmp_path: Path) -> None:
    made = printed(tmp_path, *FULL, "--", "$(HOME)", "$$")
    assert "secret value" not in json.dumps(made)
    job = of_kind(made, "Job")
    name, spec = job["metadata"]["name"], job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (3, 3, 9)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    environ = {one["name"]: one["value"] for one in container["env"]}
    assert environ == {
        "MUSTER_ENGINE": "kubernetes",
        "MUSTER_HOST_COUNT": "3",
        "MUSTER_LEADER": f"{name}-0.{name}",
        "MUSTER_JOB_SECRET_FILE": "/etc/muster/secret",
        "MUSTER_STOP_TOTAL_S": "90.5",
    }
    assert pod["terminationGracePeriodSeconds"] == 96
    # Kubernetes reads $$ as $, and $(HOME) as a variable's value
    assert container["args"][-3:] == ["--", "$$(HOME)", "$$$$"]
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert mounts["/mnt/channels/train"] | {"name": ""} == {
        "name": "",
        "mountPath": "/mnt/channels/train",
        "subPath": "train",
        "readOnly": True,
    }
    assert {"/etc/muster", "/dev/shm", "/opt/ml", "/mnt/checkpoint"} < set(mounts)
    assert "more=/data/more" in container["args"] and "/data/more" not in mounts
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}


def test_the_code_travels_in_a_config_map(tmp_path: Path) -> None:
    data = of_kind(printed(tmp_path), "ConfigMap")["binaryData"]["source.tar.gz"]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(data))) as packed:
        assert packed.getnames() == ["train.py"] or "train.py" in packed.getnames()


@pytest.mark.parametrize(
    ("place", "hidden"),
    [
        ("image:/opt/ml/code", True),
        ("image:/opt/ml", True),
        ("image:/opt/mlops/code", False),
        ("s3://bucket/code.tar.gz", False),
    ],
)
def test_code_elsewhere_needs_no_config_map(tmp_path: Path, place: str, hidden: bool) -> None:
    """And a volume at /opt/ml unless that would hide the code."""
    said = submit(
        tmp_path,
        *("--source-dir", place, "--on", "kubernetes", "--image", "train:1", "--dry-run"),
    )
    assert said.code == 0, said.err
    assert '"ConfigMap"' not in said.out and f'"{place.removeprefix("image:")}"' in said.out
    assert ('"mountPath": "/opt/ml"' in said.out) == (not hidden)


def test_too_much_code_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "weights.bin").write_bytes(os.urandom(2 << 20))
    said = submit(tmp_path, "--on", "kubernetes", "--image", "train:1")
    assert said.code == 2 and "larger than 900 KiB" in said.err and "s3://" in said.err
    assert not (tmp_path / "muster-runs").exists()


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (("--image", ""), "--image is missing", "--image IMAGE"),
        (("--kind", "jobsett"), "--kind jobsett", "jobset"),
        (("--set", "pod..x=1"), "no path", "container.NAME"),
        (("--set", "pods.x=1"), "begins with pods", "pod"),
        (("--set", "pod=1"), "cannot be replaced", ""),
        (("--set", "pod.volumes[9].name=x"), "has 3 entries", "[3]"),
        (("--set", "pod.volumes.name=x"), "where a list is", "[index]"),
        (("--set", "pod.restartPolicy.x=1"), "would be in a value", ""),
        (("--set", "container.image=x"), "muster decides it", "use --image"),
        (("--set", "spec.completions=4"), "muster decides it", "--hosts N"),
        (("--set", "pod.volumes[0].name=x"), "own muster out of pod.volumes", "pod.volumes[3]"),
        (
            ("--set", 'container.env[1]={"name":"A"}'),
            "MUSTER_HOST_COUNT out of",
            "container.env[5]",
        ),
        (("--set", "container.volumeMounts[0]=null"), "/etc/muster out of", "volumeMounts[3]"),
        (
            ("--set", 'metadata.labels={"team":"a"}'),
            "own app.kubernetes.io",
            "metadata.labels[NAME]",
        ),
        (
            ("--set", 'spec.template.metadata.labels={"a":"b"}'),
            "own app.kubernetes.io",
            "labels[NAME]",
        ),
        (("--channel", "a=data"), "no folder in a pod", "pvc:CLAIM"),
        (("--channel", "a=pvc:c/../../x"), "no folder in a pod", "pvc:CLAIM"),
        (("--checkpoint", "pvc:C"), "no folder in a pod", "pvc:CLAIM"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, words: tuple[str, ...], what: str, fix: str
) -> None:
    said = submit(tmp_path, "--on", "kubernetes", "--image", "train:1", *words)
    assert said.code == 2 and what in said.err and fix in said.err, said.err
    assert not (tmp_path / "muster-runs").exists()


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_names_of_pods_are_labels_of_dns(tmp_path: Path, kind: str) -> None:
    """Also the last pod's of a large job with the longest name."""
    words = ("--name", "a" * 50, "--hosts", "100000", "--kind", kind)
    name = printed(tmp_path, *words)[-1]["metadata"]["name"]
    middle = {"job": "", "jobset": "-hosts-0", "trainjob": "-node-0"}[kind]
    whole = "" if kind == "job" else "-abcde"  # which JobSet measures
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", f"{name}{middle}-99999{whole}")


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_settings_may_add_to_what_is_made(tmp_path: Path, kind: str) -> None:
    """Behind muster's own entries, and change these."""
    words = ("--set", "pod.volumes[1].emptyDir.sizeLimit=8Gi", "--set", "pod.volumes[3].name=x")
    words += ("--set", "metadata.labels.team=a", "--set", "container.volumeMounts[3].name=x")
    main = printed(tmp_path, "--kind", kind, *words)[-1]
    assert main["metadata"]["labels"]["team"] == "a" and '"8Gi"' in json.dumps(main)


def test_maps_of_texts_have_no_other_values(tmp_path: Path) -> None:
    """A cluster refuses a label that is a boolean."""
    words = ("pod.nodeSelector[nvidia.com/gpu.present]=true", 'pod.nodeSelector[zone]="1"')
    words += ("metadata.annotations.build=17", "metadata.labels[a]=1", "metadata.labels.a=null")
    words += ("pod.priority=5",)
    made = printed(tmp_path, *(word for one in words for word in ("--set", one)))
    main = of_kind(made, "Job")
    pod = main["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true", "zone": "1"}
    assert main["metadata"]["annotations"] == {"build": "17"} and pod["priority"] == 5
    assert "a" not in main["metadata"]["labels"]


def test_pods_with_their_nodes_network_ask_the_clusters_name_server(tmp_path: Path) -> None:
    """The node's knows no name of the service."""

    def policy(*words: str) -> object:
        made = printed(tmp_path, "--set", "pod.hostNetwork=true", *words)
        return of_kind(made, "Job")["spec"]["template"]["spec"]["dnsPolicy"]

    assert policy() == "ClusterFirstWithHostNet"
    assert policy("--set", "pod.dnsPolicy=None") == "None"


def test_a_namespace_is_that_of_all_objects(tmp_path: Path) -> None:
    made = printed(tmp_path, "--set", "metadata.namespace=team")
    assert {one["metadata"]["namespace"] for one in made} == {"team"}
    assert not any("namespace" in one["metadata"] for one in printed(tmp_path))

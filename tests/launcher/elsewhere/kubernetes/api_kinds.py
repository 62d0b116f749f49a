"""What an API server of Kubernetes says of itself: kinds, and that it judges fields."""

from __future__ import annotations

from typing import Any

GROUPS = {
    "v1": {
        "Secret": "secrets",
        "ConfigMap": "configmaps",
        "Service": "services",
        "Pod": "pods",
        "Event": "events",
    },
    "batch/v1": {"Job": "jobs"},
    "jobset.x-k8s.io/v1alpha2": {"JobSet": "jobsets"},
    "trainer.kubeflow.org/v1alpha1": {"TrainJob": "trainjobs"},
}


def discovery(path: list[str]) -> Any:
    """What kinds there are, and that the server judges the fields of objects by itself."""
    if path == ["version"]:  # some distributions of kubectl choose a client by it
        return {"major": "1", "minor": "32", "gitVersion": "v1.32.4"}
    if path == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == ["apis"]:
        versions = [{"groupVersion": one, "version": one.split("/")[1]} for one in list(GROUPS)[1:]]
        groups = [
            {"name": one["groupVersion"].split("/")[0], "versions": [one]} for one in versions
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == ["openapi", "v3"]:
        at = [("api/" if one == "v1" else "apis/") + one for one in GROUPS]
        return {"paths": {one: {"serverRelativeURL": f"/openapi/v3/{one}"} for one in at}}
    version = "/".join(path[3:] if path[:2] == ["openapi", "v3"] else path[1:])
    if version not in GROUPS:
        return None
    kinds = GROUPS[version].items()
    if path[0] != "openapi":
        verbs = ["create", "delete", "get", "list", "patch"]
        about = {"singularName": "", "namespaced": True, "verbs": verbs}
        resources = [{"name": plural, "kind": kind, **about} for kind, plural in kinds]
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    group, _, last = version.rpartition("/")
    paths = {}
    for kind, plural in kinds:
        about = {
            "parameters": [{"name": one, "in": "query"} for one in ("fieldValidation", "dryRun")]
        }
        about["x-kubernetes-group-version-kind"] = {"group": group, "version": last, "kind": kind}
        at = f"/{path[2]}/{version}/namespaces/{{namespace}}/{plural}"
        paths[at] = {"post": about, "patch": about}
    return {"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": paths}

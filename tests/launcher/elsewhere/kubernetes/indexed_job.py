"""The controller of Kubernetes' Indexed Jobs, as far as one job needs it."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.launcher.elsewhere.kubernetes.kubelet import INDEX, NAMESPACE, Image, Pod
from tests.support.hosts import Networks


class IndexedJob:
    """Runs one Indexed Job. See `Host`."""

    def __init__(
        self,
        objects: list[dict[str, Any]],
        networks: Networks,
        folder: Path,
        images: Mapping[str, Image],
        claims: Mapping[str, Path],
    ) -> None:
        (job,) = [one for one in objects if one["kind"] == "Job"]
        self.name, self.spec = job["metadata"]["name"], job["spec"]
        self.template, self.count = self.spec["template"], self.spec["completions"]
        labels = self.template["metadata"]["labels"].items()
        self.networks, self.folder, self.images, self.claims = networks, folder, images, claims
        self.services: set[str] = set()
        self.data: dict[tuple[str, str], dict[str, bytes]] = {}
        for one in objects:
            at = one["metadata"]["name"]
            if one["kind"] == "Service" and one["spec"]["selector"].items() <= labels:
                self.services.add(at)
            texts = {key: text.encode() for key, text in one.get("stringData", {}).items()}
            binary = {
                key: base64.b64decode(text) for key, text in one.get("binaryData", {}).items()
            }
            if texts or binary:
                kind = {"Secret": "secret", "ConfigMap": "configMap"}[one["kind"]]
                self.data[kind, at] = {**texts, **binary}
        self.pods: list[Pod] = []
        self.failures, self.result = 0, ""
        self._over = time.monotonic() + self.spec.get("activeDeadlineSeconds", float("inf"))
        self._counted: list[Pod] = []  # in the order in which they ended
        for index in range(self.count):
            self._start(index)

    def tick(self) -> bool:
        """One look; whether the job and all its pods have ended."""
        if not self.result and time.monotonic() > self._over:
            self._finish("DeadlineExceeded")
        for pod in self.pods:
            pod.tick()
            if pod.code is not None and pod not in self._counted:
                self._counted.append(pod)
                if not self.result:
                    self._judge(pod)
        if not self.result and all(self._done(n) for n in range(self.count)):
            self.result = "Complete"
        return bool(self.result) and all(pod.code is not None for pod in self.pods)

    def delete(self) -> None:
        self._finish("Deleted")

    def close(self) -> None:
        for pod in self.pods:
            pod.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def shown(self) -> list[dict[str, Any]]:
        """The pods as the cluster tells of them: those that have ended in that order, then the
        others."""
        found = []
        going = [pod for pod in self.pods if pod not in self._counted]
        for place, pod in enumerate([*self._counted, *going]):
            ended = {"exitCode": pod.code, "finishedAt": f"2026-11-29T10:00:{place:02d}Z"}
            state = {"running": {}} if pod in going else {"terminated": ended}
            one = {"name": pod.container["name"], "state": state}
            phase = "Running" if pod in going else "Failed" if pod.code else "Succeeded"
            about = {
                "name": pod.name,
                "namespace": NAMESPACE,
                "annotations": {INDEX: str(pod.index)},
            }
            about["labels"] = self.template["metadata"]["labels"]
            status = {"phase": phase, "containerStatuses": [one]}
            found.append(
                {"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": status}
                | {"spec": self.template["spec"]}
            )
        return found

    def latest(self, index: int) -> Pod:
        return [pod for pod in self.pods if pod.index == index][-1]

    def _start(self, index: int) -> None:
        self.pods.append(Pod(self, index, len(self.pods)))

    def _done(self, index: int) -> bool:
        return any(pod.code == 0 for pod in self.pods if pod.index == index)

    def _finish(self, result: str) -> None:
        self.result = result
        for pod in self.pods:
            pod.terminate()

    def _judge(self, pod: Pod) -> None:
        """podFailurePolicy: the first rule that fits; else the failure counts."""
        if pod.code == 0:
            return
        action = "Count"
        for rule in reversed(self.spec.get("podFailurePolicy", {}).get("rules", [])):
            if _fits(rule, pod):
                action = rule["action"]
        if action == "FailJob":
            self._finish("PodFailurePolicy")
            return
        self.failures += action == "Count"
        if self.failures > self.spec["backoffLimit"]:
            self._finish("BackoffLimitExceeded")
        else:
            self._start(pod.index)


def _fits(rule: Mapping[str, Any], pod: Pod) -> bool:
    if any(one["type"] in pod.conditions for one in rule.get("onPodConditions", [])):
        return True
    codes = rule.get("onExitCodes")
    return bool(codes) and (pod.code in codes["values"]) == (codes["operator"] == "In")

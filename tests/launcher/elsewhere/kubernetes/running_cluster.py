"""A stand-in for a cluster of Kubernetes that kubectl can talk to and that runs what it is given:
the API server of the tests, their Job controller and their kubelet. One job at a time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.launcher.elsewhere.kubernetes.api_server import Cluster
from tests.launcher.elsewhere.kubernetes.indexed_job import IndexedJob
from tests.launcher.elsewhere.kubernetes.kubelet import Image
from tests.support.hosts import Networks

LOOK_S = 0.05


class RunningCluster(Cluster):
    def __init__(
        self,
        address: str,
        kubeconfig: Path,
        networks: Networks,
        folder: Path,
        images: Mapping[str, Image],
    ) -> None:
        super().__init__(address, kubeconfig)
        self._networks, self._folder, self._images = networks, folder, images
        self._lock = threading.RLock()
        self._job: IndexedJob | None = None

    def answer(self, verb: str, address: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            self._look()
            found = super().answer(verb, address, body)
            self._control()
            return found

    def log(self, pod: str) -> Iterator[bytes]:
        """All of it, until the pod has ended."""
        (mine,) = [one for one in self._job.pods if one.name == pod] if self._job else []
        sent, over = 0, False
        while not over:
            over = mine.code is not None
            data = mine.log.encode()
            yield data[sent:]
            sent = len(data)
            time.sleep(LOOK_S)

    def close(self) -> None:
        if self._job is not None:
            self._job.close()

    def _control(self) -> None:
        """A job that was made begins; of one that was deleted the pods end, and so does a pod."""
        jobs = [name for plural, name in self.kept if plural == "jobs"]
        if self._job is not None:
            if self._job.name not in jobs and not self._job.result:
                self._job.delete()
            for pod in self._job.pods:
                if pod.name in self._shown and ("pods", pod.name) not in self.kept:
                    pod.signal(signal.SIGKILL)
        if jobs and (self._job is None or self._job.name != jobs[0]):
            self.close()
            (name,) = jobs
            holders = {f"{name}-{at}": self._networks.holders[f"node-{at}"] for at in (0, 1)}
            own = self._networks._replace(holders=holders)
            made = [one for (plural, _), one in self.kept.items() if plural != "pods"]
            self._job = IndexedJob(made, own, self._folder / name, self._images, {})
        self._look()

    def _look(self) -> None:
        """What the kubelet and the controller have found becomes what kubectl is shown."""
        job, self._shown = self._job, set[str]()
        if job is None:
            return
        over = job.tick()
        for key in [key for key in self.kept if key[0] == "pods"]:
            del self.kept[key]
        deleted = ("jobs", job.name) not in self.kept
        for pod in job.shown():
            if not deleted or pod["status"]["phase"] == "Running":
                self._shown.add(pod["metadata"]["name"])
                self.kept["pods", pod["metadata"]["name"]] = pod
        if over and not deleted:
            word = "Complete" if job.result == "Complete" else "Failed"
            condition = {"type": word, "status": "True", "reason": job.result}
            self.kept["jobs", job.name]["status"] = {"conditions": [condition]}

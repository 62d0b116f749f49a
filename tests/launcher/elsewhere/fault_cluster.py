"""Faults of a job on a cluster that somebody has: by `muster submit`, and kubectl where it is
Kubernetes. `scripts/verify-cluster` names it in VERIFY_CLUSTER."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from muster.submit.kubernetes import INDEX
from muster.submit.kubernetes_job import INSTANCE
from tests.launcher.elsewhere.fault_engines import MUSTER, Job
from tests.launcher.elsewhere.faults import SCRIPT, Fault
from tests.support.waiting import wait_until, within

ENGINE, *OPTIONS = shlex.split(os.environ.get("VERIFY_CLUSTER", "")) or [""]
WAIT_S = 1800.0  # machines may have to start first, and fetch the image


def why_not(engine: str, fault: Fault) -> str:
    """Why a fault cannot be had there; "" where it can."""
    if not ENGINE or fault.cannot.get(engine):
        return fault.cannot.get(engine, "")
    if fault.second:
        return "all hosts of a cluster start the same image"
    if fault.act == "second":
        return "where the cluster puts a second job is not ours to say"
    if engine == "batch" and fault.act.startswith("kill"):
        return "Batch has no way to a node"
    return ""


class OnCluster(Job):
    def __init__(self, _: object, folder: Path, fault: Fault, run: str) -> None:
        self._folder, self._run, self._log = folder, run, folder / f"{run}.log"
        (folder / "train.py").write_text(SCRIPT)
        words = ["--on", ENGINE, "--output", run, "--hosts", "2", "--retries", "0", *OPTIONS]
        own = (*fault.options, *fault.own.get(ENGINE, ()))
        self._muster("submit", "train.py", *words, *own, "--", fault.script)
        self._job = json.loads((folder / run / "submitted.json").read_text())
        name = self._job["job_id"]
        first = f"{name}-0.{name}" if ENGINE == "kubernetes" else "node-0"
        self.names = (first, "node-1")
        with self._log.open("wb") as log:
            argv = [*MUSTER, "submit", "--follow", run]
            self._following = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)

    def _muster(self, *words: str) -> str:
        return _said([*MUSTER, *words], self._folder)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait(self, word: str, count: int) -> None:
        wait_until(lambda: self.log().count(word) >= count, WAIT_S, self.log)

    def stop(self) -> None:
        self._muster("submit", "--cancel", self._run)

    def kill(self, index: int) -> None:
        """The pod, at once. Its node goes on, as it does not when a machine is lost."""
        where = [f"--{key}={self._job['where'][key]}" for key in ("context", "namespace")]
        mine = ["pods", f"--selector={INSTANCE}={self._job['job_id']}", "-o", "json"]
        for pod in json.loads(_said(["kubectl", "get", *where, *mine], self._folder))["items"]:
            if pod["metadata"]["annotations"][INDEX] == str(index):
                gone = ["pod", pod["metadata"]["name"], "--grace-period=0", "--force"]
                _said(["kubectl", "delete", *where, *gone, "--wait=false"], self._folder)

    def ended(self) -> set[int]:
        return {self._following.wait(within(WAIT_S))}

    def close(self) -> None:
        subprocess.run([*MUSTER, "submit", "--cancel", self._run], cwd=self._folder, check=False)
        self._following.kill()
        self._following.wait()


def _said(argv: list[str], folder: Path) -> str:
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=within(120), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


if __name__ == "__main__":
    sys.stdout.write(SCRIPT)
